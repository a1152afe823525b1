//! The inputs and outputs of a loaded graph.

use cotensor_graph::Port;
use cotensor_preprocess::family::{Source, StageDef};

/// The graph of a stage, as tasks see it.
#[derive(Clone, Copy, Debug)]
pub struct StagePorts<'a> {
    /// The role in its model.
    pub role: &'a str,
    /// The inputs, in the order of the graph.
    pub inputs: &'a [Port],
    /// The outputs, in the order of the graph.
    pub outputs: &'a [Port],
}

impl<'a> StagePorts<'a> {
    /// The input of this name.
    pub fn input(&self, name: &str) -> Option<&'a Port> {
        self.inputs.iter().find(|port| port.name == name)
    }

    /// The input that reads `source`.
    pub fn input_of(&self, def: &StageDef, source: &Source) -> Option<&'a Port> {
        self.inputs.iter().find(|port| def.source(&port.name) == Some(source))
    }

    /// Whether the graph has an output of this name.
    pub fn has_output(&self, name: &str) -> bool {
        self.outputs.iter().any(|port| port.name == name)
    }

    /// The names of the outputs, for error messages.
    pub fn output_names(&self) -> String {
        self.outputs.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The number of tokens that the graph reads, if it is fixed.
    pub fn fixed_length(&self, def: &StageDef) -> Option<usize> {
        self.input_of(def, &Source::TextIds)?.dims.as_ref()?.get(1).copied().flatten()
    }
}
