//! Rerankers that are causal language models: the score of two texts is a logit after a prompt with both, or a difference of two.

use super::fields::{file_in, flag, folder_of};
use super::module_list::PACKAGE;
use super::transformer::OF_ONE_SIDE;
use crate::files::{ModelFiles, find_json, read_json};
use cotensor_core::{Error, Result};
use serde_json::Value;

const MODULES_FILE: &str = "modules.json";
const TRANSFORMER: &str = ".Transformer";
const CLASS: &str = ".LogitScore";
/// What the module Transformer gives to LogitScore.
const LOGITS: &str = "causal_logits";
const TRANSFORMER_FILE: &str = "sentence_bert_config.json";

/// The module LogitScore of sentence-transformers, and the arguments of the chat template that makes the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogitScore {
    /// The token whose logit is the score.
    pub yes: usize,
    /// The token whose logit is subtracted.
    pub no: Option<usize>,
    /// Whether the template adds the beginning of an answer.
    pub begins_answer: bool,
}

impl LogitScore {
    /// Reads modules.json and the files of its two modules, Transformer and LogitScore.
    ///
    /// # Errors
    /// `Unsupported` for a model with other modules, and for an argument of the template that is not supported; `Invalid` for a
    /// field with an invalid value. The error names file and field.
    pub fn open(files: &dyn ModelFiles) -> Result<Self> {
        let listed = find_json(files, MODULES_FILE)?.unwrap_or_default();
        let text = |index: usize, field: &str| listed.get(index)?.get(field)?.as_str();
        let is_class = |index: usize, class: &str| {
            text(index, "type").is_some_and(|name| name.starts_with(PACKAGE) && name.ends_with(class))
        };
        let folder = |index: usize| {
            let path = text(index, "path").ok_or_else(|| Error::invalid("a string is required")).and_then(folder_of);
            path.map_err(|error| error.in_file(files.path(MODULES_FILE)).in_field(format!("[{index}].path")))
        };
        if !is_class(0, TRANSFORMER) || !is_class(1, CLASS) || listed.get(2).is_some() {
            let message = "a causal language model ranks texts if its modules are Transformer and LogitScore of sentence-transformers";
            return Err(Error::unsupported(message).in_file(files.path(MODULES_FILE)));
        }
        let (transformer, folder) = (file_in(folder(0)?, TRANSFORMER_FILE), folder(1)?);
        let name = file_in(folder, "config.json");
        let config = read_json(files, &name)?;
        let refused = |error: Error, field: &str| error.in_file(files.path(&name)).in_field(field);
        let token = |field: &str| match config.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let token = value.as_u64().and_then(|token| u32::try_from(token).ok()).map(|token| token as usize);
                token.map(Some).ok_or_else(|| refused(Error::invalid(format!("{value} is not a token")), field))
            }
        };
        let yes =
            token("true_token_id")?.ok_or_else(|| refused(Error::invalid("a number is required"), "true_token_id"))?;
        let reads = config.get("module_input_name").and_then(Value::as_str).unwrap_or(LOGITS);
        if reads != LOGITS {
            return Err(refused(Error::unsupported(format!("only {LOGITS} is supported")), "module_input_name"));
        }
        Ok(Self { yes, no: token("false_token_id")?, begins_answer: begins_answer(files, &transformer)? })
    }

    /// The score of the logits of all tokens.
    ///
    /// # Errors
    /// `Invalid` for a token that the logits do not have.
    pub fn score(&self, logits: &[f32]) -> Result<f32> {
        let logit = |token: usize| {
            let found = logits.get(token).copied();
            found.ok_or_else(|| {
                Error::invalid(format!("token {token} is not one of {}", logits.len())).in_field("true_token_id")
            })
        };
        Ok(logit(self.yes)? - self.no.map_or(Ok(0.0), logit)?)
    }
}

/// The argument `add_generation_prompt` of the template. Other settings of the module Transformer, in the file `name`, could change
/// the prompt or its tokens.
fn begins_answer(files: &dyn ModelFiles, name: &str) -> Result<bool> {
    const ARGUMENTS: &str = "processing_kwargs";
    let config = find_json(files, name)?.unwrap_or_default();
    let refused = |reason: String, field: &str| Error::unsupported(reason).in_file(files.path(name)).in_field(field);
    let gives = config.get("module_output_name").and_then(Value::as_str).unwrap_or(LOGITS);
    if gives != LOGITS {
        return Err(refused(format!("{gives} is not supported; {LOGITS} is"), "module_output_name"));
    }
    if flag(&config, "do_lower_case", false).map_err(|error| error.in_file(files.path(name)))? {
        return Err(refused("prompts in lower case are not supported".to_owned(), "do_lower_case"));
    }
    let message = config.get("modality_config").and_then(|kinds| kinds.get("message"));
    if message.and_then(|message| message.get("format")?.as_str()) == Some("structured") {
        return Err(refused("messages of several parts are not supported".to_owned(), "modality_config"));
    }
    if let Some(field) = OF_ONE_SIDE.into_iter().find(|field| config.get(*field).is_some_and(|value| !value.is_null()))
    {
        return Err(refused("tokens of their own for queries and documents are not supported".to_owned(), field));
    }
    let groups = config.get(ARGUMENTS).and_then(Value::as_object);
    let mut begins = false;
    for (group, arguments) in groups.into_iter().flatten() {
        for (name, value) in arguments.as_object().into_iter().flatten() {
            match (group.as_str(), name.as_str(), value) {
                ("chat_template", "add_generation_prompt", Value::Bool(flag)) => begins = *flag,
                // It concerns texts that are cut, which are refused here.
                ("chat_template", "restore_suffix", _) => {}
                _ => return Err(refused(format!("{group}.{name} is not supported"), ARGUMENTS)),
            }
        }
    }
    Ok(begins)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ErrorKind;
    use serde_json::json;
    use std::collections::HashMap;

    fn files(score: &Value, transformer: &Value) -> HashMap<String, Vec<u8>> {
        let listed = json!([
            {"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
            {"path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"},
        ]);
        let file = |name: &str, value: &Value| (name.to_owned(), value.to_string().into_bytes());
        HashMap::from([
            file(MODULES_FILE, &listed),
            file("1_LogitScore/config.json", score),
            file(TRANSFORMER_FILE, transformer),
        ])
    }

    #[test]
    fn score_is_the_difference_of_two_logits_or_one() {
        let both = json!({"true_token_id": 2, "false_token_id": 0});
        let begins = json!({"processing_kwargs": {"chat_template": {"add_generation_prompt": true}}});
        let score = LogitScore::open(&files(&both, &begins)).unwrap();
        assert_eq!(score, LogitScore { yes: 2, no: Some(0), begins_answer: true });
        assert_eq!(score.score(&[1.0, 9.0, 4.0]).unwrap(), 3.0);
        let one = LogitScore::open(&files(&json!({"true_token_id": 1}), &json!({}))).unwrap();
        assert_eq!((one.begins_answer, one.score(&[1.0, 9.0]).unwrap()), (false, 9.0));
        assert_eq!(one.score(&[1.0]).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn other_modules_and_arguments_are_refused_by_name() {
        let refused = |files: HashMap<String, Vec<u8>>| LogitScore::open(&files).unwrap_err();
        let score = json!({"true_token_id": 2});
        assert!(refused(HashMap::new()).file().is_some_and(|path| path.ends_with(MODULES_FILE)));
        assert_eq!(refused(files(&json!({}), &json!({}))).field(), Some("true_token_id"));
        assert_eq!(refused(files(&json!({"true_token_id": -1}), &json!({}))).field(), Some("true_token_id"));
        let other = json!({"true_token_id": 2, "module_input_name": "scores"});
        assert_eq!(refused(files(&other, &json!({}))).field(), Some("module_input_name"));
        let thinking = json!({"processing_kwargs": {"chat_template": {"enable_thinking": false}}});
        let error = refused(files(&score, &thinking));
        assert!(error.field() == Some("processing_kwargs") && error.message().contains("enable_thinking"), "{error}");
        for (field, transformer) in [
            ("module_output_name", json!({"module_output_name": "token_embeddings"})),
            ("do_lower_case", json!({"do_lower_case": true})),
            ("modality_config", json!({"modality_config": {"message": {"format": "structured"}}})),
            ("query_length", json!({"query_length": 32})),
        ] {
            assert_eq!(refused(files(&score, &transformer)).field(), Some(field));
        }
        // The settings are those in the folder of the module.
        let mut elsewhere = files(&score, &json!({}));
        let listed = |path: &str, package: &str| {
            json!([
                {"path": path, "type": format!("{package}.Transformer")},
                {"path": "1_LogitScore", "type": format!("{package}.LogitScore")},
            ])
        };
        let set = |files: &mut HashMap<String, Vec<u8>>, name: &str, value: &Value| {
            files.insert(name.to_owned(), value.to_string().into_bytes());
        };
        set(&mut elsewhere, MODULES_FILE, &listed("0_Transformer", "sentence_transformers"));
        set(&mut elsewhere, "0_Transformer/sentence_bert_config.json", &thinking);
        assert!(refused(elsewhere.clone()).file().is_some_and(|path| path.starts_with("0_Transformer")));
        set(&mut elsewhere, MODULES_FILE, &listed("..", "sentence_transformers"));
        assert_eq!(refused(elsewhere.clone()).field(), Some("[0].path"));
        set(&mut elsewhere, MODULES_FILE, &listed("", "custom"));
        assert_eq!(refused(elsewhere).kind(), ErrorKind::Unsupported);
        let mut more = files(&score, &json!({}));
        let mut three = listed("", "sentence_transformers");
        three.as_array_mut().unwrap().push(json!({}));
        let three = three.to_string().into_bytes();
        more.insert(MODULES_FILE.to_owned(), three);
        assert_eq!(refused(more).kind(), ErrorKind::Unsupported);
    }
}
