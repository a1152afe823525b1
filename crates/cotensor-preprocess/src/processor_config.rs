//! The configuration of a model's image and audio processors.

use crate::files::{ModelFiles, find_json, read_json};
use cotensor_core::Result;
use serde_json::Value;
use std::path::PathBuf;

/// The file of a single processor.
const OWN_FILE: &str = "preprocessor_config.json";
/// The file in which transformers 5 keeps all processors of a model.
const COMMON_FILE: &str = "processor_config.json";

/// The configuration of one processor, and the path of its file: `part` of processor_config.json, or
/// preprocessor_config.json when the former has no such part. transformers searches in the same order.
///
/// # Errors
/// `NotFound` without either file, `Corrupt` when a file is not JSON.
pub(crate) fn read(files: &dyn ModelFiles, part: &str) -> Result<(Value, PathBuf)> {
    if let Some(Value::Object(mut parts)) = find_json(files, COMMON_FILE)?
        && let Some(config) = parts.shift_remove(part)
    {
        return Ok((config, files.path(COMMON_FILE)));
    }
    Ok((read_json(files, OWN_FILE)?, files.path(OWN_FILE)))
}

/// The name of the processor's class as current versions of transformers spell it: without the suffixes `Fast` and
/// `Pil`, and with `ImageProcessor` in place of the former name `FeatureExtractor`.
pub(crate) fn class(config: &Value) -> Option<String> {
    let text = |field: &str| config.get(field).and_then(Value::as_str);
    let name = match text("image_processor_type") {
        Some(name) => name.to_owned(),
        None => text("feature_extractor_type")?.replace("FeatureExtractor", "ImageProcessor"),
    };
    let plain = name.strip_suffix("Fast").or_else(|| name.strip_suffix("Pil")).unwrap_or(&name);
    Some(plain.to_owned())
}
