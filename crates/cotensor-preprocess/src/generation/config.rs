use super::timestamps::Timestamps;
use crate::family::{CONFIG_FILE, ModelConfig};
use cotensor_core::{Error, Result};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// The file with the parameters of generation.
pub const FILE: &str = "generation_config.json";

/// Parameters that would change the tokens and are not applied, with the value that changes nothing.
const UNAPPLIED: &[(&str, f64)] = &[
    ("num_beams", 1.0),
    ("num_beam_groups", 1.0),
    ("diversity_penalty", 0.0),
    ("penalty_alpha", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("typical_p", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("guidance_scale", 1.0),
];

/// As [`UNAPPLIED`], for parameters that change nothing when they are absent.
const UNAPPLIED_IF_SET: &[&str] = &[
    "bad_words_ids",
    "compression_ratio_threshold",
    "condition_on_prev_tokens",
    "constraints",
    "exponential_decay_length_penalty",
    "force_words_ids",
    "logprob_threshold",
    "no_speech_threshold",
    "sequence_bias",
    "stop_strings",
    "top_h",
    "watermarking_config",
];

/// The generation parameters of a model: generation_config.json, or config.json if the model has no such file, with the
/// parameters that config.json has for a task.
#[derive(Clone)]
pub struct GenerationConfig {
    values: Map<String, Value>,
    file: PathBuf,
    /// What the task puts before the text.
    prefix: String,
    timestamps: Option<Timestamps>,
}

impl GenerationConfig {
    /// The parameters of a model for a task. `found` is the content of generation_config.json, if the model has it.
    ///
    /// # Errors
    /// `Corrupt` when the file is not a JSON object.
    pub fn of(config: &ModelConfig<'_>, found: Option<&Value>, task: &str) -> Result<Self> {
        let file = config.folder.join(if found.is_some() { FILE } else { CONFIG_FILE });
        let mut values = match found {
            None => config.values.as_object().cloned().unwrap_or_default(),
            Some(Value::Object(values)) => values.clone(),
            Some(_) => return Err(Error::corrupt("a JSON object is required").in_file(file)),
        };
        for name in ["decoder_start_token_id", "eos_token_id", "bos_token_id", "pad_token_id"] {
            let known = values.get(name).is_some_and(|value| !value.is_null());
            let of_model = || config.at(name).or_else(|| config.at(&format!("text_config.{name}")));
            if let (false, Some(value)) = (known, of_model()) {
                values.insert(name.to_owned(), value.clone());
            }
        }
        let decoder = config.family.decoder.as_ref();
        let fields = decoder.map(|def| [("decoder_start_token_id", &def.start), ("eos_token_id", &def.ends)]);
        for (name, field) in fields.into_iter().flatten() {
            if let Some(value) = field.as_ref().and_then(|field| config.at(field)) {
                values.insert(name.to_owned(), value.clone());
            }
        }
        let of_task = config.values.get("task_specific_params").and_then(|tasks| tasks.get(task));
        let of_task = of_task.and_then(Value::as_object).cloned().unwrap_or_default();
        let prefix = of_task.get("prefix").and_then(Value::as_str).unwrap_or_default().to_owned();
        values.extend(of_task);
        Ok(Self { values, file, prefix, timestamps: None })
    }

    /// The name of the file.
    pub fn file_name(&self) -> &str {
        self.file.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// The rules of timestamps, for texts that have them.
    pub fn timestamps(&self) -> Option<Timestamps> {
        self.timestamps
    }

    /// What the task puts before the text.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The value of a parameter; `None` if it is absent or null.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name).filter(|value| !value.is_null())
    }

    /// An error about a parameter.
    pub fn invalid(&self, name: &str, message: impl Into<String>) -> Error {
        Error::invalid(message).in_file(&self.file).in_field(name)
    }

    /// A token id.
    ///
    /// # Errors
    /// `Invalid` for another value.
    pub fn token(&self, name: &str) -> Result<Option<i64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_i64().map(Some).ok_or_else(|| self.invalid(name, format!("{value} is not a token id")))
    }

    /// A token id or a list of token ids.
    ///
    /// # Errors
    /// `Invalid` for another value.
    pub fn tokens(&self, name: &str) -> Result<Vec<i64>> {
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let ids: Option<Vec<i64>> = list.iter().map(Value::as_i64).collect();
        ids.ok_or_else(|| self.invalid(name, format!("{value} is not a list of token ids")))
    }

    /// The token that starts a decoding.
    ///
    /// # Errors
    /// `Invalid` when no file names it.
    pub fn start(&self) -> Result<i64> {
        let start = match self.token("decoder_start_token_id")? {
            None => self.token("bos_token_id")?,
            start => start,
        };
        start.ok_or_else(|| self.invalid("decoder_start_token_id", "a token id is required"))
    }

    /// These parameters for texts with timestamps, and the rules of timestamps. `None` for a model without them.
    ///
    /// # Errors
    /// `Invalid` for a value that is neither a token id nor a number of steps.
    pub fn with_timestamps(&self) -> Result<Option<(Self, Timestamps)>> {
        let Some(none) = self.token("no_timestamps_token_id")? else { return Ok(None) };
        let end = self.tokens("eos_token_id")?.first().copied();
        let end = end.ok_or_else(|| self.invalid("eos_token_id", "a token id is required"))?;
        let initial_max = self.length("max_initial_timestamp_index")?.and_then(|most| i64::try_from(most).ok());
        let timestamps = Timestamps { begin: none.saturating_add(1), none, end, initial_max };
        Ok(Some((Self { timestamps: Some(timestamps), ..self.clone() }, timestamps)))
    }

    /// A number.
    ///
    /// # Errors
    /// `Invalid` for another value.
    pub fn number(&self, name: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.invalid(name, format!("{value} is not a number")))
    }

    /// A count of tokens.
    ///
    /// # Errors
    /// `Invalid` for another value.
    pub fn length(&self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let length = value.as_u64().and_then(|length| usize::try_from(length).ok());
        length.map(Some).ok_or_else(|| self.invalid(name, format!("{value} is not a length")))
    }

    /// The parameters that would change the tokens and are not applied, as `name = value`.
    pub fn unapplied(&self) -> Vec<String> {
        let is_set = |name: &str| self.get(name).is_some_and(|value| *value != json!([]) && *value != json!(false));
        let numbers = UNAPPLIED
            .iter()
            .filter(|(name, neutral)| self.get(name).and_then(Value::as_f64).is_some_and(|n| n != *neutral));
        let numbers = numbers.map(|(name, _)| *name);
        let set = UNAPPLIED_IF_SET.iter().copied().filter(|name| is_set(name));
        numbers.chain(set).map(|name| format!("{name} = {}", self.values[name])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_are_not_applied_are_listed() {
        let config = |values: Value| {
            let values = values.as_object().unwrap().clone();
            GenerationConfig { values, file: FILE.into(), prefix: String::new(), timestamps: None }.unapplied()
        };
        assert!(config(json!({"num_beams": 1, "bad_words_ids": null, "top_k": 5, "typical_p": 1.0})).is_empty());
        assert_eq!(
            config(json!({"num_beams": 4, "stop_strings": ["."], "early_stopping": true})),
            ["num_beams = 4", "stop_strings = [\".\"]"]
        );
    }
}
