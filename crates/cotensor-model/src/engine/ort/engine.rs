use super::convert::{dtype, element_type, error};
use super::graph::OrtGraph;
use super::library::{Library, library};
use super::native::{Session, SessionOptions, Weight};
use crate::engine::api::{Capabilities, Engine, FileMode, LoadedGraph};
use crate::engine::checks::weight_bytes;
use crate::engine::guard::guarded;
use crate::graph::{Graph, Port};
use cotensor_core::{DType, Device, Error, Result};
use cotensor_store::Lease;
use ort::value::Outlet;
use std::path::Path;
use std::sync::Arc;

/// Runs graphs with onnxruntime, whose library is loaded when the first engine is opened.
pub struct OrtEngine {
    library: &'static Library,
    options: SessionOptions,
}

impl OrtEngine {
    /// The name in the list of [engines](crate::engine::names).
    pub const NAME: &str = "ort";

    /// An engine whose operators use `threads` threads, at least one; `None` lets onnxruntime choose.
    ///
    /// # Errors
    /// `NotFound` without the library, `Unsupported` for a library that cannot be used; the message names the command
    /// that installs it.
    pub fn new(threads: Option<usize>) -> Result<Self> {
        Ok(Self { library: library()?, options: SessionOptions { threads, prepacks: false } })
    }

    /// The path of the loaded library.
    pub fn library_path(&self) -> &Path {
        &self.library.path
    }

    fn open(&self, graph: &Graph, leases: Vec<Lease>) -> Result<Session> {
        weight_bytes("onnxruntime", graph, &leases)?;
        if !leases.is_empty() && graph.inputs().is_empty() {
            return Err(Error::unsupported("onnxruntime takes shared weights for graphs with inputs only"));
        }
        let model = graph.encode_with_weights_as_inputs()?;
        let inputs: Vec<&str> = graph.inputs().iter().map(|port| port.name.as_str()).collect();
        let weights = graph.weights().iter().zip(leases).map(|(weight, lease)| {
            Ok(Weight { name: &weight.name, dtype: element_type(weight.dtype)?, shape: &weight.shape, lease })
        });
        let (environment, sets) = (&self.library.environment, graph.operator_sets());
        Session::of_memory(weights.collect::<Result<_>>()?, environment, &self.options, &model, &sets, &inputs)
            .map_err(|failure| error(&failure))
    }
}

impl Engine for OrtEngine {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn version(&self) -> &'static str {
        &self.library.version
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            device: Device::Cpu,
            borrows_weights: true,
            borrows_inputs: true,
            writes_outputs_in_place: true,
            widens_floats: false,
        }
    }

    fn load(&self, graph: &Graph, weights: Vec<Lease>) -> Result<Arc<dyn LoadedGraph>> {
        let session = guarded("loading", || self.open(graph, weights)).map_err(|error| error.in_file(graph.path()))?;
        let half = graph.weights().iter().any(|weight| weight.dtype == DType::F16);
        let precision = if half { DType::F16 } else { DType::F32 };
        OrtGraph::open(session, graph.inputs().to_vec(), graph.outputs().to_vec(), precision)
    }

    /// onnxruntime maps external data in both modes. It uses the same kernels as for shared weights.
    fn load_file(&self, path: &Path, _mode: FileMode) -> Result<Arc<dyn LoadedGraph>> {
        let open = || {
            if !path.is_file() {
                return Err(Error::not_found("no such file"));
            }
            Session::of_file(&self.library.environment, &self.options, path).map_err(|failure| error(&failure))
        };
        let session = guarded("loading", open).map_err(|error| error.in_file(path))?;
        let (inputs, outputs) = session.outlets();
        let (inputs, outputs) = (inputs.iter().map(port).collect(), outputs.iter().map(port).collect());
        OrtGraph::open(session, inputs, outputs, DType::F32)
    }
}

fn port(outlet: &Outlet) -> Port {
    let dims = outlet.dtype().tensor_shape().map(|shape| shape.iter().map(|&dim| usize::try_from(dim).ok()).collect());
    Port { name: outlet.name().to_owned(), dtype: outlet.dtype().tensor_type().and_then(dtype), dims }
}
