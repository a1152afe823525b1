use crate::model::Model;
use cotensor_core::{Error, Result};

/// The special tokens and the lengths in generation_config.json.
pub(super) struct Special {
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) languages: Vec<(String, i64)>,
    pub(super) transcribe: Option<i64>,
    pub(super) no_timestamps: Option<i64>,
    pub(super) suppressed: Vec<i64>,
    pub(super) suppressed_first: Vec<i64>,
    pub(super) lengths: Lengths,
}

/// The lengths in generation_config.json, in tokens. `max` and `min` include the prompt; they count only without
/// `max_new` and `min_new`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lengths {
    max_new: Option<usize>,
    max: Option<usize>,
    min_new: Option<usize>,
    min: Option<usize>,
}

impl Lengths {
    /// The fewest and the most new tokens after a prompt of `prompt` tokens, if they are configured.
    pub(super) fn after(self, prompt: usize) -> (Option<usize>, Option<usize>) {
        let new = |whole: usize| whole.saturating_sub(prompt);
        (self.min_new.or(self.min.map(new)), self.max_new.or(self.max.map(new)))
    }
}

impl Special {
    pub(super) fn of(model: &Model) -> Result<Self> {
        const FILE: &str = "generation_config.json";
        let file = model.folder().join(FILE);
        let config = model.json(FILE)?.ok_or_else(|| Error::not_found("decoding needs this file").in_file(&file))?;
        let token = |name: &str| config.get(name).and_then(serde_json::Value::as_i64);
        let required = |name: &str| {
            token(name).ok_or_else(|| Error::invalid("a token id is required").in_file(&file).in_field(name))
        };
        let length = |name: &str| match config.get(name) {
            None | Some(serde_json::Value::Null) => Ok(None),
            Some(value) => value
                .as_u64()
                .and_then(|length| usize::try_from(length).ok())
                .map(Some)
                .ok_or_else(|| Error::invalid(format!("{value} is not a length")).in_file(&file).in_field(name)),
        };
        let list = |name: &str| -> Vec<i64> {
            let ids = config.get(name).and_then(serde_json::Value::as_array);
            ids.into_iter().flatten().filter_map(serde_json::Value::as_i64).collect()
        };
        let of_map = |name: &str| -> Vec<(String, i64)> {
            let ids = config.get(name).and_then(serde_json::Value::as_object);
            ids.into_iter().flatten().filter_map(|(key, id)| Some((key.clone(), id.as_i64()?))).collect()
        };
        Ok(Self {
            start: required("decoder_start_token_id")?,
            end: required("eos_token_id")?,
            languages: of_map("lang_to_id"),
            transcribe: of_map("task_to_id").into_iter().find(|(task, _)| task == "transcribe").map(|(_, id)| id),
            no_timestamps: token("no_timestamps_token_id"),
            suppressed: list("suppress_tokens"),
            suppressed_first: list("begin_suppress_tokens"),
            lengths: Lengths {
                max_new: length("max_new_tokens")?,
                max: length("max_length")?,
                min_new: length("min_new_tokens")?,
                min: length("min_length")?,
            },
        })
    }
}
