//! Pipelines: their models, progress and errors.

use crate::output::Steps;
use cotensor::core::{Error, ErrorKind, Result};
use cotensor::model::model::Model;
use cotensor::{Pipeline, Runtime};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

/// Adds the pipeline's file to an `Invalid` error.
pub(super) fn in_pipeline(error: Error, file: &Path) -> Error {
    if error.kind() == ErrorKind::Invalid { error.in_file(file) } else { error }
}

/// Opens each model of `pipeline`, a folder relative to `base` or a name, once, so that all users of a folder run the
/// same files even while they are written. The keys are the folders and names in the pipeline.
pub(super) fn open_models(
    pipeline: &Pipeline,
    base: &Path,
    runtime: &Arc<Runtime>,
) -> Result<HashMap<String, Arc<Model>>> {
    let mut models = HashMap::new();
    for user in &pipeline.users {
        for name in [Some(&user.model), user.encoder.as_ref().map(|encoder| &encoder.model)].into_iter().flatten() {
            if !models.contains_key(name) {
                models.insert(name.clone(), runtime.open_relative(Path::new(name), base)?);
            }
        }
    }
    Ok(models)
}

/// Shows progress over the stages that `pipeline` loads, and over `more` steps of the caller.
pub(super) fn progress(
    pipeline: &Pipeline,
    models: &HashMap<String, Arc<Model>>,
    runtime: &Runtime,
    more: usize,
) -> Arc<Steps> {
    let mut stages = BTreeSet::new();
    for user in &pipeline.users {
        // An unknown task is reported when it is run.
        let Some(model) = models.get(&user.model) else { continue };
        let Ok(task) = model.family().task(&user.task) else { continue };
        let head = task.head.then(|| user.head.as_deref().unwrap_or("head"));
        let roles = task.stages.iter().map(String::as_str).chain(head);
        stages.extend(roles.map(|role| (model.folder().to_path_buf(), role.to_owned())));
    }
    let steps = Arc::new(Steps::expecting((stages.len() + more) as u64));
    let progress = Arc::clone(&steps);
    runtime.observe_loads(move |role, model| progress.next(&format!("loading {role} of {model}")));
    steps
}
