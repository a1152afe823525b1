//! Pipelines and their users, as files and programs describe them.
//!
//! An option of a task is a field of [`User`], which states its unit and default; `check_task` names the tasks that read it. Its flag is in
//! `args/models.rs` of cotensor-cli, and its type for TypeScript in web/src/models/model.ts.

use super::options::{field_names, read_options};
use cotensor_core::{Error, Result};
use cotensor_preprocess::family::{AnswerKind, Family, Medium, Task, TextLimit, variant};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::path::PathBuf;

/// The most users of a pipeline.
const USERS_MAX: usize = 256;
/// The most texts of a user.
const TEXTS_MAX: usize = 1024;
/// The most new tokens of a user.
pub(crate) const NEW_TOKENS_MAX: usize = 1 << 16;

/// A pipeline, as described by a TOML file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// The display name.
    #[serde(default)]
    pub name: String,
    /// The users, in the order in which they run.
    #[serde(rename = "user", default)]
    pub users: Vec<User>,
}

/// The fields of a user beside the options of its task.
const IDENTITY: [&str; 5] = ["name", "model", "variant", "task", "encoder"];

/// One user of a model: which task it runs, and the options of the task. This is the only list of them: files of pipelines, calls
/// of functions, Python, the command and the browser are read into it by the names of its fields. The functions take them by
/// position in this order.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct User {
    /// The name, unique in the pipeline.
    pub name: String,
    /// The folder of the model, relative to the pipeline file, or its name on the hub.
    pub model: String,
    /// The variant of the model's graphs, such as `fp16`. By default, each graph is the first variant that the model has.
    pub variant: Option<String>,
    /// The task.
    pub task: String,
    /// The encoder of another model, whose output replaces that of the task's own encoder, which is neither loaded nor
    /// run. By default, the model's own.
    pub encoder: Option<EncoderOf>,
    /// The user's own texts: labels to choose from, captions to rank. By default, the task reads the input text.
    pub texts: Vec<String>,
    /// The head graph, `onnx/HEAD.onnx` in the model's folder, for tasks with a head. By default `head`, or the head that the
    /// model's graph has.
    pub head: Option<String>,
    /// The name of a prompt in the model's config_sentence_transformers.json, for sentence embeddings: `query`,
    /// `document`. By default, the file's default prompt applies.
    pub prompt_name: Option<String>,
    /// Whether the text is the message of a user, which the model's chat template makes a prompt, instead of a text to
    /// continue. By default, a text about an image that does not have the image's token is a message.
    pub chat: Option<bool>,
    /// The most tokens to decode, 1 to 65,536. By default as the model's files state, else 256.
    pub max_new_tokens: Option<usize>,
    /// The fewest tokens to decode before the end token counts. By default as the model's files state, else 0.
    pub min_new_tokens: Option<usize>,
    /// Whether tokens are drawn. By default, they are drawn if another option of sampling is given, or if the model's
    /// generation_config.json wants it.
    pub do_sample: Option<bool>,
    /// The scores are divided by it before a token is drawn; above 0. By default as the model's files state, else 1.
    pub temperature: Option<f32>,
    /// The number of likeliest tokens among which one is drawn; 0 for all. By default as the model's files state, else 50.
    pub top_k: Option<usize>,
    /// Tokens are drawn among the likeliest whose probabilities sum to this, above 0 and at most 1. By default as the model's
    /// files state, else 1.
    pub top_p: Option<f32>,
    /// The seed of the draws; 0 by default. Equal seeds give equal texts.
    pub seed: Option<u64>,
    /// The score above which an object is part of the answer, 0 to 1; 0.5 by default.
    pub threshold: Option<f32>,
}

/// The encoder of another model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EncoderOf {
    /// The folder of the model, relative to the pipeline file, or its name on the hub.
    pub model: String,
    /// The variant of the model's graphs.
    pub variant: Option<String>,
    /// The file of the adapter between the spaces of the two encoders, relative to the pipeline file. Without a file, the
    /// store has the adapter. Encoders of equal spaces need none.
    pub adapter: Option<PathBuf>,
}

impl Pipeline {
    /// Reads a pipeline from TOML.
    ///
    /// # Errors
    /// `Corrupt` for a text that is not TOML or has unknown fields, `Invalid` for a value out of bounds; the error names
    /// the field.
    pub fn parse(text: &str) -> Result<Self> {
        let pipeline: Pipeline = toml::from_str(text).map_err(|error| Error::corrupt(error.to_string().trim_end()))?;
        pipeline.validated()
    }

    /// A pipeline of one user.
    ///
    /// # Errors
    /// `Invalid` for a value out of bounds.
    pub fn of(user: User) -> Result<Self> {
        Self { name: user.model.clone(), users: vec![user] }.validated()
    }

    fn validated(self) -> Result<Self> {
        let invalid = |field: String, message: String| Err(Error::invalid(message).in_field(field));
        if self.users.is_empty() || self.users.len() > USERS_MAX {
            return invalid("user".into(), format!("{} users; 1 to {USERS_MAX} are supported", self.users.len()));
        }
        let mut names = HashSet::new();
        for (index, user) in self.users.iter().enumerate() {
            let field = |name: &str| format!("user[{index}].{name}");
            if user.name.is_empty() || !names.insert(user.name.as_str()) {
                return invalid(field("name"), format!("{:?} is empty or taken", user.name));
            }
            if user.model.is_empty() {
                return invalid(field("model"), "a folder or a name is required".into());
            }
            if user.task.is_empty() {
                return invalid(field("task"), "the name of a task is required".into());
            }
            if user.encoder.as_ref().is_some_and(|encoder| encoder.model.is_empty()) {
                return invalid(field("encoder.model"), "a folder or a name is required".into());
            }
            let variants = [
                ("variant", user.variant.as_ref()),
                ("encoder.variant", user.encoder.as_ref().and_then(|of| of.variant.as_ref())),
            ];
            for (name, chosen) in variants.into_iter().filter_map(|(name, chosen)| Some((name, chosen?))) {
                variant(chosen).map_err(|error| Error::invalid(error.message()).in_field(field(name)))?;
            }
            user.check_limits(&format!("user[{index}]"))?;
        }
        Ok(self)
    }
}

impl User {
    /// The names of the options of tasks.
    pub fn option_names() -> Vec<&'static str> {
        field_names::<Self>().iter().copied().filter(|name| !IDENTITY.contains(name)).collect()
    }

    /// A user without a name, a model and a task, with the options `given`.
    ///
    /// # Errors
    /// `Invalid` for an unknown option and for a value of another type; the error names the option.
    pub fn with_options(given: &Map<String, Value>) -> Result<Self> {
        let known = Self::option_names();
        match given.keys().find(|name| !known.contains(&name.as_str())) {
            Some(unknown) => {
                Err(Error::invalid(format!("unknown option; the options are {}", known.join(", "))).in_field(unknown))
            }
            None => read_options(given),
        }
    }

    /// Whether the task reads the input of type `medium`. True for a task that the family does not have or that cannot take
    /// the user's texts: running it gives the error.
    pub fn reads(&self, family: &Family, medium: Medium) -> bool {
        let Ok(task) = family.task(&self.task) else { return true };
        let own_texts = match task.text_limit() {
            TextLimit::None => false,
            TextLimit::One => self.texts.len() == 1,
            // A reranker reads the input text beside the user's texts.
            TextLimit::Many => !self.texts.is_empty() && task.answer != AnswerKind::Scores,
        };
        family.reads(task, medium) && !(own_texts && medium == Medium::Text)
    }

    /// The texts of the user, or the input text if the user has none.
    ///
    /// # Errors
    /// `Invalid` without a text.
    pub fn texts_or<'a>(&'a self, input: Result<&'a str>) -> Result<Vec<&'a str>> {
        match self.texts.as_slice() {
            [] => Ok(vec![input?]),
            texts => Ok(texts.iter().map(String::as_str).collect()),
        }
    }

    /// Checks the bounds of lists and counts. `field` names the user in errors.
    ///
    /// # Errors
    /// `Invalid` for a value out of bounds; the error names the field.
    pub fn check_limits(&self, field: &str) -> Result<()> {
        if self.texts.len() > TEXTS_MAX {
            let message = format!("{} texts; at most {TEXTS_MAX}", self.texts.len());
            return Err(Error::invalid(message).in_field(format!("{field}.texts")));
        }
        if let Some(threshold) = self.threshold.filter(|threshold| !(0.0..=1.0).contains(threshold)) {
            let message = format!("{threshold} is not between 0 and 1");
            return Err(Error::invalid(message).in_field(format!("{field}.threshold")));
        }
        let (min, max) = (self.min_new_tokens.unwrap_or(0), self.max_new_tokens.unwrap_or(NEW_TOKENS_MAX));
        if max == 0 || max > NEW_TOKENS_MAX {
            let message = format!("{max} tokens; 1 to {NEW_TOKENS_MAX} are supported");
            return Err(Error::invalid(message).in_field(format!("{field}.max_new_tokens")));
        }
        if min > max {
            let message = format!("the minimum of {min} tokens exceeds the maximum of {max}");
            return Err(Error::invalid(message).in_field(format!("{field}.min_new_tokens")));
        }
        Ok(())
    }

    /// The first given option that needs sampling.
    pub(crate) fn sampling_option(&self) -> Option<&'static str> {
        let temperature = self.temperature.map(|_| "temperature");
        temperature.or(self.top_k.map(|_| "top_k")).or(self.top_p.map(|_| "top_p")).or(self.seed.map(|_| "seed"))
    }

    /// Refuses options that `task` does not read.
    ///
    /// # Errors
    /// `Invalid`; the error names the option.
    pub fn check_task(&self, task: &Task) -> Result<()> {
        let refuse = |option: &str, message: &str| {
            Err(Error::invalid(format!("{} {message}", self.task)).in_field(format!("{}.{option}", self.name)))
        };
        if self.head.is_some() && !task.head {
            return refuse("head", "has no head");
        }
        let has_limit = self.max_new_tokens.is_some() || self.min_new_tokens.is_some();
        let of_decoding = has_limit.then_some("max_new_tokens").or(self.do_sample.map(|_| "do_sample"));
        if let Some(option) = of_decoding.or(self.sampling_option()).filter(|_| !task.answer.is_decoded()) {
            return refuse(option, "decodes no text");
        }
        if self.prompt_name.is_some() && task.answer != AnswerKind::Sentence {
            return refuse("prompt_name", "reads no prompt");
        }
        if self.chat.is_some() && !task.prompt {
            return refuse("chat", "continues no text");
        }
        if self.encoder.is_some() && task.answer == AnswerKind::Scores {
            return refuse("encoder", "reads pairs of texts, which no other encoder has");
        }
        if self.texts.is_empty() && task.answer == AnswerKind::Scores {
            return refuse("texts", "needs texts, which it scores against the input text");
        }
        if self.threshold.is_some() && task.answer != AnswerKind::Objects {
            return refuse("threshold", "finds no objects");
        }
        match task.text_limit() {
            _ if self.texts.is_empty() => Ok(()),
            TextLimit::None => refuse("texts", "reads no text"),
            TextLimit::One if self.texts.len() > 1 => refuse("texts", "reads one text"),
            TextLimit::One | TextLimit::Many => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pipeline_is_parsed_and_invalid_fields_are_named() {
        let good = "[[user]]\nname='a'\nmodel='m'\ntask='sentence-embedding'\n";
        assert_eq!(Pipeline::parse(good).unwrap().users.len(), 1);
        for (bad, names) in [
            ("", "user"),
            ("[[user]]\nname='a'\n", "model"),
            ("[[user]]\nname='a'\nmodel='m'\n", "user[0].task"),
            ("[[user]]\nname=''\nmodel='m'\ntask='t'\n", "user[0].name"),
            (&format!("{good}{good}")[..], "user[1].name"),
            (&format!("{good}colour='red'\n")[..], "colour"),
            (&format!("{good}max_new_tokens=0\n")[..], "max_new_tokens"),
            (&format!("{good}max_new_tokens=-1\n")[..], "max_new_tokens"),
            (&format!("{good}max_new_tokens=3\nmin_new_tokens=4\n")[..], "min_new_tokens"),
            (&format!("{good}threshold=1.5\n")[..], "user[0].threshold"),
            (&format!("{good}threshold=nan\n")[..], "user[0].threshold"),
            (&format!("{good}variant='fp15'\n")[..], "user[0].variant"),
            (&format!("{good}[user.encoder]\nmodel='m'\nvariant='fp15'\n")[..], "user[0].encoder.variant"),
            ("[[user", "TOML"),
        ] {
            let error = Pipeline::parse(bad).unwrap_err().to_string();
            assert!(error.contains(names), "{bad:?} gave {error:?}");
        }
    }

    #[test]
    fn options_are_read_by_name_and_wrong_ones_are_named() {
        let read = |options: Value| User::with_options(options.as_object().unwrap());
        let user = read(json!({"top_k": 3, "temperature": 2, "seed": null})).unwrap();
        assert_eq!((user.top_k, user.temperature, user.seed), (Some(3), Some(2.0), None));
        for (wrong, field, message) in [
            (json!({"colour": 1}), "colour", "unknown option; the options are texts, head, prompt_name"),
            (json!({"model": "m"}), "model", "unknown option"),
            (json!({"top_k": 1.5}), "top_k", "an integer of 0 or more is required, not 1.5"),
            (json!({"seed": -1}), "seed", "an integer of 0 or more is required, not -1"),
            (json!({"do_sample": "yes"}), "do_sample", "true or false is required, not yes"),
            (json!({"top_p": 1, "threshold": "NaN"}), "threshold", "a number is required, not NaN"),
            (json!({"head": 1}), "head", "a string is required, not 1"),
            (json!({"texts": "one"}), "texts", "a list is required, not one"),
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.field() == Some(field) && error.message().starts_with(message), "{error}");
        }
    }
}
