use super::convert::{dtype, element_type, error};
use super::graph::OrtGraph;
use super::library::{Library, library};
use super::native::{OpenModel, Session, SessionOptions};
use super::prepacked;
use crate::engine::api::{Capabilities, Engine, EngineOptions, FileMode, LoadedGraph, MultipliedCodes};
use crate::engine::checks::{refuse_four_bits, weight_bytes};
use crate::engine::guard::guarded;
use crate::graph::{CodeForm, Graph, Port};
use crate::weights::HashedWeights;
use cotensor_core::{ContentHash, DType, DerivedFiles, Device, Error, Result};
use cotensor_memory::process::trim_heap;
use cotensor_store::Lease;
use ort::value::Outlet;
use std::path::Path;
use std::sync::Arc;

/// Measured with 1.32: docs/labs/low-bit.md, `cargo bench -p cotensor-model`. Others are expanded for each run, or refused.
const CODE_FORMS: &[CodeForm] = &[
    CodeForm { bits: 2, groups: (32, 128), needs_int8: true },
    CodeForm::all(4),
    CodeForm { needs_int8: true, ..CodeForm::all(8) },
];

/// Runs graphs with onnxruntime, whose library is loaded when the first engine is opened.
pub struct OrtEngine {
    name: &'static str,
    library: &'static Library,
    options: SessionOptions,
    derived: Option<Arc<dyn DerivedFiles>>,
}

impl OrtEngine {
    /// The name in the list of [engines](crate::engine::names).
    pub const NAME: &str = "ort";

    /// The name of the engine that reads the weights of the store only.
    pub const SHARED: &str = "ort-shared";

    /// An engine that keeps weights in the layout of its kernels in the derived files of `options`. Without these, it
    /// reads the weights of the store.
    ///
    /// # Errors
    /// `NotFound` without the library, `Unsupported` for a library that cannot be used; the message names the command
    /// that installs it.
    pub fn new(options: &EngineOptions) -> Result<Self> {
        let session = SessionOptions { threads: options.threads, ..SessionOptions::default() };
        Ok(Self { name: Self::NAME, library: library()?, options: session, derived: options.derived.clone() })
    }

    /// An engine that reads the weights of the store: one copy of the original bytes, with slower kernels.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn shared(threads: Option<usize>) -> Result<Self> {
        Ok(Self { name: Self::SHARED, ..Self::new(&threads.into())? })
    }

    /// The derived files and the key of a graph with weights; `None` if it has none, or without a folder for the files.
    ///
    /// # Errors
    /// `Unsupported` on a processor that is not known.
    fn derived(&self, graph: &Graph, fingerprint: &ContentHash) -> Result<Option<(&dyn DerivedFiles, ContentHash)>> {
        let Some(derived) = self.derived.as_deref().filter(|_| !graph.weights().is_empty()) else { return Ok(None) };
        let key = prepacked::key(self.library, fingerprint);
        let key = key.ok_or_else(|| Error::unsupported("/proc/cpuinfo does not name the processor"))?;
        Ok(Some((derived, key)))
    }

    fn open_derived(&self, graph: &Graph, folder: &Path) -> Result<Arc<dyn LoadedGraph>> {
        let options = SessionOptions { prepacks: true, is_optimized: true, ..self.options.clone() };
        let session = Session::of_file(&self.library.environment, &options, &folder.join(prepacked::MODEL));
        OrtGraph::of_graph(session.map_err(|failure| error(&failure))?, graph, prepacked::VARIANT)
    }

    /// Opens the graph in a folder of derived files. Removes a folder that onnxruntime refuses.
    fn open_or_remove(
        &self,
        graph: &Graph,
        derived: &dyn DerivedFiles,
        key: &ContentHash,
        folder: &Path,
    ) -> Result<Arc<dyn LoadedGraph>> {
        let opened = guarded("loading", || self.open_derived(graph, folder));
        opened.inspect_err(|_| derived.remove_files(key))
    }

    /// onnxruntime maps one weight of a file after the other, packs it and unmaps it.
    fn make_derived(&self, graph: &Graph, weights: &HashedWeights<'_>, folder: &Path) -> Result<()> {
        let source = folder.join(prepacked::SOURCE);
        let graph = graph.encode_with_weights_at(&weights.write(&source)?)?;
        let saves = Some((folder.join(prepacked::MODEL), prepacked::DATA));
        let options = SessionOptions { prepacks: true, saves, ..self.options.clone() };
        let saved = Session::of_bytes(&self.library.environment, &options, &graph, folder).map(drop);
        // The allocator would keep the packed copies while the files are hashed and opened.
        trim_heap();
        saved.map_err(|failure| error(&failure))?;
        std::fs::remove_file(&source).map_err(|error| Error::io("removing", &error).in_file(source))
    }

    fn describe<'g>(&self, graph: &'g Graph, leases: &[Lease]) -> Result<OpenModel<'g>> {
        weight_bytes("onnxruntime", graph, leases)?;
        // It takes shared weights as values of the types of a store.
        refuse_four_bits("onnxruntime with shared weights", graph)?;
        if !leases.is_empty() && graph.inputs().is_empty() {
            return Err(Error::unsupported("onnxruntime takes shared weights for graphs with inputs only"));
        }
        let weights = graph.weights().iter();
        let weights = weights.map(|weight| Ok((&*weight.name, element_type(weight.dtype)?, &*weight.shape)));
        Ok(OpenModel {
            graph: graph.encode_with_weights_as_inputs()?,
            operator_sets: graph.operator_sets(),
            inputs: graph.inputs().iter().map(|port| port.name.as_str()).collect(),
            weights: weights.collect::<Result<_>>()?,
        })
    }
}

impl Engine for OrtEngine {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> &'static str {
        &self.library.version
    }

    fn library(&self) -> Option<&Path> {
        Some(&self.library.path)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            device: Device::Cpu,
            borrows_weights: true,
            borrows_inputs: true,
            writes_outputs_in_place: true,
            widens_floats: false,
            code_forms: CODE_FORMS,
            multiplied_codes: match self.derived {
                Some(_) => MultipliedCodes::Packed,
                None => MultipliedCodes::Expanded,
            },
            has_zero_points: true,
            has_coded_tables: true,
            multiplies_int8: true,
            keeps_activations: true,
            is_reproducible: false,
        }
    }

    fn load(&self, graph: &Graph, weights: Vec<Lease>) -> Result<Arc<dyn LoadedGraph>> {
        let open = || {
            let model = self.describe(graph, &weights)?;
            let session = Session::of_memory(weights, &self.library.environment, &self.options, &model);
            session.map_err(|failure| error(&failure))
        };
        let session = guarded("loading", open).map_err(|error| error.in_file(graph.path()))?;
        OrtGraph::of_graph(session, graph, "")
    }

    fn load_derived(
        &self,
        graph: &Graph,
        weights: &HashedWeights<'_>,
        fingerprint: &ContentHash,
    ) -> Result<Option<Arc<dyn LoadedGraph>>> {
        let Some((derived, key)) = self.derived(graph, fingerprint)? else { return Ok(None) };
        // Files that cannot be opened are made again.
        let found = derived.find_files(&key);
        if let Some(loaded) = found.and_then(|folder| self.open_or_remove(graph, derived, &key, &folder).ok()) {
            return Ok(Some(loaded));
        }
        // A fault of the graph is found again when it is loaded with the weights of the store.
        let make = || derived.make_files(&key, &mut |folder| self.make_derived(graph, weights, folder));
        let folder = guarded("loading", make)?;
        self.open_or_remove(graph, derived, &key, &folder).map(Some)
    }

    /// onnxruntime maps external data in both modes. It uses the same kernels as for shared graphs.
    fn load_file(&self, path: &Path, _mode: FileMode) -> Result<Arc<dyn LoadedGraph>> {
        let prepacks = self.derived.is_some();
        let options = SessionOptions { prepacks, ..self.options.clone() };
        let open = || {
            if !path.is_file() {
                return Err(Error::not_found("no such file"));
            }
            Session::of_file(&self.library.environment, &options, path).map_err(|failure| error(&failure))
        };
        let session = guarded("loading", open).map_err(|error| error.in_file(path))?;
        let (inputs, outputs) = session.outlets();
        let (inputs, outputs) = (inputs.iter().map(port).collect(), outputs.iter().map(port).collect());
        OrtGraph::open(session, inputs, outputs, DType::F32, "")
    }
}

fn port(outlet: &Outlet) -> Port {
    let dims = outlet.dtype().tensor_shape().map(|shape| shape.iter().map(|&dim| usize::try_from(dim).ok()).collect());
    Port { name: outlet.name().to_owned(), dtype: outlet.dtype().tensor_type().and_then(dtype), dims }
}
