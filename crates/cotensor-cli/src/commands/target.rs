//! What `run` runs: a pipeline's file, or one task of a model.

use super::pipeline::in_pipeline;
use crate::args::RunArgs;
use cotensor::core::{Error, Result};
use cotensor::model::family::{AnswerKind, Medium, Task};
use cotensor::model::model::Model;
use cotensor::model::pipeline::{default_task, open_pipeline};
use cotensor::{Pipeline, Runtime, User};
use std::path::Path;
use std::sync::Arc;

/// The name of the only user of a model's task, in reports.
const USER: &str = "answer";

/// What `run` runs.
pub(super) enum Target<'a> {
    Pipeline {
        file: &'a Path,
        pipeline: Pipeline,
    },
    /// A folder, or a name on the hub.
    Model(&'a Path),
}

impl<'a> Target<'a> {
    /// A file, and a name that ends in `.toml`, is a pipeline; anything else is a model.
    ///
    /// # Errors
    /// As [`open_pipeline`]; `Invalid` for options that only a model's task has.
    pub(super) fn of(args: &'a RunArgs) -> Result<Self> {
        let path = args.target.as_path();
        let is_toml = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml")) && !path.is_dir();
        if !is_toml && !path.is_file() {
            return Ok(Self::Model(path));
        }
        let of_model =
            [("TASK", args.task.is_some()), ("--variant", args.variant.is_some()), ("--stream", args.stream)];
        let of_model = of_model.into_iter().filter(|(_, given)| *given).map(|(option, _)| option.to_owned());
        let options = args.options.given().into_iter().map(|(name, _)| format!("--{}", name.replace('_', "-")));
        if let Some(option) = of_model.chain(options).next() {
            return Err(Error::invalid("the users of a pipeline state this in its file").in_field(option));
        }
        if args.text.len() > 1 {
            return Err(Error::invalid("a pipeline reads one text").in_field("--text"));
        }
        Ok(Self::Pipeline { file: path, pipeline: open_pipeline(path)? })
    }

    /// The pipeline; for a model, its task with the options as the only user.
    ///
    /// # Errors
    /// `Invalid` for a task that the model does not have; as [`Runtime::open`].
    pub(super) fn pipeline(&self, args: &RunArgs, runtime: &Arc<Runtime>) -> Result<Pipeline> {
        match self {
            Self::Pipeline { pipeline, .. } => Ok(pipeline.clone()),
            Self::Model(path) => {
                let name = path.to_str().ok_or_else(|| Error::invalid("not UTF-8").in_file(path))?;
                let model = runtime.open_variant(path, Path::new(""), args.variant.as_deref())?;
                let task = task(args, &model)?;
                if args.stream && !task.answer.is_decoded() {
                    return Err(Error::invalid(format!("{} decodes no text", task.name)).in_field("--stream"));
                }
                let own_texts = match (&task.answer, args.text.as_slice()) {
                    (AnswerKind::Scores, [_query, texts @ ..]) => texts,
                    (_, [_]) if task.begins => &args.text,
                    (_, [] | [_]) => &[],
                    (_, labels) => labels,
                };
                Pipeline::of(User {
                    name: USER.to_owned(),
                    model: name.to_owned(),
                    variant: args.variant.clone(),
                    // As given: a translation's parameters are those of its languages.
                    task: args.task.clone().unwrap_or_else(|| task.name.clone()),
                    texts: own_texts.to_vec(),
                    ..User::with_options(&args.options.given())?
                })
            }
        }
    }

    /// The text that the users of `pipeline` read as input: the texts of the arguments without those of the model's user.
    pub(super) fn input_text<'b>(&self, args: &'b RunArgs, pipeline: &Pipeline) -> Option<&'b str> {
        let own_texts = match self {
            Self::Pipeline { .. } => 0,
            Self::Model(_) => pipeline.users.iter().map(|user| user.texts.len()).sum(),
        };
        if own_texts < args.text.len() { args.text.first().map(String::as_str) } else { None }
    }

    /// The folder to which the models' folders are relative.
    pub(super) fn base(&self) -> &Path {
        match self {
            Self::Pipeline { file, .. } => file.parent().unwrap_or(Path::new("")),
            Self::Model(_) => Path::new(""),
        }
    }

    /// Adds the pipeline's file to an `Invalid` error.
    pub(super) fn in_file(&self, error: Error) -> Error {
        match self {
            Self::Pipeline { file, .. } => in_pipeline(error, file),
            Self::Model(_) => error,
        }
    }
}

/// The task that the arguments name, or that the inputs mean.
fn task<'a>(args: &RunArgs, model: &'a Model) -> Result<&'a Task> {
    match &args.task {
        Some(name) => model.family().task(name).map_err(|error| error.in_field("TASK")),
        None => {
            let given = [
                (Medium::Text, !args.text.is_empty()),
                (Medium::Image, args.image.is_some()),
                (Medium::Audio, args.audio.is_some()),
            ];
            let given: Vec<Medium> = given.into_iter().filter(|(_, given)| *given).map(|(medium, _)| medium).collect();
            default_task(model, &given).map_err(|error| error.in_field("TASK"))
        }
    }
}
