//! Runs a model on samples, on an engine that lets another part see its graphs.

use crate::engine::{Capabilities, Engine, FileMode, LoadedGraph, RtenEngine};
use crate::graph::Graph;
use crate::model::{Model, StageSource};
use crate::pipeline::{Answer, Inputs, Samples, User, default_task, run_user};
use cotensor_core::{Error, Result};
use cotensor_store::{Holder, Lease};
use std::path::Path;
use std::sync::Arc;

/// The most tokens that a decoder adds to a sample: its prompt has many rows, and each further token has one.
const NEW_TOKENS_MAX: usize = 16;
pub(super) const USER: &str = "quantize";

/// Told of the step, the number of its finished parts, and the number of all.
pub type Progress<'p> = dyn FnMut(&str, usize, usize) + 'p;

/// Opens the graph of a file.
pub(super) type Open = dyn Fn(&RtenEngine, &Path) -> Result<Arc<dyn LoadedGraph>> + Send + Sync;

/// An engine whose graphs are those that `open` gives.
struct Watching {
    inner: RtenEngine,
    open: Box<Open>,
}

impl Engine for Watching {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn version(&self) -> &'static str {
        self.inner.version()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn load(&self, graph: &Graph, weights: Vec<Lease>) -> Result<Arc<dyn LoadedGraph>> {
        self.inner.load(graph, weights)
    }

    fn load_file(&self, path: &Path, _: FileMode) -> Result<Arc<dyn LoadedGraph>> {
        (self.open)(&self.inner, path)
    }
}

/// What [`run_samples`] has found.
pub(super) struct Ran {
    /// Those of the samples; none of a task whose answers are others.
    pub(super) embeddings: Vec<Vec<f32>>,
}

/// Whether the task that reads the medium of the samples writes tokens.
///
/// # Errors
/// `Invalid` for a model without such a task.
pub(super) fn is_decoded(folder: &Path, samples: &Samples) -> Result<bool> {
    let engine: Arc<dyn Engine> = Arc::new(RtenEngine::new(None));
    let model = Model::open(folder, StageSource::Private(engine.into(), FileMode::Read))?;
    Ok(default_task(&model, &[samples.medium()])?.answer.is_decoded())
}

/// Runs the model in `folder` on the samples at `indices`: the task that reads their medium. Of a text after which a decoder has no room
/// for tokens, a half counts, or less. `done` has the number of samples that ran, and of all.
///
/// # Errors
/// `Invalid` for a model without such a task; the errors of running a stage.
pub(super) fn run_samples(
    folder: &Path,
    samples: &Samples,
    indices: &[usize],
    open: Box<Open>,
    done: &mut dyn FnMut(usize, usize),
) -> Result<Ran> {
    let engine: Arc<dyn Engine> = Arc::new(Watching { inner: RtenEngine::new(None), open });
    let model = Model::open(folder, StageSource::Private(engine.into(), FileMode::Read))?;
    let task = default_task(&model, &[samples.medium()])?;
    let is_decoded = task.answer.is_decoded();
    let max_new_tokens = is_decoded.then_some(NEW_TOKENS_MAX);
    let (name, task) = (USER.to_owned(), task.name.clone());
    let user = User { name, model: model.name(), task, max_new_tokens, ..User::default() };
    let holder = Holder::new(USER);
    let mut embeddings = Vec::new();
    for (count, &index) in indices.iter().enumerate() {
        let mut inputs = samples.inputs(index)?;
        let found = loop {
            match run_user(&model, &user, &inputs, &holder) {
                Ok(found) => break found,
                Err(error) => inputs = half_of(&inputs).filter(|_| is_without_room(&error)).ok_or(error)?,
            }
        };
        if let Answer::Embedding { .. } = found.answer {
            embeddings.extend(found.outputs.into_iter().map(|output| output.values).next());
        }
        done(count + 1, indices.len());
    }
    Ok(Ran { embeddings })
}

/// Whether a prompt leaves less room than the tokens of [`run_samples`].
fn is_without_room(error: &Error) -> bool {
    error.field() == Some(&format!("{USER}.max_new_tokens"))
}

/// The first half of a text. `None` for other media and a text of one character.
fn half_of(inputs: &Inputs) -> Option<Inputs> {
    let text = inputs.text().ok()?;
    let (at, _) = text.char_indices().nth(text.chars().count() / 2).filter(|(at, _)| *at > 0)?;
    Some(inputs.clone().with_text(&text[..at]))
}
