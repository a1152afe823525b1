// The only file of this engine with unsafe code: rten takes `&'static` weights and maps files.
#![allow(unsafe_code)]

use super::convert::{input, output};
use super::load::{load, load_with};
use super::names::NamedModel;
use super::{saturation, state};
use crate::engine::api::{Capabilities, Engine, FileMode, LoadedGraph, MultipliedCodes};
use crate::engine::checks::{input_positions, output_positions, refuse_four_bits, weight_bytes};
use crate::engine::guard::guarded;
use crate::engine::output::{Output, OutputAllocator};
use crate::engine::state::{Keep, RunState};
use crate::graph::{CodeForm, Graph, Port, open_graph};
use crate::tensor::TensorRef;
use crate::weights::load_weights;
use cotensor_core::{DType, Device, Error, ErrorKind, Result};
use cotensor_store::{Lease, LocalStore, TensorStore};
use rten::{DataType, Dimension, Model, NodeId, RunErrorKind, RunOptions, ThreadPool, Value, ValueOrView, ValueType};
use std::path::Path;
use std::sync::Arc;

/// The version that Cargo.toml pins.
const VERSION: &str = "0.27.0";

const CODE_FORMS: &[CodeForm] = &[CodeForm::all(4)];

/// Runs graphs with rten.
pub struct RtenEngine {
    pool: Option<Arc<ThreadPool>>,
    is_plain: bool,
}

impl RtenEngine {
    /// The name in the list of [engines](crate::engine::names).
    pub const NAME: &str = "rten";

    /// An engine with `threads` threads of its own, at least one; `None` lets rten choose.
    pub fn new(threads: Option<usize>) -> Self {
        let pool = threads.map(|threads| Arc::new(ThreadPool::with_num_threads(threads.max(1))));
        Self { pool, is_plain: false }
    }

    /// Makes [`Engine::load_file`] give the file to rten as it is, so that a measured load takes the time and memory of rten
    /// alone. Only for files that passed the checks before; where rten differs from ONNX, so do the results.
    #[must_use]
    pub fn plain(mut self) -> Self {
        self.is_plain = true;
        self
    }

    /// Name and version.
    pub fn describe() -> String {
        format!("{} {VERSION}", Self::NAME)
    }

    /// Loads a graph with weights of a store that nothing else uses.
    ///
    /// # Errors
    /// As [`Engine::load_file`].
    pub(crate) fn load_private(&self, mut graph: Graph) -> Result<Arc<dyn LoadedGraph>> {
        self.capabilities().fit(&mut graph);
        let store = LocalStore::builder().build();
        let weights = load_weights(&graph, &*store, &store.holder(Self::NAME), Self::NAME)?;
        self.load(&graph, weights.leases)
    }

    fn options(&self) -> RunOptions {
        RunOptions::default().with_thread_pool(self.pool.clone())
    }

    fn load_plain(&self, path: &Path, mode: FileMode) -> Result<Arc<dyn LoadedGraph>> {
        let model = load_with(&[], |options| match mode {
            FileMode::Read => options.load_file(path),
            // SAFETY: no program may write or truncate the file while the graph lives. `FileMode::Map` states that
            // condition for the caller. This mode exists for measurements; nothing shared uses it.
            FileMode::Map => unsafe { options.load_mmap(path) },
        });
        let model = model.map_err(|error| error.in_file(path))?;
        self.finish(Vec::new(), None, NamedModel::plain(model))
    }

    /// A loaded graph. `declared` has the ports as the file declares them; rten knows fewer element types. `weights`
    /// comes before `model`: a panic drops parameters from the last to the first.
    fn finish(&self, weights: Vec<Lease>, declared: Option<&Graph>, model: NamedModel) -> Result<Arc<dyn LoadedGraph>> {
        let inputs = ports(model.model(), model.model().input_ids(), declared.map(Graph::inputs));
        let outputs = ports(model.model(), model.model().output_ids(), declared.map(Graph::outputs));
        Ok(Arc::new(RtenGraph {
            input_ports: inputs.iter().map(|(_, port)| port.clone()).collect(),
            output_ports: outputs.iter().map(|(_, port)| port.clone()).collect(),
            inputs: inputs.into_iter().map(|(input, _)| input).collect(),
            outputs: outputs.into_iter().map(|(output, _)| output).collect(),
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
        Capabilities {
            device: Device::Cpu,
            borrows_weights: true,
            borrows_inputs: true,
            writes_outputs_in_place: false,
            widens_floats: true,
            code_forms: CODE_FORMS,
            multiplied_codes: MultipliedCodes::Stored,
            has_zero_points: false,
            has_coded_tables: false,
            multiplies_int8: !saturation::is_possible(),
            keeps_activations: false,
            is_reproducible: true,
        }
    }

    fn check(&self, graph: &Graph) -> Result<()> {
        if let Some(node) = graph.unchecked_product() {
            let message = "its codes or scales are not constants, which rten would not check";
            return Err(Error::unsupported(message).in_file(graph.path()).in_field(node));
        }
        refuse_cubic_resize(graph)
    }

    fn load(&self, graph: &Graph, weights: Vec<Lease>) -> Result<Arc<dyn LoadedGraph>> {
        self.check(graph)?;
        refuse_wide_types(graph)?;
        refuse_four_bits(Self::NAME, graph)?;
        let bytes = weight_bytes(Self::NAME, graph, &weights)?;
        saturation::refuse(graph, &bytes)?;
        let slice = |bytes: &[u8]| {
            // SAFETY: the bytes belong to the segment of the lease. A segment never moves or changes its bytes
            // (`Segment::bytes`), and the lease keeps the segment. Only the models of a `NamedModel` and that value itself keep
            // this slice, and `RtenGraph` drops it before the leases. If loading fails, this function drops it before the
            // leases. The result of a run never borrows a constant: a `Value` owns its elements in a `Vec`.
            let bytes: &'static [u8] = unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
            bytes
        };
        let slices: Vec<&'static [u8]> = bytes.into_iter().map(slice).collect();
        let file = graph.encode_for_rten(true)?;
        let model = load(file, &slices).map_err(|error| error.in_file(graph.path()))?;
        let model = NamedModel::new(model, slices, || graph.encode_for_rten(false))?;
        self.finish(weights, Some(graph), model)
    }

    /// The weights are read in both modes.
    fn load_file(&self, path: &Path, mode: FileMode) -> Result<Arc<dyn LoadedGraph>> {
        if self.is_plain {
            return self.load_plain(path, mode);
        }
        self.load_private(open_graph(path)?)
    }
}

/// A loaded graph. Fields are dropped in the order of their declaration.
struct RtenGraph {
    /// Reads the bytes of `_weights`, so it is dropped first.
    model: NamedModel,
    inputs: Vec<NodePort>,
    outputs: Vec<NodePort>,
    input_ports: Vec<Port>,
    output_ports: Vec<Port>,
    options: RunOptions,
    /// Holds the bytes that `model` reads. Dropped last.
    _weights: Vec<Lease>,
}

/// An input or output in rten's terms.
#[derive(Clone, Copy)]
struct NodePort {
    id: NodeId,
    dtype: Option<DataType>,
}

/// Inputs or outputs with their ports, in the order of the graph.
fn ports(model: &Model, ids: &[NodeId], declared: Option<&[Port]>) -> Vec<(NodePort, Port)> {
    let fixed = |dim: Dimension| match dim {
        Dimension::Fixed(size) => Some(size),
        Dimension::Symbolic(_) => None,
    };
    let port = |&id: &NodeId| {
        let info = model.node_info(id);
        let name = info.as_ref().and_then(|info| info.name()).unwrap_or_default().to_owned();
        let dtype = info.as_ref().and_then(|info| info.dtype()).and_then(|kind| match kind {
            ValueType::Tensor(dtype) => Some(dtype),
            _ => None,
        });
        let dims = info.and_then(|info| info.shape()).map(|shape| shape.into_iter().map(fixed).collect());
        let declared = declared.and_then(|ports| ports.iter().find(|port| port.name == name));
        let dims = declared.map_or(dims, |port| port.dims.clone());
        (NodePort { id, dtype }, Port { dtype: declared.and_then(|port| port.dtype), name, dims })
    };
    ids.iter().map(port).collect()
}

impl LoadedGraph for RtenGraph {
    fn run(
        &self,
        inputs: &[(&str, TensorRef<'_>)],
        outputs: &[&str],
        allocator: &dyn OutputAllocator,
    ) -> Result<Vec<Output>> {
        self.run_keeping(inputs, outputs, &mut RunState::new(), &[], allocator)
    }

    fn run_keeping(
        &self,
        inputs: &[(&str, TensorRef<'_>)],
        outputs: &[&str],
        state: &mut RunState,
        keep: &[Keep<'_>],
        allocator: &dyn OutputAllocator,
    ) -> Result<Vec<Output>> {
        let kept = state.read_by(&self.input_ports, inputs);
        let names: Vec<&str> = inputs.iter().map(|(name, _)| *name).chain(kept.iter().map(String::as_str)).collect();
        let positions = input_positions(&self.input_ports, names.iter().copied())?;
        let mut values: Vec<(NodeId, ValueOrView<'_>)> = Vec::with_capacity(names.len());
        let mut before = Vec::new();
        for (&index, (name, tensor)) in positions.iter().zip(inputs) {
            let port = self.inputs[index];
            let value = input(&self.input_ports[index], port.dtype, tensor, allocator);
            let mut value = value.map_err(|error| error.in_field(*name))?;
            let extended = keep.iter().find(|keep| keep.input == *name).and_then(|keep| keep.rows_max);
            if let Some(rows_max) = extended {
                let owned = state::Owned::of_input(name, port.id, value, rows_max, state);
                before.push(owned.before);
                value = owned.value.into();
            }
            values.push((port.id, value));
        }
        let id_of = |name: &str| {
            let at = kept.iter().position(|known| known == name)?;
            Some(self.inputs[positions[inputs.len() + at]].id)
        };
        for owned in state::take(state, keep, id_of)? {
            before.push(owned.before);
            values.push((owned.id, owned.value.into()));
        }
        values.extend(state::views(state, id_of)?);
        let requested: Vec<&str> = outputs.iter().copied().chain(keep.iter().map(|keep| keep.output)).collect();
        let indices = output_positions(&self.output_ports, &requested)?;
        let mut results = self.run_model(values, &indices)?;
        for (keep, value) in keep.iter().zip(results.split_off(outputs.len())) {
            state::put(state, keep, value, &before);
        }
        // rten allocates its outputs itself, so `allocator` only counts conversions.
        let convert = |(value, index): (Value, usize)| {
            let port = &self.output_ports[index];
            output(port, value, allocator).map(Output::from).map_err(|error| error.in_field(&port.name))
        };
        results.into_iter().zip(indices).map(convert).collect()
    }

    /// rten converts the other floating-point types to `float32`.
    fn precision(&self) -> DType {
        DType::F32
    }

    fn inputs(&self) -> &[Port] {
        &self.input_ports
    }

    fn outputs(&self) -> &[Port] {
        &self.output_ports
    }
}

impl RtenGraph {
    fn run_model(&self, values: Vec<(NodeId, ValueOrView<'_>)>, outputs: &[usize]) -> Result<Vec<Value>> {
        let ids: Vec<NodeId> = outputs.iter().map(|&index| self.outputs[index].id).collect();
        let options = Some(self.options.clone());
        let model = self.model.for_inputs(&values)?;
        // A panic can leave only the plan of the graph inconsistent. The plan is behind a mutex, which the panic poisons:
        // later runs fail, and no run is wrong.
        guarded("running", || {
            model.run(values, &ids, options).map_err(|error| {
                let kind = match error.kind() {
                    RunErrorKind::InvalidInput => ErrorKind::Invalid,
                    // An operator refuses the output of another operator: the graph is inconsistent.
                    RunErrorKind::PlanningError | RunErrorKind::OperatorError => ErrorKind::Corrupt,
                    _ => ErrorKind::Engine,
                };
                Error::new(kind, error.to_string())
            })
        })
    }
}

/// rten has no half-precision and no double-precision constants.
fn refuse_wide_types(graph: &Graph) -> Result<()> {
    match graph.weights().iter().find(|weight| matches!(weight.dtype, DType::F16 | DType::F64)) {
        Some(weight) => {
            let message = format!("rten computes in float32, this weight is {}; widen the graph first", weight.dtype);
            Err(Error::unsupported(message).in_file(graph.path()).in_field(&weight.name))
        }
        None => Ok(()),
    }
}

/// rten 0.27 runs a cubic Resize as a linear one, without an error.
fn refuse_cubic_resize(graph: &Graph) -> Result<()> {
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
        Some(node) => Err(Error::unsupported(
            "rten has no cubic Resize and would run it as linear: the engine ort has it (Python package onnxruntime)",
        )
        .in_file(graph.path())
        .in_field(format!("node {node:?}"))),
        None => Ok(()),
    }
}
