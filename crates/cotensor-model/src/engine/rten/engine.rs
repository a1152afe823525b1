// The one file of this crate that may: the engine asks for `&'static` weights and maps files.
#![allow(unsafe_code)]

use crate::engine::api::{Capabilities, Engine, FileMode, LoadedGraph};
use crate::graph::{Graph, Weight, weight_location};
use crate::tensor::{Array, ArrayData, ArrayView};
use cotensor_core::{DType, Error, ErrorKind, Result};
use cotensor_store::Lease;
use rten::{
    DataType, Dimension, LoadError, LoadErrorKind, Model, ModelOptions, NodeId, RunErrorKind, RunOptions, ThreadPool,
    Value, ValueOrView, ValueType, ValueView,
};
use rten_tensor::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

/// The version that Cargo.toml pins.
const VERSION: &str = "0.27.0";

/// Runs graphs with `rten`.
pub struct RtenEngine {
    pool: Option<Arc<ThreadPool>>,
    trusts_files: bool,
}

impl RtenEngine {
    /// Its name among the [engines](crate::engine::names).
    pub const NAME: &str = "rten";

    /// An engine with `threads` threads of its own (at least one), or with as many as `rten` finds best.
    pub fn new(threads: Option<usize>) -> Self {
        let pool = threads.map(|threads| Arc::new(ThreadPool::with_num_threads(threads.max(1))));
        Self { pool, trusts_files: false }
    }

    /// Makes [`Engine::load_file`] skip the look at the graph that it takes first. Only for files that were opened before
    /// and passed: what a measured load takes is then the engine's own time.
    #[must_use]
    pub fn trusting_files(mut self) -> Self {
        self.trusts_files = true;
        self
    }

    /// Name and version, for people.
    pub fn describe() -> String {
        format!("{} {VERSION}", Self::NAME)
    }

    fn options(&self) -> RunOptions {
        RunOptions::default().with_thread_pool(self.pool.clone())
    }

    /// `weights` before `model`: should this unwind, parameters are dropped from the last to the first.
    fn finish(&self, weights: Vec<Lease>, model: Model) -> Result<Arc<dyn LoadedGraph>> {
        let inputs = model.input_ids().iter().map(|&id| Port::of(&model, id)).collect::<Vec<_>>();
        let outputs = model.output_ids().iter().map(|&id| Port::of(&model, id)).collect::<Vec<_>>();
        let names = |ports: &[Port]| ports.iter().map(|port| port.name.clone()).collect();
        Ok(Arc::new(RtenGraph {
            input_names: names(&inputs),
            output_names: names(&outputs),
            inputs,
            outputs,
            model,
            options: self.options(),
            _weights: weights,
        }))
    }
}

impl Engine for RtenEngine {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn version(&self) -> &'static str {
        VERSION
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { borrows_weights: true, borrows_inputs: true, writes_outputs_in_place: false }
    }

    fn load(&self, graph: &Graph, weights: Vec<Lease>) -> Result<Arc<dyn LoadedGraph>> {
        refuse_what_it_gets_wrong(graph)?;
        if weights.len() != graph.weights().len() {
            let counts = format!("{} weights given, the graph has {}", weights.len(), graph.weights().len());
            return Err(Error::invalid(counts).in_file(graph.path()));
        }
        let mut options = options();
        for (index, (weight, lease)) in graph.weights().iter().zip(&weights).enumerate() {
            let bytes =
                weight_bytes(weight, lease).map_err(|error| error.in_file(graph.path()).in_field(&weight.name))?;
            // SAFETY: the bytes belong to the lease's segment, which never moves or changes them while it lives
            // (`Segment::bytes`), and the lease keeps the segment. `RtenGraph` drops the model, the only one that keeps this slice,
            // before the leases; should loading fail, the options and what was loaded are gone when this function returns.
            // Nothing that a run returns borrows a constant: a `Value` owns its elements in a `Vec`.
            let bytes: &'static [u8] = unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
            options.external_data_static(&weight_location(index), bytes);
        }
        let proto = graph.encode()?;
        let model = guarded("loading", || options.load(proto).map_err(load_error))
            .map_err(|error| error.in_file(graph.path()))?;
        self.finish(weights, model)
    }

    fn load_file(&self, path: &Path, mode: FileMode) -> Result<Arc<dyn LoadedGraph>> {
        if !self.trusts_files {
            refuse_what_it_gets_wrong(&Graph::open(path)?)?;
        }
        let load = || match mode {
            FileMode::Read => options().load_file(path),
            // SAFETY: the file must not be written or truncated while the graph lives. `FileMode::Map` hands that condition
            // to the caller: this mode exists to measure against, and nothing shared goes through it.
            FileMode::Map => unsafe { options().load_mmap(path) },
        };
        let model = guarded("loading", || load().map_err(load_error)).map_err(|error| error.in_file(path))?;
        self.finish(Vec::new(), model)
    }
}

/// As the engine has them by default; prepacking would make private copies of all weights.
fn options() -> ModelOptions {
    let mut options = ModelOptions::with_all_ops();
    options.prepack_weights(false);
    options
}

/// A loaded graph. Fields are dropped in the order in which they stand here.
struct RtenGraph {
    /// Reads the bytes of `_weights`, so it comes first.
    model: Model,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    input_names: Vec<String>,
    output_names: Vec<String>,
    options: RunOptions,
    /// Keeps the bytes that `model` reads. Last.
    _weights: Vec<Lease>,
}

/// An input or output as the engine sees it.
struct Port {
    name: String,
    id: NodeId,
    dtype: Option<DataType>,
    dims: Option<Vec<Option<usize>>>,
}

impl Port {
    fn of(model: &Model, id: NodeId) -> Self {
        let info = model.node_info(id);
        let fixed = |dim: Dimension| match dim {
            Dimension::Fixed(size) => Some(size),
            Dimension::Symbolic(_) => None,
        };
        Self {
            name: info.as_ref().and_then(|info| info.name()).unwrap_or_default().to_owned(),
            id,
            dtype: info.as_ref().and_then(|info| info.dtype()).and_then(|kind| match kind {
                ValueType::Tensor(dtype) => Some(dtype),
                _ => None,
            }),
            dims: info.and_then(|info| info.shape()).map(|shape| shape.into_iter().map(fixed).collect()),
        }
    }

    /// Whether `array` may go in here.
    fn check(&self, array: &ArrayView<'_>) -> Result<()> {
        let given = match array.dtype() {
            DType::F32 => DataType::Float,
            _ => DataType::Int32,
        };
        if let Some(wanted) = self.dtype
            && wanted != given
        {
            return Err(Error::invalid(format!("{} given, the graph takes {wanted}", array.dtype())));
        }
        let Some(dims) = &self.dims else { return Ok(()) };
        let fits = |(wanted, &given): (&Option<usize>, &usize)| wanted.is_none_or(|wanted| wanted == given);
        if dims.len() != array.shape().len() || !dims.iter().zip(array.shape()).all(fits) {
            let dim = |dim: &Option<usize>| dim.map_or("?".to_owned(), |size| size.to_string());
            let wanted: Vec<_> = dims.iter().map(dim).collect();
            return Err(Error::invalid(format!(
                "shape {:?} given, the graph takes [{}]",
                array.shape(),
                wanted.join(", ")
            )));
        }
        Ok(())
    }
}

impl LoadedGraph for RtenGraph {
    fn run(&self, inputs: &[(&str, ArrayView<'_>)], outputs: &[&str]) -> Result<Vec<Array>> {
        let mut values = Vec::with_capacity(inputs.len());
        for (name, array) in inputs {
            let port = find(&self.inputs, name, "input")?;
            port.check(array).map_err(|error| error.in_field(*name))?;
            let view = match array {
                ArrayView::F32(shape, elements) => ValueView::from_shape(shape, elements).map_err(|e| e.to_string()),
                ArrayView::I32(shape, elements) => ValueView::from_shape(shape, elements).map_err(|e| e.to_string()),
            };
            let view = view.map_err(|error| Error::invalid(error).in_field(*name))?;
            if values.iter().any(|(id, _)| *id == port.id) {
                return Err(Error::invalid("given twice").in_field(*name));
            }
            values.push((port.id, ValueOrView::View(view)));
        }
        if let Some(missing) = self.inputs.iter().find(|port| !values.iter().any(|(id, _)| *id == port.id)) {
            return Err(Error::invalid("this input is missing").in_field(&missing.name));
        }
        let ids = outputs.iter().map(|name| Ok(find(&self.outputs, name, "output")?.id)).collect::<Result<Vec<_>>>()?;
        if let Some(twice) = (1..ids.len()).find(|&index| ids[..index].contains(&ids[index])) {
            return Err(Error::invalid("asked for twice").in_field(outputs[twice]));
        }
        let options = Some(self.options.clone());
        let results = guarded("running", || {
            self.model.run(values, &ids, options).map_err(|error| {
                let kind = match error.kind() {
                    RunErrorKind::InvalidInput => ErrorKind::Invalid,
                    // Operators that refuse what other operators give them: the graph contradicts itself.
                    RunErrorKind::PlanningError | RunErrorKind::OperatorError => ErrorKind::Corrupt,
                    _ => ErrorKind::Engine,
                };
                Error::new(kind, error.to_string())
            })
        })?;
        results
            .into_iter()
            .zip(outputs)
            .map(|(value, name)| to_array(value).map_err(|error| error.in_field(*name)))
            .collect()
    }

    /// `rten` widens what a file has in other types.
    fn precision(&self) -> DType {
        DType::F32
    }

    fn inputs(&self) -> &[String] {
        &self.input_names
    }

    fn input_dims(&self, name: &str) -> Option<&[Option<usize>]> {
        self.inputs.iter().find(|port| port.name == name)?.dims.as_deref()
    }

    fn outputs(&self) -> &[String] {
        &self.output_names
    }
}

fn find<'a>(ports: &'a [Port], name: &str, what: &str) -> Result<&'a Port> {
    ports.iter().find(|port| port.name == name).ok_or_else(|| {
        let known: Vec<_> = ports.iter().map(|port| port.name.as_str()).collect();
        Error::invalid(format!("the graph has no such {what}; it has {}", known.join(", "))).in_field(name)
    })
}

/// Takes the engine's buffer as it is where its elements are row-major, which they nearly always are.
fn to_array(value: Value) -> Result<Array> {
    match value {
        Value::FloatTensor(tensor) => Array::f32(tensor.shape().to_vec(), tensor.into_data()),
        Value::Int32Tensor(tensor) => Array::i32(tensor.shape().to_vec(), tensor.into_data()),
        Value::Int8Tensor(tensor) => {
            Array::new(tensor.shape().to_vec(), ArrayData::I32(tensor.iter().map(|&value| value.into()).collect()))
        }
        Value::UInt8Tensor(tensor) => {
            Array::new(tensor.shape().to_vec(), ArrayData::I32(tensor.iter().map(|&value| value.into()).collect()))
        }
        _ => Err(Error::unsupported("this output is no tensor")),
    }
}

/// The bytes of a weight where they lie.
fn weight_bytes<'a>(weight: &Weight, lease: &'a Lease) -> Result<&'a [u8]> {
    if lease.dtype() != weight.dtype || lease.shape() != weight.shape || !lease.layout().is_contiguous() {
        let (given, wanted) = ((lease.dtype(), lease.shape()), (weight.dtype, &weight.shape));
        return Err(Error::invalid(format!("the lease holds {given:?}, the graph needs {wanted:?} without gaps")));
    }
    let on_device =
        || Error::unsupported(format!("rten runs on the cpu, this weight is on {}", lease.segment().device()));
    lease.bytes().ok_or_else(on_device)
}

/// rten 0.27 runs cubic Resize as linear, in silence.
fn refuse_what_it_gets_wrong(graph: &Graph) -> Result<()> {
    let mut refused = None;
    graph.visit_nodes(&mut |node| {
        let is_cubic = |name: &Option<String>, value: &Option<String>| {
            name.as_deref() == Some("mode") && value.as_deref() == Some("cubic")
        };
        if node.op_type.as_deref() == Some("Resize")
            && node.attribute.iter().any(|attribute| is_cubic(&attribute.name, &attribute.s))
        {
            refused = Some(node.name.clone().unwrap_or_default());
        }
    });
    match refused {
        Some(node) => Err(Error::unsupported("rten has no cubic Resize and would run it as linear")
            .in_file(graph.path())
            .in_field(format!("node {node:?}"))),
        None => Ok(()),
    }
}

fn load_error(error: LoadError) -> Error {
    let kind = match error.kind() {
        LoadErrorKind::IoError => ErrorKind::Io,
        LoadErrorKind::OperatorInvalid => ErrorKind::Unsupported,
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, error.to_string())
}

/// Turns a panic of the engine, which a hostile graph can cause, into an error. What a panic could leave half-changed is the
/// graph's plan alone, which the engine keeps behind a mutex that the panic poisons: later runs fail, none is wrong.
fn guarded<T>(doing: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Error::new(ErrorKind::Engine, format!("the engine gave up while {doing}: {text}")))
    })
}
