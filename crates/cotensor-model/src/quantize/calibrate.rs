//! The second moments of what the matrices of a model multiply.

use super::watch::{load, run_samples};
use crate::engine::{LoadedGraph, Output, OutputAllocator, RtenEngine};
use crate::graph::{Port, open_graph};
use crate::pipeline::Samples;
use crate::tensor::TensorRef;
use cotensor_core::{DType, Error, Result, size};
use cotensor_quant::{InputFactor, InputMoments};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The most rows of an input that count: more change little.
const ROWS_MAX: usize = 1 << 14;
/// The most bytes of all moments.
const MOMENTS_BYTES_MAX: u64 = 4 << 30;

/// The moments of the inputs of products, by the file of a graph and the name of the input.
#[derive(Default)]
pub(super) struct Calibration {
    by_graph: HashMap<PathBuf, BTreeMap<String, Inputs>>,
}

/// What a matrix is multiplied by.
pub(super) struct Inputs {
    pub(super) moments: InputMoments,
    factor: OnceLock<Result<Option<InputFactor>>>,
}

impl Inputs {
    /// The factor of the moments; `None` for inputs of zeros only, which say nothing.
    ///
    /// # Errors
    /// `Invalid` for moments that are not finite.
    pub(super) fn factor(&self) -> Result<Option<&InputFactor>> {
        let factor = || if self.moments.is_zero() { Ok(None) } else { self.moments.factor().map(Some) };
        self.factor.get_or_init(factor).as_ref().map(Option::as_ref).map_err(Clone::clone)
    }
}

impl Calibration {
    /// Runs the model in `folder` with `float32` weights on the samples at `indices`.
    ///
    /// # Errors
    /// As [`run_samples`]; `Unsupported` for a model whose moments need too much memory.
    pub(super) fn of_samples(
        folder: &Path,
        samples: &Samples,
        indices: &[usize],
        done: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let recorder: Arc<Mutex<Recorder>> = Arc::default();
        let own = Arc::clone(&recorder);
        run_samples(folder, samples, indices, Box::new(move |engine, path| open(engine, path, &own)), done)?;
        let recorder = std::mem::take(&mut *recorder.lock().unwrap_or_else(PoisonError::into_inner));
        let inputs = |moments| Inputs { moments, factor: OnceLock::new() };
        let of_graph = |graph: BTreeMap<String, InputMoments>| {
            let seen = graph.into_iter().filter(|(_, moments)| moments.rows() > 0);
            seen.map(|(name, moments)| (name, inputs(moments))).collect()
        };
        Ok(Self { by_graph: recorder.by_graph.into_iter().map(|(path, graph)| (path, of_graph(graph))).collect() })
    }

    /// The inputs of a graph, by name.
    pub(super) fn of_graph(&self, path: &Path) -> Option<&BTreeMap<String, Inputs>> {
        self.by_graph.get(path)
    }
}

#[derive(Default)]
struct Recorder {
    by_graph: HashMap<PathBuf, BTreeMap<String, InputMoments>>,
    bytes: u64,
}

/// Opens a graph that records what its matrices multiply.
fn open(engine: &RtenEngine, path: &Path, recorder: &Arc<Mutex<Recorder>>) -> Result<Arc<dyn LoadedGraph>> {
    let graph = open_graph(path)?;
    let mut columns = BTreeMap::new();
    for matrix in graph.matrices().iter().filter(|matrix| !matrix.is_table) {
        columns.extend(graph.factors(matrix).into_iter().map(|name| (name, matrix.columns)));
    }
    let of_one = |columns: &usize| (*columns as u64).saturating_mul(*columns as u64).saturating_mul(4);
    let bytes = columns.values().map(of_one).fold(0, u64::saturating_add);
    let mut all = recorder.lock().unwrap_or_else(PoisonError::into_inner);
    if !all.by_graph.contains_key(path) {
        all.bytes = all.bytes.saturating_add(bytes);
    }
    if all.bytes > MOMENTS_BYTES_MAX {
        let [found, most] = [all.bytes, MOMENTS_BYTES_MAX].map(size);
        let message = format!("the moments of the inputs of this model have {found}; at most {most} are possible");
        return Err(Error::unsupported(message).in_file(path).in_field("calibrate"));
    }
    let recorded: Vec<String> = columns.keys().cloned().collect();
    let moments = || columns.into_iter().map(|(name, columns)| (name, InputMoments::new(columns))).collect();
    all.by_graph.entry(path.to_path_buf()).or_insert_with(moments);
    drop(all);
    let (inputs, outputs) = (graph.inputs().to_vec(), graph.outputs().to_vec());
    let inner = load(engine, graph.with_outputs(&recorded))?;
    let (recorder, path) = (Arc::clone(recorder), path.to_path_buf());
    Ok(Arc::new(RecordingGraph { inner, recorder, path, recorded, inputs, outputs }))
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
        let is_added = |name: &&str| !inputs.iter().any(|(input, _)| input == name) && !outputs.contains(name);
        let more: Vec<&str> = self.recorded.iter().map(String::as_str).filter(is_added).collect();
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
