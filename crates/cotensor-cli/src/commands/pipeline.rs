//! Pipelines: their models, progress and errors.

use crate::output::Steps;
use cotensor::core::{Error, ErrorKind, Result};
use cotensor::model::model::Model;
use cotensor::{Pipeline, Runtime, User};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

/// Adds the pipeline's file to an `Invalid` error.
pub(super) fn in_pipeline(error: Error, file: &Path) -> Error {
    if error.kind() == ErrorKind::Invalid { error.in_file(file) } else { error }
}

/// The open models of a pipeline, by their names in it and their variants.
pub(super) struct Models(HashMap<Chosen, Arc<Model>>);

/// A folder or a name, and the variant of the graphs.
type Chosen = (String, Option<String>);

impl Models {
    /// Opens each model of `pipeline`, a folder relative to `base` or a name, once, so that all users of a folder run the
    /// same files even while they are written.
    pub(super) fn open(pipeline: &Pipeline, base: &Path, runtime: &Arc<Runtime>) -> Result<Self> {
        let mut models = HashMap::new();
        for user in &pipeline.users {
            let encoder = user.encoder.as_ref().map(|encoder| (encoder.model.clone(), encoder.variant.clone()));
            for chosen in std::iter::once(chosen(user)).chain(encoder) {
                if let Entry::Vacant(place) = models.entry(chosen) {
                    let (name, variant) = place.key();
                    let model = runtime.open_variant(Path::new(name), base, variant.as_deref())?;
                    place.insert(model);
                }
            }
        }
        Ok(Self(models))
    }

    /// The model of a user of the pipeline.
    pub(super) fn of(&self, user: &User) -> &Arc<Model> {
        &self.0[&chosen(user)]
    }
}

fn chosen(user: &User) -> Chosen {
    (user.model.clone(), user.variant.clone())
}

/// Shows progress over the stages that `pipeline` loads, and over `more` steps of the caller.
pub(super) fn progress(pipeline: &Pipeline, models: &Models, runtime: &Runtime, more: usize) -> Arc<Steps> {
    let mut stages = BTreeSet::new();
    for user in &pipeline.users {
        // An unknown task and a missing graph are reported when the user runs.
        let model = models.of(user);
        let Ok(task) = model.family().task(&user.task) else { continue };
        let Ok(roles) = model.roles(task) else { continue };
        let head = task.head.then(|| user.head.as_deref().unwrap_or("head"));
        let roles = roles.into_iter().chain(head);
        stages.extend(roles.map(|role| (model.folder().to_path_buf(), model.variant(), role.to_owned())));
    }
    let steps = Arc::new(Steps::expecting((stages.len() + more) as u64));
    let progress = Arc::clone(&steps);
    runtime.observe_loads(move |role, model| progress.next(&format!("loading {role} of {model}")));
    steps
}
