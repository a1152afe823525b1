//! Where a model's folder says how its images and sounds are preprocessed.

use crate::folder::{find_json, read_json};
use cotensor_core::Result;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The file of a single processor.
const OWN_FILE: &str = "preprocessor_config.json";
/// The file in which transformers 5 keeps all processors of a model.
const COMMON_FILE: &str = "processor_config.json";

/// The configuration of one processor, and the file that has it: `part` of processor_config.json where there is one, else
/// preprocessor_config.json. That is the order in which transformers looks.
///
/// # Errors
/// `NotFound` without either, `Corrupt` for no JSON.
pub(super) fn read(folder: &Path, part: &str) -> Result<(Value, PathBuf)> {
    let common = folder.join(COMMON_FILE);
    if let Some(Value::Object(mut parts)) = find_json(&common)?
        && let Some(config) = parts.shift_remove(part)
    {
        return Ok((config, common));
    }
    let own = folder.join(OWN_FILE);
    Ok((read_json(&own)?, own))
}

/// The name of the processor's class as current versions of transformers spell it: without `Fast`, and without
/// `FeatureExtractor`, as image processors were called first.
pub(super) fn class(config: &Value) -> Option<String> {
    let text = |field: &str| config.get(field).and_then(Value::as_str);
    let name = match text("image_processor_type") {
        Some(name) => name.to_owned(),
        None => text("feature_extractor_type")?.replace("FeatureExtractor", "ImageProcessor"),
    };
    let plain = name.strip_suffix("Fast").or_else(|| name.strip_suffix("Pil")).unwrap_or(&name);
    Some(plain.to_owned())
}
