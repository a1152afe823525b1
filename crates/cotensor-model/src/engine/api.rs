use crate::graph::Graph;
use crate::tensor::{Array, ArrayView};
use cotensor_core::{DType, Result};
use cotensor_store::Lease;
use std::path::Path;
use std::sync::Arc;

/// Loads graphs and runs them. Small on purpose: the store decides what runs, the pipeline decides in which order.
pub trait Engine: Send + Sync {
    /// Short name, part of every stage key: `rten`.
    fn name(&self) -> &'static str;

    /// Version, part of every stage key: two versions may round differently.
    fn version(&self) -> &'static str;

    /// What this engine can do.
    fn capabilities(&self) -> Capabilities;

    /// Loads `graph`, whose weights lie in `weights`: one lease per entry of [`Graph::weights`], in that order.
    /// The loaded graph reads them where they are and keeps the leases for as long as it lives.
    ///
    /// # Errors
    /// `Unsupported` for an operator or an attribute that this engine would get wrong or does not know, `Corrupt` for a graph that makes no sense.
    fn load(&self, graph: &Graph, weights: Vec<Lease>) -> Result<Arc<dyn LoadedGraph>>;

    /// Loads a graph from its file the way a program without Cotensor would: the yardstick of the demo and the benches.
    ///
    /// # Errors
    /// As [`load`](Engine::load), and `Io`.
    fn load_file(&self, path: &Path, mode: FileMode) -> Result<Arc<dyn LoadedGraph>>;
}

/// How [`Engine::load_file`] gets at the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileMode {
    /// Read into private memory: the engine's default.
    Read,
    /// The engine's own mapping of the file, which nobody may write or truncate while the graph lives (the engine would read
    /// torn weights, or the process die by SIGBUS). For files of one's own, to measure against; nothing shared uses it.
    Map,
}

/// What an engine can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Weights are used where they lie in the store's segments.
    pub borrows_weights: bool,
    /// Inputs are used where they lie.
    pub borrows_inputs: bool,
    /// Outputs can be written into memory of the caller; otherwise one copy out is made and counted.
    pub writes_outputs_in_place: bool,
}

/// A graph that is ready to run, on any thread.
pub trait LoadedGraph: Send + Sync {
    /// Runs the graph and returns the `outputs` asked for, in that order.
    ///
    /// # Errors
    /// `Invalid` for a missing, unknown or misshapen input or an unknown output, naming it; `Engine` when the engine fails.
    fn run(&self, inputs: &[(&str, ArrayView<'_>)], outputs: &[&str]) -> Result<Vec<Array>>;

    /// The type in which it computes, part of every stage key: a graph in float16 gives other numbers than the same one in
    /// float32.
    fn precision(&self) -> DType;

    /// Names of the graph's inputs, in its order.
    fn inputs(&self) -> &[String];

    /// The dimensions of an input, where the graph says them; `None` for one that may vary.
    fn input_dims(&self, name: &str) -> Option<&[Option<usize>]>;

    /// Names of the graph's outputs, in its order.
    fn outputs(&self) -> &[String];
}
