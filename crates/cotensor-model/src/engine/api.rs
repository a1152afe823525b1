use super::output::{Output, OutputAllocator, OwnMemory};
use super::state::{Keep, RunState};
use crate::graph::{CodeForm, CodeRules, Graph, Port};
use crate::tensor::{Array, TensorRef};
use crate::weights::HashedWeights;
use cotensor_core::{ContentHash, DType, DerivedFiles, Device, Error, Result};
use cotensor_store::Lease;
use std::path::Path;
use std::sync::Arc;

/// Loads graphs and runs them. The store decides which stages run, the pipeline decides their order.
pub trait Engine: Send + Sync {
    /// Short name, part of every stage key: `ort`, `rten`.
    fn name(&self) -> &'static str;

    /// Version, part of every stage key: two versions may round differently.
    fn version(&self) -> &'static str;

    /// The file of the library that this engine has loaded; `None` for one that is a part of this program.
    fn library(&self) -> Option<&Path> {
        None
    }

    /// What this engine can do.
    fn capabilities(&self) -> Capabilities;

    /// Refuses a graph that this engine would compute wrongly, before its weights are read. An engine may still refuse
    /// a graph when it is loaded.
    ///
    /// # Errors
    /// `Unsupported`; the error names the node.
    fn check(&self, graph: &Graph) -> Result<()> {
        let _ = graph;
        Ok(())
    }

    /// Loads `graph`. `weights` has one lease for each entry of [`Graph::weights`], in that order.
    /// The loaded graph reads the weights in place and keeps the leases as long as it lives.
    ///
    /// # Errors
    /// `Unsupported` for an operator or an attribute that this engine does not know or would compute wrongly, `Corrupt`
    /// for an inconsistent graph.
    fn load(&self, graph: &Graph, weights: Vec<Lease>) -> Result<Arc<dyn LoadedGraph>>;

    /// Loads `graph`, with these weights and this [fingerprint](Graph::fingerprint), from files in the layout of the engine's
    /// kernels. Makes the files if they do not exist. The loaded graph needs no weights of the store. `None`: the engine has no
    /// such files.
    ///
    /// # Errors
    /// The reason why it cannot make or open them, such as a full disk. The weights of the store are enough then, but for speed.
    fn load_derived(
        &self,
        graph: &Graph,
        weights: &HashedWeights<'_>,
        fingerprint: &ContentHash,
    ) -> Result<Option<Arc<dyn LoadedGraph>>> {
        let _ = (graph, weights, fingerprint);
        Ok(None)
    }

    /// Loads a graph from its file as a program without Cotensor would. The demo and the benchmarks compare against
    /// this.
    ///
    /// # Errors
    /// As [`load`](Engine::load), and `Io`.
    fn load_file(&self, path: &Path, mode: FileMode) -> Result<Arc<dyn LoadedGraph>>;
}

/// How an engine is opened.
#[derive(Clone, Default)]
pub struct EngineOptions {
    /// The number of threads of the engine's own; `None` lets the engine choose.
    pub threads: Option<usize>,
    /// Keeps weights in the layout of the engine's kernels, for engines that are faster with them. `None`: such an
    /// engine reads the weights of the store.
    pub derived: Option<Arc<dyn DerivedFiles>>,
}

impl From<Option<usize>> for EngineOptions {
    fn from(threads: Option<usize>) -> Self {
        Self { threads, derived: None }
    }
}

/// How [`Engine::load_file`] reads the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileMode {
    /// Into private memory: the engine's default.
    Read,
    /// From the engine's own mapping of the file. No program may write or truncate the file while the graph lives: the
    /// engine would read torn weights, or SIGBUS would end the process. For measurements with files of one's own;
    /// nothing shared uses it.
    Map,
}

/// What an engine can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The device on which graphs run.
    pub device: Device,
    /// The engine reads weights in place, in the segments of the store.
    pub borrows_weights: bool,
    /// The engine reads inputs in place.
    pub borrows_inputs: bool,
    /// The engine writes outputs into memory from the [`OutputAllocator`]. Otherwise the stage copies each output into
    /// the store and counts the copy.
    pub writes_outputs_in_place: bool,
    /// The engine computes with `float32` for every floating-point type.
    pub widens_floats: bool,
    /// The codes that the engine's `MatMulNBits` multiplies without expanding the matrix.
    pub code_forms: &'static [CodeForm],
    /// The codes that the engine multiplies.
    pub multiplied_codes: MultipliedCodes,
    /// The engine's `MatMulNBits` has packed zero points and a bias.
    pub has_zero_points: bool,
    /// The engine has `GatherBlockQuantized`.
    pub has_coded_tables: bool,
    /// The engine's `MatMulInteger` gives the right sums for all codes of 8 bits on this processor.
    pub multiplies_int8: bool,
    /// Codes of 2 and 8 bits that become those of 4 keep their activations. Otherwise these are `float32`.
    pub keeps_activations: bool,
    /// A graph of [`Engine::load_file`] gives the same bits as one of [`Engine::load`]. Otherwise they differ by
    /// rounding, because the engine optimizes them differently.
    pub is_reproducible: bool,
}

/// The codes that an engine multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultipliedCodes {
    /// Those of the store.
    Stored,
    /// Those that it packed into derived files. It expands those of the store for each run.
    Packed,
    /// None: it has no folder for packed ones, so it expands those of the store for each run.
    Expanded,
}

impl Capabilities {
    /// Gives a graph the forms of weights that the engine reads, before the weights are read: [`Graph::widen`] and
    /// [`Graph::fit_codes`].
    pub fn fit(&self, graph: &mut Graph) {
        if self.widens_floats {
            graph.widen();
        }
        let Self { code_forms: forms, has_zero_points, keeps_activations, widens_floats, .. } = *self;
        let Self { has_coded_tables, multiplies_int8, .. } = *self;
        graph.fit_codes(&CodeRules {
            forms,
            has_zero_points,
            keeps_activations,
            widens_floats,
            has_coded_tables,
            multiplies_int8,
        });
    }
}

/// A graph that is ready to run, on any thread.
pub trait LoadedGraph: Send + Sync {
    /// Runs the graph and returns `outputs`, in that order, with the element types that the graph declares.
    ///
    /// An engine that can write outputs into given memory gets it from `allocator`; others return arrays. If the engine
    /// computes with another element type than an input has or an output declares, it converts and reports the
    /// bytes to `allocator`.
    ///
    /// # Errors
    /// `Invalid` for a missing, unknown or misshapen input or an unknown output; the error names it. `Unsupported` for
    /// an input on a device that the engine cannot read. `Engine` when the engine fails.
    fn run(
        &self,
        inputs: &[(&str, TensorRef<'_>)],
        outputs: &[&str],
        allocator: &dyn OutputAllocator,
    ) -> Result<Vec<Output>>;

    /// As [`run`](LoadedGraph::run), with further inputs from `state`, and with outputs that stay in the engine as
    /// inputs of later runs, of this graph or of another graph of the engine.
    ///
    /// Every value of `state` that is an input of the graph and not in `inputs` is read. If the run keeps an output for
    /// the same input, the engine gets the value and may extend it in place; otherwise the value stays. An engine that
    /// copies a value counts its bytes in the state. After an error the state is incomplete.
    ///
    /// An engine without a form of its own keeps arrays, and copies them.
    ///
    /// # Errors
    /// As [`run`](LoadedGraph::run); `Invalid` for a state of another engine.
    fn run_keeping(
        &self,
        inputs: &[(&str, TensorRef<'_>)],
        outputs: &[&str],
        state: &mut RunState,
        keep: &[Keep<'_>],
        allocator: &dyn OutputAllocator,
    ) -> Result<Vec<Output>> {
        keep_arrays(self, inputs, outputs, state, keep, allocator)
    }

    /// Runs the graph without a store: the outputs are arrays in host memory.
    ///
    /// # Errors
    /// As [`run`](LoadedGraph::run).
    fn run_alone(&self, inputs: &[(&str, TensorRef<'_>)], outputs: &[&str]) -> Result<Vec<Array>> {
        self.run(inputs, outputs, &OwnMemory::default())?.into_iter().map(Output::into_array).collect()
    }

    /// The element type in which the engine computes, part of every stage key: float16 gives other numbers than
    /// float32.
    fn precision(&self) -> DType;

    /// The kind of kernels, part of every stage key; empty for the engine's only kind. Two kinds may round differently.
    fn variant(&self) -> &'static str {
        ""
    }

    /// The inputs, in the order of the graph.
    fn inputs(&self) -> &[Port];

    /// The outputs, in the order of the graph.
    fn outputs(&self) -> &[Port];
}

/// [`LoadedGraph::run_keeping`] for an engine without a form of its own: the state has arrays, and each run copies them.
///
/// # Errors
/// As [`LoadedGraph::run_keeping`].
pub fn keep_arrays(
    graph: &(impl LoadedGraph + ?Sized),
    inputs: &[(&str, TensorRef<'_>)],
    outputs: &[&str],
    state: &mut RunState,
    keep: &[Keep<'_>],
    allocator: &dyn OutputAllocator,
) -> Result<Vec<Output>> {
    let mut all = inputs.to_vec();
    let read = state.read_by(graph.inputs(), inputs);
    for (name, value) in state.values().filter(|(name, _)| read.iter().any(|known| known == name)) {
        let array = value.downcast_ref::<Array>();
        let array = array.ok_or_else(|| Error::invalid("the state is of another engine").in_field(name))?;
        all.push((name, array.into()));
    }
    let requested: Vec<&str> = outputs.iter().copied().chain(keep.iter().map(|keep| keep.output)).collect();
    let mut results = graph.run(&all, &requested, &OwnMemory::counted_by(allocator))?;
    for (keep, value) in keep.iter().zip(results.split_off(outputs.len())) {
        let array = value.into_array()?;
        state.record_copy(array.bytes().len());
        state.put(keep.input, Box::new(array));
    }
    Ok(results)
}
