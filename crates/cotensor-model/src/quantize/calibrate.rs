//! What a model does on samples: the second moments of what its matrices multiply, and the inputs of some runs of its graphs.

use super::options::QuantizeOptions;
use super::watch::{is_decoded, run_samples};
use crate::engine::{LoadedGraph, Output, OutputAllocator, RtenEngine};
use crate::graph::{Port, open_graph};
use crate::pipeline::Samples;
use crate::preprocess::family::LOGITS;
use crate::tensor::{Array, TensorRef};
use cotensor_core::sync::lock;
use cotensor_core::{DType, Error, Result, size};
use cotensor_quant::{InputFactor, InputMoments};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The most rows of an input that count: more change little.
const ROWS_MAX: usize = 1 << 14;
/// The most bytes of all moments.
const MOMENTS_BYTES_MAX: u64 = 4 << 30;

/// The most runs of a graph whose inputs are kept, and the most bytes of their inputs and outputs.
const RUNS_MAX: usize = 8;
const RUNS_BYTES_MAX: usize = 512 << 20;

/// What was recorded, by the file of a graph.
#[derive(Default)]
pub(super) struct Calibration {
    by_graph: HashMap<PathBuf, OfGraph>,
    /// Whether the task of the samples writes tokens.
    pub(super) is_decoded: bool,
    /// Whether next tokens decide: those of the only graph, which has all matrices. The divergence of one graph says nothing of others.
    pub(super) by_tokens: bool,
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
    /// Its number among all inputs.
    number: usize,
    last: Arc<LastFactor>,
}

/// The factor that was asked for last, with the number of its inputs: matrices with the same inputs follow each other, and a factor has twice
/// the bytes of its moments.
type LastFactor = Mutex<Option<(usize, Arc<InputFactor>)>>;

impl Inputs {
    pub(super) fn new(moments: InputMoments, number: usize, last: &Arc<LastFactor>) -> Self {
        Self { moments, number, last: Arc::clone(last) }
    }

    /// The factor of the moments; `None` for inputs of zeros only, which say nothing.
    ///
    /// # Errors
    /// `Invalid` for moments that are not finite.
    pub(super) fn factor(&self) -> Result<Option<Arc<InputFactor>>> {
        if self.moments.is_zero() {
            return Ok(None);
        }
        let mut last = lock(&self.last);
        if let Some((_, factor)) = last.as_ref().filter(|(number, _)| *number == self.number) {
            return Ok(Some(Arc::clone(factor)));
        }
        // Before the next one has memory.
        *last = None;
        let factor = Arc::new(self.moments.factor()?);
        *last = Some((self.number, Arc::clone(&factor)));
        Ok(Some(factor))
    }
}

impl Calibration {
    /// Runs the model in `folder` with `float32` weights on the samples at `indices`. What is recorded is rotated as the options say.
    /// `has_one_graph`: the model has no matrices in others.
    ///
    /// # Errors
    /// As [`run_samples`]; `Unsupported` for a model whose moments need too much memory.
    pub(super) fn of_samples(
        folder: &Path,
        samples: &Samples,
        indices: &[usize],
        options: &QuantizeOptions,
        has_one_graph: bool,
        done: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let is_decoded = is_decoded(folder, samples)?;
        let by_tokens = is_decoded && has_one_graph;
        let recorder = Arc::new(Mutex::new(Recorder { by_tokens, ..Recorder::default() }));
        let own = Arc::clone(&recorder);
        let open = Box::new(move |engine: &RtenEngine, path: &Path| open(engine, path, &own));
        run_samples(folder, samples, indices, open, done)?;
        let recorder = std::mem::take(&mut *lock(&recorder));
        let (last, mut number) = (Arc::default(), 0);
        let mut inputs = |(name, moments): (String, InputMoments)| {
            number += 1;
            let moments = match options.rotation(moments.columns()) {
                Some(block) => moments.rotated(block)?,
                None => moments,
            };
            Ok((name, Inputs::new(moments, number, &last)))
        };
        let of_graph = |(path, graph): (PathBuf, Record)| {
            let seen = graph.moments.into_iter().filter(|(_, moments)| moments.rows() > 0);
            let runs = graph.runs.into_iter().map(|kept| kept.run).collect();
            Ok((path, OfGraph { inputs: seen.map(&mut inputs).collect::<Result<_>>()?, runs }))
        };
        let by_graph = recorder.by_graph.into_iter().map(of_graph).collect::<Result<_>>()?;
        Ok(Self { by_graph, is_decoded, by_tokens })
    }

    /// What was recorded of a graph.
    pub(super) fn of_graph(&self, path: &Path) -> Option<&OfGraph> {
        self.by_graph.get(path)
    }

    /// The runs that were kept, of all graphs.
    pub(super) fn runs(&self) -> usize {
        self.by_graph.values().map(|graph| graph.runs.len()).sum()
    }
}

#[derive(Default)]
struct Recorder {
    by_graph: HashMap<PathBuf, Record>,
    bytes: u64,
    /// Of a run, only the logits count.
    by_tokens: bool,
}

#[derive(Default)]
struct Record {
    moments: BTreeMap<String, InputMoments>,
    runs: Vec<KeptRun>,
}

struct KeptRun {
    run: Run,
    /// The rows that were recorded.
    rows: usize,
    /// Those of its inputs and outputs.
    bytes: usize,
}

impl Record {
    /// Keeps the runs with the most rows: those of a decoder after its prompt have one, and say little. A run takes the place of those with
    /// the fewest, if these have fewer rows together. `make` copies a run that is kept.
    fn keep(&mut self, rows: usize, bytes: usize, make: impl FnOnce() -> Result<Run>) -> Result<()> {
        self.runs.sort_by_key(|kept| kept.rows);
        let used: usize = self.runs.iter().map(|kept| kept.bytes).sum();
        let (mut count, mut freed, mut lost) = (0, 0, 0);
        while self.runs.len() - count >= RUNS_MAX || used - freed + bytes > RUNS_BYTES_MAX {
            let Some(least) = self.runs.get(count) else { return Ok(()) };
            (count, freed, lost) = (count + 1, freed + least.bytes, lost + least.rows);
        }
        if count == 0 || lost < rows {
            let run = make()?;
            self.runs.drain(..count);
            self.runs.push(KeptRun { run, rows, bytes });
        }
        Ok(())
    }
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
    let by_tokens = all.by_tokens;
    drop(all);
    let outputs = graph.outputs().to_vec();
    let inner = engine.load_private(graph.with_outputs(&recorded))?;
    let (recorder, path) = (Arc::clone(recorder), path.to_path_buf());
    Ok(Arc::new(RecordingGraph { inner, recorder, path, recorded, outputs, by_tokens }))
}

struct RecordingGraph {
    inner: Arc<dyn LoadedGraph>,
    recorder: Arc<Mutex<Recorder>>,
    path: PathBuf,
    /// The names of the values.
    recorded: Vec<String>,
    /// Without the recorded values.
    outputs: Vec<Port>,
    /// See [`Recorder`].
    by_tokens: bool,
}

impl RecordingGraph {
    /// Returns the rows of the value.
    fn record(&self, name: &str, values: &[f32]) -> usize {
        let mut recorder = lock(&self.recorder);
        let moments = recorder.by_graph.get_mut(&self.path).and_then(|graph| graph.moments.get_mut(name));
        let Some(moments) = moments.filter(|moments| values.len().is_multiple_of(moments.columns())) else { return 0 };
        let rows = values.len() / moments.columns();
        let counted = ROWS_MAX.saturating_sub(moments.rows()).min(rows);
        moments.add(&values[..counted * moments.columns()]);
        rows
    }

    /// Keeps the inputs of a run, if they say more than those of others.
    fn keep(&self, inputs: &[(&str, TensorRef<'_>)], outputs: &[&str], rows: usize, output_bytes: usize) -> Result<()> {
        let copy = |(name, tensor): &(&str, TensorRef<'_>)| {
            let mut array = Array::zeros(tensor.dtype(), tensor.shape())?;
            if let (Some(target), Some(bytes)) = (array.bytes_mut(), tensor.bytes()) {
                target.copy_from_slice(bytes);
            }
            Ok(((*name).to_owned(), array))
        };
        let input_bytes: usize = inputs.iter().filter_map(|(_, tensor)| tensor.bytes()).map(<[u8]>::len).sum();
        let make = || {
            let inputs = inputs.iter().map(copy).collect::<Result<_>>()?;
            Ok(Run { inputs, outputs: outputs.iter().map(|&name| name.to_owned()).collect() })
        };
        match lock(&self.recorder).by_graph.get_mut(&self.path) {
            Some(record) => record.keep(rows, input_bytes + output_bytes, make),
            None => Ok(()),
        }
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
        let is_recorded = |name: &str| self.recorded.iter().any(|known| known == name);
        let mut rows = 0;
        for (name, output) in more.into_iter().zip(made.split_off(outputs.len())) {
            rows = rows.max(self.record(name, &TensorRef::from(&output.into_array()?).to_f32()?));
        }
        for (name, tensor) in inputs.iter().filter(|(name, _)| is_recorded(name)) {
            rows = rows.max(self.record(name, &tensor.to_f32()?));
        }
        let (mut counted, mut output_bytes) = (Vec::new(), 0);
        for (name, output) in outputs.iter().zip(&made) {
            let counts = !self.by_tokens || *name == LOGITS;
            counted.extend(counts.then_some(*name));
            let Output::Array(array) = output else { continue };
            output_bytes += if counts { array.bytes().len() } else { 0 };
            if is_recorded(name) {
                rows = rows.max(self.record(name, &TensorRef::from(array).to_f32()?));
            }
        }
        if !counted.is_empty() {
            self.keep(inputs, &counted, rows, output_bytes)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_factor_is_kept() {
        let last = Arc::default();
        let inputs = |number| {
            let mut moments = InputMoments::new(2);
            moments.add(&[1.0, 2.0, 3.0, 5.0]);
            Inputs::new(moments, number, &last)
        };
        let (one, other) = (inputs(1), inputs(2));
        let first = Arc::downgrade(&one.factor().unwrap().unwrap());
        assert!(first.upgrade().is_some_and(|first| Arc::ptr_eq(&first, &one.factor().unwrap().unwrap())));
        other.factor().unwrap();
        assert!(first.upgrade().is_none());
    }

    #[test]
    fn the_runs_with_the_most_rows_are_kept() {
        let run = || Ok(Run { inputs: Vec::new(), outputs: Vec::new() });
        let mut record = Record::default();
        let kept = |record: &Record| {
            let mut rows: Vec<usize> = record.runs.iter().map(|kept| kept.rows).collect();
            rows.sort_unstable();
            rows
        };
        for rows in [40, 1, 1, 1, 30, 1, 1, 1, 1, 50, 1] {
            record.keep(rows, 1, run).unwrap();
        }
        assert_eq!(kept(&record), [1, 1, 1, 1, 1, 30, 40, 50]);
        record.keep(60, RUNS_BYTES_MAX + 1, run).unwrap();
        record.keep(60, RUNS_BYTES_MAX, run).unwrap();
        assert_eq!(kept(&record), [1, 1, 1, 1, 1, 30, 40, 50], "more rows would go");
        for rows in 2..10 {
            record.keep(rows, 1, run).unwrap();
        }
        assert_eq!(kept(&record), [5, 6, 7, 8, 9, 30, 40, 50]);
        // Large caches beside one row take no room from a prompt.
        let mut record = Record::default();
        for rows in [1, 1, 1, 1, 7] {
            record.keep(rows, RUNS_BYTES_MAX / 5, run).unwrap();
        }
        record.keep(9, RUNS_BYTES_MAX / 5 * 4, run).unwrap();
        assert_eq!(kept(&record), [7, 9]);
    }
}
