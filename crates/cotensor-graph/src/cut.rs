//! Cuts a graph that holds trunk and head, so that models with the same trunk share its computation, and takes the part
//! of a graph that gives some of its outputs.
//!
//! The trunk ends with the last encoder block; [`encoder`](super::encoder) proves its position. A graph without such a
//! position is not cut. `block.rs` proves the end of an inner block. A family names the fields of config.json that state the place.

use super::block::{BlockEnd, find_block};
use super::constants::Constants;
use super::encoder::{Cut, EncoderSize, find};
use super::initializer;
use super::onnx::Graph;
use super::proto::{port, visit_nodes};
use cotensor_core::{Error, Hasher, Result};
use rten_onnx::onnx::{
    DataType, Dimension, GraphProto, NodeProto, TensorProto, TensorShapeProto, TypeProto, TypeProtoTensor,
    ValueInfoProto,
};
use std::collections::HashSet;

/// A half of a graph.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Trunk,
    Head,
}

impl Graph {
    /// The part up to the end of the last encoder block. Its only output is the result of that block, named `output`.
    ///
    /// # Errors
    /// `Unsupported` when the end of an encoder of this size cannot be proved; the message has the reason.
    pub fn trunk(self, output: &str, encoder: &EncoderSize) -> Result<Graph> {
        self.half(Half::Trunk, output, |graph| find(graph, encoder))
    }

    /// The part after the last encoder block. Its first input is the result of that block, named `input`. A head has no other
    /// input; a decoder has those that it reads.
    ///
    /// # Errors
    /// As [`Graph::trunk`].
    pub fn rest(self, input: &str, encoder: &EncoderSize) -> Result<Graph> {
        self.half(Half::Head, input, |graph| find(graph, encoder))
    }

    /// The blocks before `place`. The only output is the result of the last of them, named `output`.
    ///
    /// # Errors
    /// `Unsupported` when the place cannot be proved; the message has the reason.
    pub fn blocks_before(self, output: &str, place: BlockEnd) -> Result<Graph> {
        self.half(Half::Trunk, output, |graph| find_block(graph, place))
    }

    /// The part after `place`. Its first input is the result of the block before, named `input`. It has the inputs of
    /// the graph, too, whose shapes it reads.
    ///
    /// # Errors
    /// As [`Graph::blocks_before`].
    pub fn blocks_after(self, input: &str, place: BlockEnd) -> Result<Graph> {
        self.half(Half::Head, input, |graph| find_block(graph, place))
    }

    /// Whether the end of an encoder of this size can be proved.
    pub fn has_trunk(&self, encoder: &EncoderSize) -> bool {
        self.model.graph.as_ref().is_some_and(|graph| find(graph, encoder).is_ok())
    }

    /// Whether `place` can be proved.
    pub fn has_blocks(&self, place: BlockEnd) -> bool {
        self.model.graph.as_ref().is_some_and(|graph| find_block(graph, place).is_ok())
    }

    fn half(mut self, half: Half, name: &str, find: impl FnOnce(&GraphProto) -> Result<Cut, String>) -> Result<Graph> {
        let graph = self.model.graph.as_mut().expect("an opened model has a graph");
        let cut = find(graph).map_err(|why| {
            Error::unsupported(format!("the graph does not give {name} and cannot be cut: {why}")).in_field(name)
        })?;
        // The value may have the name already, but no other value may.
        let uses = |node: &NodeProto| node.input.iter().chain(&node.output).any(|known| known == name);
        let constant = |tensor: &TensorProto| tensor.name.as_deref() == Some(name);
        if cut.value != name && (graph.node.iter().any(uses) || graph.initializer.iter().any(constant)) {
            return Err(Error::unsupported("the graph uses this name for another value").in_field(name));
        }
        let boundary = boundary(graph, &cut, name);
        let port = port(&boundary)?;
        match half {
            Half::Trunk => {
                graph.node.truncate(cut.node + 1);
                graph.output = vec![boundary];
                self.outputs = vec![port];
            }
            Half::Head => {
                // Both halves may need a node that both can compute.
                let mut position = 0;
                graph.node.retain(|_| {
                    position += 1;
                    position > cut.node + 1 || cut.repeated[position - 1]
                });
                // Old files list constants as inputs.
                graph.input.retain(|input| self.inputs.iter().any(|port| input.name.as_ref() == Some(&port.name)));
                graph.input.insert(0, boundary);
                self.inputs.insert(0, port);
            }
        }
        for used in graph.node.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output)) {
            if *used == cut.value {
                name.clone_into(used);
            }
        }
        Ok(match half {
            Half::Trunk => self.reduced("cotensor trunk v1", &[name]),
            Half::Head => self.reduced("cotensor rest v1", &[name]).without_unread_inputs(),
        })
    }

    /// The part that gives the outputs `names`, in the order of the graph. Inputs, nodes and weights that this part
    /// does not need are dropped. Names without an output are ignored.
    pub fn part(mut self, names: &[&str]) -> Graph {
        let graph = self.model.graph.as_mut().expect("an opened model has a graph");
        graph.output.retain(|output| output.name.as_deref().is_some_and(|name| names.contains(&name)));
        self.outputs.retain(|output| names.contains(&output.name.as_str()));
        self.reduced("cotensor part v1", names).without_unread_inputs()
    }

    fn without_unread_inputs(mut self) -> Graph {
        let graph = self.model.graph.as_mut().expect("an opened model has a graph");
        let mut read = HashSet::new();
        graph.node.iter().for_each(|node| add_reads(node, &mut read));
        graph.input.retain(|input| input.name.as_deref().is_some_and(|name| read.contains(name)));
        self.inputs.retain(|input| read.contains(&input.name));
        self
    }

    /// Drops what the outputs do not need. `domain` and `names` identify the part.
    fn reduced(mut self, domain: &str, names: &[&str]) -> Graph {
        let graph = self.model.graph.as_mut().expect("an opened model has a graph");
        prune(graph);
        let mut hasher = Hasher::new(domain);
        hasher.field(self.structure_hash.as_bytes());
        for name in names {
            hasher.field(name.as_bytes());
        }
        self.structure_hash = hasher.finish();
        let mut names: HashSet<String> = graph.node.iter().flat_map(|node| &node.output).cloned().collect();
        graph.node.iter().for_each(|node| add_reads(node, &mut names));
        let keep = |known: &Option<String>| known.as_deref().is_some_and(|known| names.contains(known));
        graph.initializer.retain(|tensor| keep(&tensor.name));
        graph.value_info.retain(|value| keep(&value.name));
        self.weights.retain(|weight| names.contains(&weight.name));
        initializer::detach(graph, &self.weights);
        self
    }
}

/// The description of the value at the cut, under its new name. If the file has none, it describes hidden states
/// `[batch, tokens, width]`: engines choose kernels by it.
fn boundary(graph: &GraphProto, cut: &Cut, name: &str) -> ValueInfoProto {
    let known = graph.value_info.iter().find(|known| known.name.as_ref() == Some(&cut.value));
    let kind = known.and_then(|known| known.r#type.clone()).unwrap_or_else(|| {
        // The scale or the shift at the end of the normalization.
        let constants = Constants::of(graph);
        let width = graph.node[cut.node].input.iter().find_map(|name| constants.dims(name)?.last().copied());
        let dim = |dim_value| Dimension { dim_value, dim_param: None };
        let shape = TensorShapeProto { dim: vec![dim(None), dim(None), dim(width)] };
        TypeProto {
            tensor_type: Some(TypeProtoTensor { elem_type: Some(DataType::FLOAT), shape: Some(shape) }),
            ..TypeProto::default()
        }
    });
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(kind) }
}

/// Drops nodes on which no output depends.
fn prune(graph: &mut GraphProto) {
    let mut needed: HashSet<String> = graph.output.iter().filter_map(|output| output.name.clone()).collect();
    let mut kept = Vec::with_capacity(graph.node.len());
    for node in graph.node.drain(..).rev() {
        if node.output.iter().any(|name| needed.contains(name)) {
            add_reads(&node, &mut needed);
            kept.push(node);
        }
    }
    kept.reverse();
    graph.node = kept;
}

/// Adds the names that a node and the nodes of its subgraphs read.
fn add_reads(node: &NodeProto, names: &mut HashSet<String>) {
    names.extend(node.input.iter().cloned());
    for graph in node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()) {
        visit_nodes(graph, &mut |inner| names.extend(inner.input.iter().cloned()));
        names.extend(graph.output.iter().filter_map(|output| output.name.clone()));
    }
}
