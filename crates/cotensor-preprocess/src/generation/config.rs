use super::sampling::Sampling;
use super::settings::Settings;
use super::timestamps::Timestamps;
use crate::family::{CONFIG_FILE, ModelConfig};
use cotensor_core::{Error, Result};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

/// The file with the parameters of generation.
pub const FILE: &str = "generation_config.json";
/// The most new tokens when neither the user nor the model sets a limit: the default of transformers' text generation.
const DEFAULT_NEW_TOKENS: usize = 256;
/// The most new tokens of a request.
pub const NEW_TOKENS_MAX: usize = 1 << 16;

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
pub struct GenerationConfig {
    values: Map<String, Value>,
    file: PathBuf,
    /// What the task puts before the text.
    prefix: String,
    timestamps: Option<Timestamps>,
}

/// What a user requests of a decoding; `None` for the parameters of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Request<'a> {
    /// The user's name, for error messages.
    pub user: &'a str,
    /// The most tokens.
    pub max_new_tokens: Option<usize>,
    /// The fewest tokens before an end token counts.
    pub min_new_tokens: Option<usize>,
    /// Whether tokens are drawn.
    pub do_sample: Option<bool>,
    /// See [`Sampling::temperature`].
    pub temperature: Option<f32>,
    /// See [`Sampling::top_k`].
    pub top_k: Option<usize>,
    /// See [`Sampling::top_p`].
    pub top_p: Option<f32>,
    /// See [`Sampling::seed`].
    pub seed: Option<u64>,
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
    pub fn with_timestamps(mut self) -> Result<Option<(Self, Timestamps)>> {
        let Some(none) = self.token("no_timestamps_token_id")? else { return Ok(None) };
        let end = self.tokens("eos_token_id")?.first().copied();
        let end = end.ok_or_else(|| self.invalid("eos_token_id", "a token id is required"))?;
        let initial_max = self.length("max_initial_timestamp_index")?.and_then(|most| i64::try_from(most).ok());
        let timestamps = Timestamps { begin: none.saturating_add(1), none, end, initial_max };
        self.timestamps = Some(timestamps);
        Ok(Some((self, timestamps)))
    }

    fn number(&self, name: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.invalid(name, format!("{value} is not a number")))
    }

    fn length(&self, name: &str) -> Result<Option<usize>> {
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

    /// The settings of a decoding after a prompt of `prompt` tokens, and the origin of the maximum. `positions` is the
    /// most tokens that the model reads.
    ///
    /// # Errors
    /// `Invalid` for a value out of range; the error names the user's option, or file and field.
    pub fn settings(
        &self,
        request: &Request<'_>,
        prompt: usize,
        positions: Option<usize>,
    ) -> Result<(Settings, String)> {
        let room = positions.map_or(usize::MAX, |positions| positions.saturating_sub(prompt)).min(NEW_TOKENS_MAX);
        // `max_length` and `min_length` include the prompt; they count only without the others.
        let new = |whole: usize| whole.saturating_sub(prompt);
        let file = self.file.file_name().unwrap_or_default().display();
        let configured_max = match (self.length("max_new_tokens")?, self.length("max_length")?) {
            (Some(max), _) => Some((max, format!("max_new_tokens = {max} in {file}"))),
            (None, Some(whole)) => Some((new(whole), format!("max_length = {whole} with the prompt in {file}"))),
            (None, None) => None,
        };
        let configured_min = self.length("min_new_tokens")?.or(self.length("min_length")?.map(new));
        let (max, reason) = match (request.max_new_tokens, configured_max) {
            (Some(max), _) => (max, "max_new_tokens".to_owned()),
            (None, Some((max, origin))) if max <= room => (max, origin),
            (None, None) if DEFAULT_NEW_TOKENS <= room => {
                (DEFAULT_NEW_TOKENS.max(request.min_new_tokens.unwrap_or(0)).min(room), "the default length".to_owned())
            }
            (None, _) => (room, "the model's positions".to_owned()),
        };
        let min = request.min_new_tokens.unwrap_or_else(|| configured_min.unwrap_or(0).min(max));
        if max > room || min > max || max == 0 {
            let limit = match positions {
                _ if max < room && request.max_new_tokens.is_none() => {
                    format!("the limit is {reason}: give max_new_tokens")
                }
                Some(positions) => format!("the model has room for {room}, as it reads {positions} tokens"),
                None => format!("at most {room} are decoded"),
            };
            let message = format!("{min} to {max} tokens after a prompt of {prompt}; {limit}");
            return Err(Error::invalid(message).in_field(format!("{}.max_new_tokens", request.user)));
        }
        let repetition_penalty = self.number("repetition_penalty")?.unwrap_or(1.0) as f32;
        if !(repetition_penalty > 0.0 && repetition_penalty.is_finite()) {
            return Err(self.invalid("repetition_penalty", "a number above 0 is required"));
        }
        let settings = Settings {
            min,
            max,
            ends: self.tokens("eos_token_id")?,
            forced_first: self.token("forced_bos_token_id")?,
            forced_last: self.tokens("forced_eos_token_id")?,
            suppressed: self.tokens("suppress_tokens")?,
            suppressed_first: self.tokens("begin_suppress_tokens")?,
            repetition_penalty,
            no_repeat_ngram: self.length("no_repeat_ngram_size")?.unwrap_or(0),
            timestamps: self.timestamps,
            sampling: self.sampling(request)?,
        };
        Ok((settings, reason))
    }

    /// How tokens are drawn. A user who gives a parameter of sampling wants it.
    fn sampling(&self, request: &Request<'_>) -> Result<Option<Sampling>> {
        let refuse =
            |option: &str, message: &str| Err(Error::invalid(message).in_field(format!("{}.{option}", request.user)));
        let given = [
            ("temperature", request.temperature.is_some()),
            ("top_k", request.top_k.is_some()),
            ("top_p", request.top_p.is_some()),
            ("seed", request.seed.is_some()),
        ];
        let given = given.iter().find(|(_, given)| *given);
        match (request.do_sample, given) {
            (Some(false), Some((option, _))) => return refuse(option, "it has no effect without sampling (do_sample)"),
            (Some(false), None) => return Ok(None),
            (None, None) if self.get("do_sample").and_then(Value::as_bool) != Some(true) => return Ok(None),
            _ => {}
        }
        let default = Sampling::default();
        let number = |name: &str, default: f32| Ok::<_, Error>(self.number(name)?.map_or(default, |n| n as f32));
        let sampling = Sampling {
            temperature: request.temperature.map_or_else(|| number("temperature", default.temperature), Ok)?,
            top_k: request.top_k.map_or_else(|| Ok(self.length("top_k")?.unwrap_or(default.top_k)), Ok::<_, Error>)?,
            top_p: request.top_p.map_or_else(|| number("top_p", default.top_p), Ok)?,
            min_p: number("min_p", default.min_p)?,
            seed: request.seed.unwrap_or(default.seed),
        };
        if !(sampling.temperature > 0.0 && sampling.temperature.is_finite()) {
            return refuse(
                "temperature",
                "a number above 0 is required; without sampling, the likeliest token is chosen",
            );
        }
        if !(sampling.top_p > 0.0 && sampling.top_p <= 1.0) {
            return refuse("top_p", "a number above 0 and at most 1 is required");
        }
        if !(0.0..=1.0).contains(&sampling.min_p) {
            return Err(self.invalid("min_p", "a number from 0 to 1 is required"));
        }
        Ok(Some(sampling))
    }
}

#[cfg(test)]
impl GenerationConfig {
    pub(super) fn of_values(values: Value) -> Self {
        let Value::Object(values) = values else { panic!("an object") };
        Self { values, file: PathBuf::from(FILE), prefix: String::new(), timestamps: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(values: Value, request: Request<'_>) -> Result<Settings> {
        GenerationConfig::of_values(values).settings(&request, 4, Some(100)).map(|(settings, _)| settings)
    }

    #[test]
    fn lengths_of_the_user_come_before_those_of_the_model() {
        let lengths = |values, max_new_tokens| {
            let settings = settings(values, Request { user: "u", max_new_tokens, ..Request::default() })?;
            Ok::<_, Error>((settings.min, settings.max))
        };
        // The default does not fit the positions.
        assert_eq!(lengths(json!({}), None).unwrap(), (0, 96));
        assert_eq!(lengths(json!({"max_length": 20, "min_length": 6}), None).unwrap(), (2, 16));
        assert_eq!(lengths(json!({"max_length": 20, "max_new_tokens": 9}), None).unwrap(), (0, 9));
        assert_eq!(lengths(json!({"max_length": 20, "min_length": 30}), Some(5)).unwrap(), (5, 5));
        assert_eq!(lengths(json!({}), Some(97)).unwrap_err().field(), Some("u.max_new_tokens"));
        assert_eq!(lengths(json!({"max_length": -1}), None).unwrap_err().field(), Some("max_length"));
        let error = lengths(json!({"max_length": 3}), None).unwrap_err().to_string();
        assert!(
            error.contains("max_length = 3 with the prompt in generation_config.json: give max_new_tokens"),
            "{error}"
        );
        let error = lengths(json!({"max_length": 3}), Some(97)).unwrap_err().to_string();
        assert!(error.contains("room for 96, as it reads 100 tokens") && !error.contains("max_length"), "{error}");
    }

    #[test]
    fn prompt_beyond_the_positions_is_refused_with_their_number() {
        let config = GenerationConfig::of_values(json!({"max_length": 20}));
        let request = Request { user: "u", ..Request::default() };
        let error = config.settings(&request, 101, Some(100)).unwrap_err().to_string();
        assert!(error.contains("room for 0, as it reads 100 tokens"), "{error}");
    }

    #[test]
    fn sampling_is_on_if_the_model_or_the_user_wants_it() {
        let sampling = |values, request: Request<'_>| settings(values, request).map(|settings| settings.sampling);
        let none = Request { user: "u", ..Request::default() };
        assert_eq!(sampling(json!({"temperature": 0.5}), none).unwrap(), None);
        let llama = json!({"do_sample": true, "temperature": 0.5, "top_p": 0.75, "eos_token_id": [7, 8]});
        let expected = Sampling { temperature: 0.5, top_p: 0.75, ..Sampling::default() };
        assert_eq!(sampling(llama.clone(), none).unwrap(), Some(expected));
        assert_eq!(settings(llama.clone(), none).unwrap().ends, [7, 8]);
        assert_eq!(sampling(llama.clone(), Request { do_sample: Some(false), ..none }).unwrap(), None);
        let own = Request { top_k: Some(0), seed: Some(3), ..none };
        assert_eq!(sampling(llama.clone(), own).unwrap(), Some(Sampling { top_k: 0, seed: 3, ..expected }));
        let request = Request { do_sample: Some(false), seed: Some(1), ..none };
        assert_eq!(sampling(llama, request).unwrap_err().field(), Some("u.seed"));
        for (request, field) in [
            (Request { temperature: Some(0.0), ..none }, "u.temperature"),
            (Request { temperature: Some(f32::NAN), ..none }, "u.temperature"),
            (Request { top_p: Some(0.0), ..none }, "u.top_p"),
            (Request { top_p: Some(1.5), ..none }, "u.top_p"),
        ] {
            assert_eq!(sampling(json!({}), request).unwrap_err().field(), Some(field));
        }
        assert_eq!(sampling(json!({"do_sample": true, "min_p": 2}), none).unwrap_err().field(), Some("min_p"));
    }

    #[test]
    fn parameters_that_are_not_applied_are_listed() {
        let config = |values| GenerationConfig::of_values(values).unapplied();
        assert!(config(json!({"num_beams": 1, "bad_words_ids": null, "top_k": 5, "typical_p": 1.0})).is_empty());
        assert_eq!(
            config(json!({"num_beams": 4, "stop_strings": ["."], "early_stopping": true})),
            ["num_beams = 4", "stop_strings = [\".\"]"]
        );
    }
}
