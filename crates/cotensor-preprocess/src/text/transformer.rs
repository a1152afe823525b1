//! The settings of sentence-transformers' module Transformer: how texts become tokens, and what the module gives.

use super::fields::{count, flag};
use crate::files::{ModelFiles, find_json};
use cotensor_core::{Error, Result};
use serde_json::Value;

/// What the module gives for each text.
const TOKENS: &str = "token_embeddings";
/// The output of the encoder with the vectors of the tokens.
const HIDDEN: &str = "last_hidden_state";
/// Settings for queries and documents that change their tokens.
pub(super) const OF_ONE_SIDE: [&str; 3] = ["query_length", "document_length", "query_expansion"];

/// What sentence_bert_config.json states.
#[derive(Debug, Default)]
pub(super) struct Transformer {
    /// The most tokens of a text.
    pub(super) max_tokens: Option<usize>,
    pub(super) lowercases: bool,
    /// Why texts cannot be tokenized as the module does.
    pub(super) input: Option<Error>,
    /// Why hidden states are not what the module gives.
    pub(super) output: Option<Error>,
}

impl Transformer {
    /// Reads the file `name`; without it, everything is as by default.
    ///
    /// # Errors
    /// `Corrupt` when it is not JSON, `Invalid` for a length that is not a positive number and for a flag that is none.
    pub(super) fn read(files: &dyn ModelFiles, name: &str) -> Result<Self> {
        let Some(config) = find_json(files, name)? else { return Ok(Self::default()) };
        let in_file = |error: Error| error.in_file(files.path(name));
        let refused =
            |(field, reason): (&str, String)| Error::unsupported(reason).in_file(files.path(name)).in_field(field);
        Ok(Self {
            max_tokens: count(&config, "max_seq_length").map_err(in_file)?,
            lowercases: flag(&config, "do_lower_case", false).map_err(in_file)?,
            input: input_problem(&config).map(refused),
            output: output_problem(&config).map(refused),
        })
    }
}

/// The field that changes the tokens of texts in a way that is not supported, and the reason.
fn input_problem(config: &Value) -> Option<(&str, String)> {
    let kinds = config.get("modality_config").and_then(Value::as_object);
    if let Some(kinds) = kinds {
        // With messages, the module makes each text a message.
        if kinds.contains_key("message") {
            return Some((
                "modality_config",
                "texts that become messages of a chat template are not supported".to_owned(),
            ));
        }
        if !kinds.contains_key("text") {
            return Some(("modality_config", "the model reads no texts".to_owned()));
        }
    }
    let arguments = config.get("processing_kwargs").and_then(Value::as_object).into_iter().flatten();
    for (group, arguments) in arguments.filter(|(group, _)| ["common", "text"].contains(&group.as_str())) {
        if let Some(name) = arguments.as_object().and_then(|arguments| arguments.keys().next()) {
            return Some(("processing_kwargs", format!("{group}.{name} is not supported")));
        }
    }
    let of_one_side = OF_ONE_SIDE.into_iter().find(|field| config.get(*field).is_some_and(|value| !value.is_null()));
    of_one_side.map(|field| (field, "tokens of their own for queries and documents are not supported".to_owned()))
}

/// The field by which the module gives something else than hidden states, and the reason.
fn output_problem(config: &Value) -> Option<(&str, String)> {
    let gives = config.get("module_output_name").and_then(Value::as_str).unwrap_or(TOKENS);
    if gives != TOKENS {
        let reason = format!("a Transformer that gives {gives} is not supported; one that gives {TOKENS} is");
        return Some(("module_output_name", reason));
    }
    let text = config.get("modality_config").and_then(|kinds| kinds.get("text"));
    let output = text.and_then(|text| text.get("method_output_name")?.as_str()).unwrap_or(HIDDEN);
    let method = text.and_then(|text| text.get("method")?.as_str()).unwrap_or("forward");
    (output != HIDDEN || method != "forward")
        .then(|| ("modality_config", format!("{output} of {method} is not supported; {HIDDEN} of forward is")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::HashMap;

    fn read(config: &Value) -> Transformer {
        let name = "sentence_bert_config.json";
        let files = HashMap::from([(name.to_owned(), config.to_string().into_bytes())]);
        Transformer::read(&files, name).unwrap()
    }

    #[test]
    fn settings_that_change_tokens_or_outputs_are_named() {
        let text = json!({"method": "forward", "method_output_name": "last_hidden_state"});
        for plain in [
            json!({}),
            json!({"max_seq_length": 512, "do_lower_case": false}),
            json!({"transformer_task": "feature-extraction", "modality_config": {"text": text},
                "module_output_name": "token_embeddings", "unpad_inputs": true, "query_length": null, "processing_kwargs": {"text": {}}}),
        ] {
            let read = read(&plain);
            assert!(read.input.is_none() && read.output.is_none(), "{plain}: {read:?}");
        }
        for (field, config) in [
            ("modality_config", json!({"modality_config": {"text": text, "message": text}})),
            ("modality_config", json!({"modality_config": {"image": text}})),
            ("processing_kwargs", json!({"processing_kwargs": {"text": {"padding": "max_length"}}})),
            ("processing_kwargs", json!({"processing_kwargs": {"common": {"add_special_tokens": false}}})),
            ("query_length", json!({"query_length": 32})),
            ("query_expansion", json!({"query_expansion": {"strategy": "fixed", "length": 32}})),
        ] {
            let error = read(&config).input.unwrap();
            assert_eq!(error.field(), Some(field), "{error}");
        }
        for (field, config) in [
            ("module_output_name", json!({"module_output_name": "sentence_embedding"})),
            (
                "modality_config",
                json!({"modality_config": {"text": {"method": "forward", "method_output_name": "logits"}}}),
            ),
            ("modality_config", json!({"modality_config": {"text": {"method": "get_text_features"}}})),
        ] {
            let error = read(&config).output.unwrap();
            assert_eq!(error.field(), Some(field), "{error}");
        }
    }
}
