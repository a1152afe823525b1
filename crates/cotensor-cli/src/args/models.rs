//! Arguments of the commands for models.

use super::RuntimeArgs;
use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Arg, Args, Command};
use cotensor::model::family::{tasks, variants};
use serde::Serialize;
use serde_json::{Map, Value};
use std::ffi::OsStr;
use std::path::PathBuf;

/// Run a pipeline: several users of models on the same input. Or run one task of a model.
#[derive(Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) runtime: RuntimeArgs,
    /// TOML file of a pipeline; or a model: its folder, or its name on the hub (OWNER/NAME or OWNER/NAME@REVISION), which
    /// is downloaded if the hub's cache lacks it.
    #[arg(value_name = "PIPELINE.toml|MODEL")]
    pub(crate) target: PathBuf,
    /// Task of the model [default: the task of the model's class, else the first that reads the given inputs].
    #[arg(value_parser = TaskName, hide_possible_values = true)]
    pub(crate) task: Option<String>,
    /// Text input, or the beginning of a caption. Repeatable for a task that ranks texts: labels and captions, or for a reranker the
    /// query and then the texts.
    #[arg(long, visible_alias = "prompt", value_name = "TEXT")]
    pub(crate) text: Vec<String>,
    /// Image input (PNG, JPEG, WebP, BMP).
    #[arg(long, value_name = "FILE")]
    pub(crate) image: Option<PathBuf>,
    /// Audio input (WAV, FLAC, MP3, Ogg Vorbis).
    #[arg(long, value_name = "FILE")]
    pub(crate) audio: Option<PathBuf>,
    /// Variant of the model's graphs, such as fp16, int8 or q4 [default: for each graph, the first that the model has].
    #[arg(long, value_name = "NAME", value_parser = variant_names(), hide_possible_values = true)]
    pub(crate) variant: Option<String>,
    #[command(flatten)]
    pub(crate) options: TaskOptions,
    /// Print the text while it is decoded, and nothing else; notices go to standard error.
    #[arg(long, conflicts_with_all = ["json", "compare"])]
    pub(crate) stream: bool,
    /// Also run without sharing, and print the largest difference of the outputs. Exit code 1 when they differ (on ort, by more than
    /// rounding: 0.00001).
    #[arg(long)]
    pub(crate) compare: bool,
}

/// The options of a task: fields of `User` with the same names.
#[derive(Args, Serialize)]
pub(crate) struct TaskOptions {
    /// Head of the model: its graph onnx/NAME.onnx.
    #[arg(long, value_name = "NAME")]
    head: Option<String>,
    /// Name of a prompt of the model, for sentence embeddings [default: the model's default prompt].
    #[arg(long, value_name = "NAME")]
    prompt_name: Option<String>,
    /// Answer the text as the message of a user, by the model's chat template, or continue it [default: true for a text about an
    /// image that does not have the image's token].
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    chat: Option<bool>,
    /// Maximum number of tokens to decode.
    #[arg(long, value_name = "N")]
    max_new_tokens: Option<usize>,
    /// Number of tokens to decode before the end token counts.
    #[arg(long, value_name = "N")]
    min_new_tokens: Option<usize>,
    /// Draw tokens, or choose the likeliest one [default: true if an option below is given, else as the model's
    /// generation_config.json states].
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    do_sample: Option<bool>,
    /// Divide the scores by this number before a token is drawn.
    #[arg(long, value_name = "T", value_parser = finite)]
    temperature: Option<f32>,
    /// Draw among this number of likeliest tokens; 0 for all.
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Draw among the likeliest tokens whose probabilities sum to this number.
    #[arg(long, value_name = "P", value_parser = finite)]
    top_p: Option<f32>,
    /// Seed of the draws: equal seeds give equal texts [default: 0].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Score above which an object counts, from 0 to 1 [default: 0.5].
    #[arg(long, value_name = "SCORE", value_parser = finite)]
    threshold: Option<f32>,
}

impl TaskOptions {
    /// The options that are given, by name.
    pub(crate) fn given(&self) -> Map<String, Value> {
        let Ok(Value::Object(mut options)) = serde_json::to_value(self) else { return Map::new() };
        options.retain(|_, value| !value.is_null());
        options
    }
}

fn finite(text: &str) -> Result<f32, String> {
    text.parse().ok().filter(|number: &f32| number.is_finite()).ok_or_else(|| "a finite number is required".to_owned())
}

/// Download a model from the hub into its cache.
///
/// Only the files that this program reads are downloaded: configuration, tokenizer and ONNX graphs. Other programs of the
/// hub, such as transformers, use the same cache (HF_HUB_CACHE, HF_HOME). HF_ENDPOINT is the hub's address, HF_TOKEN
/// the token for private and gated models; with HF_HUB_OFFLINE=1, the network is not used.
#[derive(Args)]
pub(crate) struct PullArgs {
    /// Name of the model: OWNER/NAME or OWNER/NAME@REVISION.
    pub(crate) model: String,
    /// Branch, tag or commit [default: main].
    #[arg(long, value_name = "REVISION")]
    pub(crate) revision: Option<String>,
    /// Variant of the graphs, such as fp16, int8 or q4 [default: for each graph, the first that the repository has].
    #[arg(long, value_name = "NAME", value_parser = variant_names(), hide_possible_values = true)]
    pub(crate) variant: Option<String>,
    /// Hash all files of the model again, also those that were verified since the machine started.
    #[arg(long)]
    pub(crate) verify: bool,
    /// Print one JSON object on standard output and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The variants of graphs. Other names of them are accepted, too.
fn variant_names() -> PossibleValuesParser {
    PossibleValuesParser::new(
        variants().iter().map(|variant| {
            PossibleValue::new(variant.name.as_str()).aliases(variant.aliases.iter().map(String::as_str))
        }),
    )
}

/// Accepts any task, because the error for an unknown one lists the tasks of the model. Completions offer all tasks.
#[derive(Clone)]
struct TaskName;

impl TypedValueParser for TaskName {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue>>> {
        let mut names: Vec<&str> = tasks().iter().map(|task| task.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        Some(Box::new(names.into_iter().map(PossibleValue::new)))
    }
}
