//! Runs a model on samples, and keeps the second moments of what its matrices multiply.

use crate::engine::{Capabilities, Engine, FileMode, LoadedGraph, Output, OutputAllocator, RtenEngine};
use crate::graph::{Graph, Port, open_graph};
use crate::model::{Model, StageSource};
use crate::pipeline::{Samples, User, default_task, run_user};
use crate::tensor::TensorRef;
use crate::weights::load_weights;
use cotensor_core::{DType, Error, Result, size};
use cotensor_quant::InputMoments;
use cotensor_store::{EmbeddedStore, Holder, Lease, TensorStore};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The fewest different samples.
pub const SAMPLES_MIN: usize = 16;
/// The most samples that are used.
const SAMPLES_MAX: usize = 512;
/// The most rows of an input that count: more change little.
const ROWS_MAX: usize = 1 << 14;
/// The most bytes of all moments.
const MOMENTS_BYTES_MAX: u64 = 4 << 30;
/// The most tokens that a decoder adds to a sample.
const NEW_TOKENS_MAX: usize = 16;
const USER: &str = "calibration";

/// The moments of the inputs of products, by the file of a graph and the name of the input.
#[derive(Default)]
pub struct Calibration {
    by_graph: HashMap<PathBuf, BTreeMap<String, InputMoments>>,
}

impl Calibration {
    /// Runs the model in `folder` with `float32` weights on different samples: the task that reads their medium. `done` has the number of
    /// samples that ran, and of all.
    ///
    /// # Errors
    /// `Invalid` for fewer than [`SAMPLES_MIN`] different samples, and for a model without a task that reads their medium;
    /// `Unsupported` for a model whose moments need too much memory; the errors of running a stage.
    pub fn of_samples(folder: &Path, samples: &Samples, done: &mut dyn FnMut(usize, usize)) -> Result<Self> {
        let mut distinct = samples.distinct()?;
        if distinct.len() < SAMPLES_MIN {
            let message = format!("{} different samples; at least {SAMPLES_MIN} are required", distinct.len());
            return Err(Error::invalid(message).in_field("calibrate"));
        }
        distinct.truncate(SAMPLES_MAX);
        let folder = crate::folder::canonical_folder(folder)?;
        let recorder = Arc::new(Mutex::default());
        let engine: Arc<dyn Engine> =
            Arc::new(Recording { inner: RtenEngine::new(None), recorder: Arc::clone(&recorder) });
        let model = Model::open(&folder, StageSource::Private(engine.into(), FileMode::Read))?;
        let task = default_task(&model, &[samples.medium().name()])?;
        // The prompt of a decoder has many rows; each further token has one.
        let max_new_tokens = task.answer.is_decoded().then_some(NEW_TOKENS_MAX);
        let (name, task) = (USER.to_owned(), task.name.clone());
        let user = User { name, model: model.name(), task, max_new_tokens, ..User::default() };
        let holder = Holder::new(USER);
        for (count, &index) in distinct.iter().enumerate() {
            run_user(&model, &user, &samples.inputs(index)?, &holder)?;
            done(count + 1, distinct.len());
        }
        drop(model);
        let recorder: Recorder = std::mem::take(&mut *recorder.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Self { by_graph: recorder.by_graph })
    }

    /// The moments of the inputs of a graph, by name.
    pub(super) fn of_graph(&self, path: &Path) -> Option<&BTreeMap<String, InputMoments>> {
        self.by_graph.get(path)
    }
}

#[derive(Default)]
struct Recorder {
    by_graph: HashMap<PathBuf, BTreeMap<String, InputMoments>>,
    bytes: u64,
}

/// An engine whose graphs record what their matrices multiply.
struct Recording {
    inner: RtenEngine,
    recorder: Arc<Mutex<Recorder>>,
}

impl Engine for Recording {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn version(&self) -> &'static str {
        self.inner.version()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn check(&self, graph: &Graph) -> Result<()> {
        self.inner.check(graph)
    }

    fn load(&self, graph: &Graph, weights: Vec<Lease>) -> Result<Arc<dyn LoadedGraph>> {
        self.inner.load(graph, weights)
    }

    fn load_file(&self, path: &Path, _: FileMode) -> Result<Arc<dyn LoadedGraph>> {
        let graph = open_graph(path)?;
        let mut moments = BTreeMap::new();
        for matrix in graph.matrices().iter().filter(|matrix| !matrix.is_table) {
            moments.extend(graph.factors(matrix).into_iter().map(|name| (name, matrix.columns)));
        }
        let bytes: u64 = moments.values().map(|&columns| (columns * columns * size_of::<f32>()) as u64).sum();
        let outputs: Vec<String> = moments.keys().cloned().collect();
        let mut recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner);
        recorder.bytes += bytes;
        if recorder.bytes > MOMENTS_BYTES_MAX {
            let [all, most] = [recorder.bytes, MOMENTS_BYTES_MAX].map(size);
            let message = format!("the moments of the inputs of this model have {all}; at most {most} are possible");
            return Err(Error::unsupported(message).in_file(path).in_field("calibrate"));
        }
        let moments = moments.into_iter().map(|(name, columns)| (name, InputMoments::new(columns))).collect();
        recorder.by_graph.insert(path.to_path_buf(), moments);
        drop(recorder);

        let (inputs, declared) = (graph.inputs().to_vec(), graph.outputs().to_vec());
        let mut graph = graph.with_outputs(&outputs);
        self.capabilities().fit(&mut graph);
        let store = EmbeddedStore::builder().build();
        let weights = load_weights(&graph, &*store, &store.holder(USER), USER)?;
        let inner = self.inner.load(&graph, weights.leases)?;
        let recorder = Arc::clone(&self.recorder);
        Ok(Arc::new(RecordingGraph {
            inner,
            recorder,
            path: path.to_path_buf(),
            recorded: outputs,
            inputs,
            outputs: declared,
        }))
    }
}

struct RecordingGraph {
    inner: Arc<dyn LoadedGraph>,
    recorder: Arc<Mutex<Recorder>>,
    path: PathBuf,
    /// The names of the values.
    recorded: Vec<String>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

impl RecordingGraph {
    fn record(&self, name: &str, values: &[f32]) {
        let mut recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner);
        let moments = recorder.by_graph.get_mut(&self.path).and_then(|graph| graph.get_mut(name));
        let Some(moments) = moments.filter(|moments| values.len().is_multiple_of(moments.columns())) else { return };
        let rows = ROWS_MAX.saturating_sub(moments.rows()).min(values.len() / moments.columns());
        moments.add(&values[..rows * moments.columns()]);
    }
}

impl LoadedGraph for RecordingGraph {
    fn run(
        &self,
        inputs: &[(&str, TensorRef<'_>)],
        outputs: &[&str],
        allocator: &dyn OutputAllocator,
    ) -> Result<Vec<Output>> {
        let is_asked = |name: &&str| !inputs.iter().any(|(input, _)| input == name) && !outputs.contains(name);
        let more: Vec<&str> = self.recorded.iter().map(String::as_str).filter(is_asked).collect();
        let mut made = self.inner.run(inputs, &[outputs, &more].concat(), allocator)?;
        for (name, output) in more.into_iter().zip(made.split_off(outputs.len())) {
            self.record(name, output.into_array()?.as_f32()?);
        }
        for (name, tensor) in inputs.iter().filter(|(name, _)| self.recorded.iter().any(|known| known == name)) {
            self.record(name, tensor.typed::<f32>()?);
        }
        for (name, output) in
            outputs.iter().zip(&made).filter(|(name, _)| self.recorded.iter().any(|known| known == *name))
        {
            if let Output::Array(array) = output {
                self.record(name, array.as_f32()?);
            }
        }
        Ok(made)
    }

    fn precision(&self) -> DType {
        self.inner.precision()
    }

    fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    fn outputs(&self) -> &[Port] {
        &self.outputs
    }
}
