//! Cuts a graph that holds trunk and head, so that models with the same trunk share its computation.
//!
//! The trunk ends with the last encoder block; [`encoder`](super::encoder) proves its position. A graph without such a
//! position is not cut.

use super::encoder::{Cut, EncoderSize, find};
use super::initializer;
use super::onnx::Graph;
use super::proto::port;
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
    pub fn trunk(self, output: &str, encoder: EncoderSize) -> Result<Graph> {
        self.half(Half::Trunk, output, encoder)
    }

    /// The part after the last encoder block. Its only input is the result of that block, named `input`.
    ///
    /// # Errors
    /// As [`Graph::trunk`].
    pub fn rest(self, input: &str, encoder: EncoderSize) -> Result<Graph> {
        self.half(Half::Head, input, encoder)
    }

    fn half(mut self, half: Half, name: &str, encoder: EncoderSize) -> Result<Graph> {
        let graph = self.model.graph.as_mut().expect("an opened model has a graph");
        let cut = find(graph, encoder).map_err(|why| {
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
                // Both halves may need a node that is independent of the inputs.
                let mut position = 0;
                graph.node.retain(|_| {
                    position += 1;
                    position > cut.node + 1 || cut.constant[position - 1]
                });
                graph.input = vec![boundary];
                self.inputs = vec![port];
            }
        }
        for used in graph.node.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output)) {
            if *used == cut.value {
                name.clone_into(used);
            }
        }
        prune(graph);
        let names: HashSet<&str> =
            graph.node.iter().flat_map(|node| node.input.iter().chain(&node.output)).map(String::as_str).collect();
        let keep = |known: &Option<String>| known.as_deref().is_some_and(|known| names.contains(known));
        graph.initializer.retain(|tensor| keep(&tensor.name));
        graph.value_info.retain(|value| keep(&value.name));
        self.weights.retain(|weight| names.contains(weight.name.as_str()));
        initializer::detach(graph, &self.weights);
        let mut hasher = Hasher::new(if half == Half::Trunk { "cotensor trunk v1" } else { "cotensor rest v1" });
        hasher.field(self.structure_hash.as_bytes()).field(name.as_bytes());
        self.structure_hash = hasher.finish();
        Ok(self)
    }
}

/// The description of the value at the cut, under its new name. If the file has none, it describes hidden states
/// `[batch, tokens, width]`: engines choose kernels by it.
fn boundary(graph: &GraphProto, cut: &Cut, name: &str) -> ValueInfoProto {
    let known = graph.value_info.iter().find(|known| known.name.as_ref() == Some(&cut.value));
    let kind = known.and_then(|known| known.r#type.clone()).unwrap_or_else(|| {
        // The scale or the shift at the end of the normalization.
        let ends_in =
            |tensor: &&TensorProto| tensor.name.as_ref().is_some_and(|name| graph.node[cut.node].input.contains(name));
        let width = graph.initializer.iter().find(ends_in).and_then(|tensor| tensor.dims.last().copied());
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
            needed.extend(node.input.iter().cloned());
            kept.push(node);
        }
    }
    kept.reverse();
    graph.node = kept;
}
