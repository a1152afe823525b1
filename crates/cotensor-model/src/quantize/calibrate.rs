//! What a model does on samples: the second moments of what its matrices multiply, and the inputs of some runs of its graphs.

use super::options::QuantizeOptions;
use super::watch::run_samples;
use crate::engine::{LoadedGraph, Output, OutputAllocator, RtenEngine};
use crate::graph::{Port, open_graph};
use crate::pipeline::Samples;
use crate::tensor::{Array, TensorRef};
use cotensor_core::sync::lock;
use cotensor_core::{DType, Error, Result, size};
use cotensor_quant::{InputFactor, InputMoments};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

/// The most rows of an input that count: more change little.
const ROWS_MAX: usize = 1 << 14;
/// The most bytes of all moments.
const MOMENTS_BYTES_MAX: u64 = 4 << 30;

/// The most runs of a graph whose inputs are kept, and the most bytes of these.
const RUNS_MAX: usize = 8;
const RUNS_BYTES_MAX: usize = 64 << 20;

/// What was recorded, by the file of a graph.
#[derive(Default)]
pub(super) struct Calibration {
    by_graph: HashMap<PathBuf, OfGraph>,
}

/// What was recorded of a graph.
#[derive(Default)]
pub(super) struct OfGraph {
    /// The inputs of products, by name.
    pub(super) inputs: BTreeMap<String, Inputs>,
    pub(super) runs: Vec<Run>,
}

/// The inputs and the names of the outputs of a run.
#[derive(Clone)]
pub(super) struct Run {
    pub(super) inputs: Vec<(String, Array)>,
    pub(super) outputs: Vec<String>,
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
    /// Runs the model in `folder` with `float32` weights on the samples at `indices`. What is recorded is rotated as the options say.
    ///
    /// # Errors
    /// As [`run_samples`]; `Unsupported` for a model whose moments need too much memory.
    pub(super) fn of_samples(
        folder: &Path,
        samples: &Samples,
        indices: &[usize],
        options: &QuantizeOptions,
        done: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let recorder: Arc<Mutex<Recorder>> = Arc::default();
        let own = Arc::clone(&recorder);
        run_samples(folder, samples, indices, Box::new(move |engine, path| open(engine, path, &own)), done)?;
        let recorder = std::mem::take(&mut *lock(&recorder));
        let inputs = |(name, moments): (String, InputMoments)| {
            let moments = match options.rotation(moments.columns()) {
                Some(block) => moments.rotated(block)?,
                None => moments,
            };
            Ok((name, Inputs { moments, factor: OnceLock::new() }))
        };
        let of_graph = |(path, graph): (PathBuf, Record)| {
            let seen = graph.moments.into_iter().filter(|(_, moments)| moments.rows() > 0);
            Ok((path, OfGraph { inputs: seen.map(inputs).collect::<Result<_>>()?, runs: graph.runs }))
        };
        Ok(Self { by_graph: recorder.by_graph.into_iter().map(of_graph).collect::<Result<_>>()? })
    }

    /// What was recorded of a graph.
    pub(super) fn of_graph(&self, path: &Path) -> Option<&OfGraph> {
        self.by_graph.get(path)
    }
}

#[derive(Default)]
struct Recorder {
    by_graph: HashMap<PathBuf, Record>,
    bytes: u64,
}

#[derive(Default)]
struct Record {
    moments: BTreeMap<String, InputMoments>,
    runs: Vec<Run>,
    runs_bytes: usize,
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
    let mut all = lock(recorder);
    if !all.by_graph.contains_key(path) {
        all.bytes = all.bytes.saturating_add(bytes);
    }
    if all.bytes > MOMENTS_BYTES_MAX {
        let [found, most] = [all.bytes, MOMENTS_BYTES_MAX].map(size);
        let message = format!("the moments of the inputs of this model have {found}; at most {most} are possible");
        return Err(Error::unsupported(message).in_file(path).in_field("calibration"));
    }
    let recorded: Vec<String> = columns.keys().cloned().collect();
    let record = || Record {
        moments: columns.into_iter().map(|(name, columns)| (name, InputMoments::new(columns))).collect(),
        ..Record::default()
    };
    all.by_graph.entry(path.to_path_buf()).or_insert_with(record);
    drop(all);
    let outputs = graph.outputs().to_vec();
    let inner = engine.load_private(graph.with_outputs(&recorded))?;
    let (recorder, path) = (Arc::clone(recorder), path.to_path_buf());
    Ok(Arc::new(RecordingGraph { inner, recorder, path, recorded, outputs }))
}

struct RecordingGraph {
    inner: Arc<dyn LoadedGraph>,
    recorder: Arc<Mutex<Recorder>>,
    path: PathBuf,
    /// The names of the values.
    recorded: Vec<String>,
    /// Without the recorded values.
    outputs: Vec<Port>,
}

impl RecordingGraph {
    fn record(&self, name: &str, values: &[f32]) {
        let mut recorder = lock(&self.recorder);
        let moments = recorder.by_graph.get_mut(&self.path).and_then(|graph| graph.moments.get_mut(name));
        let Some(moments) = moments.filter(|moments| values.len().is_multiple_of(moments.columns())) else { return };
        let rows = ROWS_MAX.saturating_sub(moments.rows()).min(values.len() / moments.columns());
        moments.add(&values[..rows * moments.columns()]);
    }

    /// Keeps the inputs of one of the first runs.
    fn keep(&self, inputs: &[(&str, TensorRef<'_>)], outputs: &[&str]) -> Result<()> {
        let mut recorder = lock(&self.recorder);
        let bytes: usize = inputs.iter().filter_map(|(_, tensor)| tensor.bytes()).map(<[u8]>::len).sum();
        let Some(record) = recorder.by_graph.get_mut(&self.path) else { return Ok(()) };
        if record.runs.len() == RUNS_MAX || record.runs_bytes + bytes > RUNS_BYTES_MAX {
            return Ok(());
        }
        let copy = |(name, tensor): &(&str, TensorRef<'_>)| {
            let mut array = Array::zeros(tensor.dtype(), tensor.shape())?;
            if let (Some(target), Some(bytes)) = (array.bytes_mut(), tensor.bytes()) {
                target.copy_from_slice(bytes);
            }
            Ok(((*name).to_owned(), array))
        };
        let inputs = inputs.iter().map(copy).collect::<Result<_>>()?;
        record.runs_bytes += bytes;
        record.runs.push(Run { inputs, outputs: outputs.iter().map(|&name| name.to_owned()).collect() });
        Ok(())
    }
}

impl LoadedGraph for RecordingGraph {
    fn run(
        &self,
        inputs: &[(&str, TensorRef<'_>)],
        outputs: &[&str],
        allocator: &dyn OutputAllocator,
    ) -> Result<Vec<Output>> {
        self.keep(inputs, outputs)?;
        let is_added = |name: &&str| !inputs.iter().any(|(input, _)| input == name) && !outputs.contains(name);
        let more: Vec<&str> = self.recorded.iter().map(String::as_str).filter(is_added).collect();
        let mut made = self.inner.run(inputs, &[outputs, &more].concat(), allocator)?;
        for (name, output) in more.into_iter().zip(made.split_off(outputs.len())) {
            self.record(name, &TensorRef::from(&output.into_array()?).to_f32()?);
        }
        for (name, tensor) in inputs.iter().filter(|(name, _)| self.recorded.iter().any(|known| known == name)) {
            self.record(name, &tensor.to_f32()?);
        }
        for (name, output) in
            outputs.iter().zip(&made).filter(|(name, _)| self.recorded.iter().any(|known| known == *name))
        {
            if let Output::Array(array) = output {
                self.record(name, &TensorRef::from(array).to_f32()?);
            }
        }
        Ok(made)
    }

    fn precision(&self) -> DType {
        self.inner.precision()
    }

    fn inputs(&self) -> &[Port] {
        self.inner.inputs()
    }

    fn outputs(&self) -> &[Port] {
        &self.outputs
    }
}
