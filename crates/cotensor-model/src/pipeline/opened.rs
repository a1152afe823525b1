//! Pipelines in files, and the models that their users name.

use super::inputs::Inputs;
use crate::folder::read_bounded;
use crate::model::{Model, Runtime};
use cotensor_core::{Error, Result};
use cotensor_pipeline::{EncoderOf, Pipeline, User};
use cotensor_preprocess::family::{Medium, Task};
use std::path::Path;
use std::sync::Arc;

/// The most bytes of a pipeline file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads a pipeline file.
///
/// # Errors
/// As [`Pipeline::parse`]; `NotFound`, `Io`, `Invalid` past the size limit.
pub fn open_pipeline(path: &Path) -> Result<Pipeline> {
    let bytes = read_bounded(path, FILE_BYTES_MAX)?;
    let text = String::from_utf8(bytes).map_err(|_| Error::corrupt("not UTF-8").in_file(path))?;
    Pipeline::parse(&text).map_err(|error| error.in_file(path))
}

/// Opens the model of a user. Its folder is relative to `base`.
///
/// # Errors
/// As [`Runtime::open_variant`].
pub fn model_of_user(user: &User, base: &Path, runtime: &Arc<Runtime>) -> Result<Arc<Model>> {
    runtime.open_variant(Path::new(&user.model), base, user.variant.as_deref())
}

/// Opens the model of an encoder. Its folder is relative to `base`.
///
/// # Errors
/// As [`Runtime::open_variant`].
pub fn model_of_encoder(encoder: &EncoderOf, base: &Path, runtime: &Arc<Runtime>) -> Result<Arc<Model>> {
    runtime.open_variant(Path::new(&encoder.model), base, encoder.variant.as_deref())
}

/// The task of `model` that reads inputs of exactly the types `given`: that of the class in config.json, else the first of
/// the family that needs no head.
///
/// # Errors
/// `Invalid` when no task fits; the message lists the tasks of the model and their inputs.
pub fn default_task(model: &Model, given: &[Medium]) -> Result<&'static Task> {
    cotensor_pipeline::default_task(&model.model_config(), &model.name(), given, false)
}

/// The task of `model` that reads exactly what a user gives: `inputs`, and the user's own `texts`. Texts beside a text of the
/// inputs mean a task that compares them with it.
///
/// # Errors
/// As [`default_task`].
pub fn task_of_inputs(model: &Model, inputs: &Inputs, texts: &[String]) -> Result<&'static Task> {
    let mut media = inputs.media();
    let has_pairs = media.contains(&Medium::Text) && !texts.is_empty();
    if !texts.is_empty() && !has_pairs {
        media.push(Medium::Text);
    }
    cotensor_pipeline::default_task(&model.model_config(), &model.name(), &media, has_pairs)
}
