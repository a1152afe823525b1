//! The models of a scenario: checkpoints of the user, or made with seeded weights.

use crate::measure::Progress;
use crate::options::DemoOptions;
use crate::scenario::{Scenario, materialize};
use cotensor::core::{Error, Result};
use cotensor::model::ModelFolder;
use cotensor::model::family::family_of;
use cotensor::model::preprocess::{JSON_BYTES_MAX, ModelFiles};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// The origin of weights.
const SEEDED: &str = "seeded";
const CHECKPOINT: &str = "checkpoint";

const CONFIG: &str = "config.json";

/// The models of a scenario.
pub(crate) struct Models {
    pub(crate) folders: Vec<PathBuf>,
    /// The names of their families.
    pub(crate) families: Vec<String>,
    pub(crate) checkpoints: Vec<String>,
    /// Where the weights come from.
    pub(crate) weights: &'static str,
}

impl Models {
    pub(crate) fn of(definition: &Scenario, options: &DemoOptions, progress: &dyn Progress) -> Result<Self> {
        let folders = definition.models.iter().map(|model| model_folder(model, options, progress));
        let folders: Vec<(PathBuf, &str)> = folders.collect::<Result<_>>()?;
        let weights = if folders.iter().all(|(_, weights)| *weights == CHECKPOINT) { CHECKPOINT } else { SEEDED };
        let folders: Vec<PathBuf> = folders.into_iter().map(|(folder, _)| folder).collect();
        let families = folders.iter().map(|folder| family_name(folder)).collect::<Result<_>>()?;
        let checkpoints = definition.models.iter().map(|model| (*model).to_owned()).collect();
        Ok(Self { folders, families, checkpoints, weights })
    }
}

/// The folder of a model: a checkpoint of the user, else made with seeded weights; and which of the two.
fn model_folder(model: &str, options: &DemoOptions, progress: &dyn Progress) -> Result<(PathBuf, &'static str)> {
    let checkpoint = options.models.as_ref().map(|models| models.join(model)).filter(|folder| folder.is_dir());
    if let Some(folder) = checkpoint {
        return Ok((folder, CHECKPOINT));
    }
    let label = format!("generating seeded weights of {model}");
    let made = |done, total| {
        progress.step(done, total, &label);
        options.stop.load(Ordering::Relaxed) == 0
    };
    Ok((materialize(model, &options.cache.join("models"), &made)?, SEEDED))
}

/// The family of the model in a folder, by its configuration.
fn family_name(folder: &Path) -> Result<String> {
    let config = ModelFolder::new(folder).read(CONFIG, JSON_BYTES_MAX)?.unwrap_or_default();
    let config: serde_json::Value = serde_json::from_slice(&config)
        .map_err(|error| Error::corrupt(error.to_string()).in_file(folder.join(CONFIG)))?;
    let model_type = config.get("model_type").and_then(|value| value.as_str()).unwrap_or_default();
    Ok(family_of(model_type)?.name.clone())
}
