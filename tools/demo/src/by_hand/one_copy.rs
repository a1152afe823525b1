//! An engine that opens one copy of a graph and memoizes its results.

use super::record::Recorder;
use cotensor::core::sync::lock;
use cotensor::core::{DType, Result};
use cotensor::model::engine::{
    Capabilities, Engine, FileMode, Keep, LoadedGraph, Output, OutputAllocator, RunState, keep_arrays,
};
use cotensor::model::graph::{Graph, Port};
use cotensor::model::tensor::{Array, TensorRef};
use cotensor::store::Lease;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// An engine whose graphs memoize their results.
pub(crate) struct OneCopy {
    engine: Arc<dyn Engine>,
    recorder: Option<Arc<Recorder>>,
}

impl OneCopy {
    /// Runs graphs on `engine`; `recorder` records every run of the engine.
    pub(crate) fn new(engine: Arc<dyn Engine>, recorder: Option<Arc<Recorder>>) -> Self {
        Self { engine, recorder }
    }
}

impl Engine for OneCopy {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn version(&self) -> &'static str {
        self.engine.version()
    }

    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn load(&self, graph: &Graph, weights: Vec<Lease>) -> Result<Arc<dyn LoadedGraph>> {
        self.engine.load(graph, weights)
    }

    fn load_file(&self, path: &Path, mode: FileMode) -> Result<Arc<dyn LoadedGraph>> {
        Ok(Arc::new(Memoized {
            path: path.to_path_buf(),
            graph: self.engine.load_file(path, mode)?,
            results: Mutex::default(),
            recorder: self.recorder.clone(),
        }))
    }
}

/// A graph and its memoized results. Runs with several outputs are steps of a decoding loop and are not memoized.
struct Memoized {
    path: PathBuf,
    graph: Arc<dyn LoadedGraph>,
    results: Mutex<Vec<Memo>>,
    recorder: Option<Arc<Recorder>>,
}

struct Memo {
    inputs: Vec<(String, Array)>,
    output: String,
    result: Array,
}

impl Memo {
    fn matches(&self, inputs: &[(&str, TensorRef<'_>)], output: &str) -> bool {
        let equal = |((name, array), (other, view)): (&(String, Array), &(&str, TensorRef<'_>))| {
            name == other
                && (array.dtype(), array.shape()) == (view.dtype(), view.shape())
                // By bits: a NaN equals itself.
                && Some(array.bytes()) == view.bytes()
        };
        self.output == output && self.inputs.len() == inputs.len() && self.inputs.iter().zip(inputs).all(equal)
    }
}

impl LoadedGraph for Memoized {
    fn run(
        &self,
        inputs: &[(&str, TensorRef<'_>)],
        outputs: &[&str],
        allocator: &dyn OutputAllocator,
    ) -> Result<Vec<Output>> {
        let [output] = outputs else {
            return Ok(self.compute(inputs, outputs, allocator)?.into_iter().map(Output::from).collect());
        };
        let mut results = lock(&self.results);
        if let Some(memo) = results.iter().find(|memo| memo.matches(inputs, output)) {
            return Ok(vec![memo.result.clone().into()]);
        }
        let computed = self.compute(inputs, outputs, allocator)?;
        if let [result] = &computed[..] {
            let inputs = inputs.iter().map(|(name, tensor)| Ok(((*name).to_owned(), owned(tensor)?)));
            let inputs = inputs.collect::<Result<_>>()?;
            results.push(Memo { inputs, output: (*output).to_owned(), result: result.clone() });
        }
        Ok(computed.into_iter().map(Output::from).collect())
    }

    /// A program that decodes by hand keeps the cache in its engine, too. A recorded run goes through arrays.
    fn run_keeping(
        &self,
        inputs: &[(&str, TensorRef<'_>)],
        outputs: &[&str],
        state: &mut RunState,
        keep: &[Keep<'_>],
        allocator: &dyn OutputAllocator,
    ) -> Result<Vec<Output>> {
        match self.recorder {
            None => self.graph.run_keeping(inputs, outputs, state, keep, allocator),
            Some(_) => keep_arrays(self, inputs, outputs, state, keep, allocator),
        }
    }

    fn precision(&self) -> DType {
        self.graph.precision()
    }

    fn inputs(&self) -> &[Port] {
        self.graph.inputs()
    }

    fn outputs(&self) -> &[Port] {
        self.graph.outputs()
    }
}

impl Memoized {
    fn compute(
        &self,
        inputs: &[(&str, TensorRef<'_>)],
        outputs: &[&str],
        allocator: &dyn OutputAllocator,
    ) -> Result<Vec<Array>> {
        let results = self.graph.run(inputs, outputs, allocator)?;
        let results = results.into_iter().map(Output::into_array).collect::<Result<Vec<_>>>()?;
        if let Some(recorder) = &self.recorder {
            recorder.record(&self.path, inputs, outputs, &results)?;
        }
        Ok(results)
    }
}

fn owned(tensor: &TensorRef<'_>) -> Result<Array> {
    let (dtype, shape) = (tensor.dtype(), tensor.shape());
    match dtype.size_bytes() {
        1 => Array::new(dtype, shape, tensor.typed::<u8>()?.to_vec()),
        2 => Array::new(dtype, shape, tensor.typed::<u16>()?.to_vec()),
        4 => Array::new(dtype, shape, tensor.typed::<u32>()?.to_vec()),
        _ => Array::new(dtype, shape, tensor.typed::<u64>()?.to_vec()),
    }
}

#[cfg(test)]
mod tests;
