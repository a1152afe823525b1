//! A graph that is trunk and head in one file, cut in two, so that models with the same trunk share its computation.
//!
//! The trunk ends with the last encoder block ([`encoder`](super::encoder) proves the place). A graph without such a place is not cut.

use super::encoder::{Cut, EncoderSize, find};
use super::graph::Graph;
use super::initializer;
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
    /// The part up to the end of the last of the encoder's blocks. Its only output is that block's result, named `output`.
    ///
    /// # Errors
    /// `Unsupported` with the reason when the graph has no place that is provably the end of an encoder of this size.
    pub fn trunk(self, output: &str, encoder: EncoderSize) -> Result<Graph> {
        self.half(Half::Trunk, output, encoder)
    }

    /// The part after the last of the encoder's blocks. Its only input is that block's result, named `input`.
    ///
    /// # Errors
    /// As [`Graph::trunk`].
    pub fn rest(self, input: &str, encoder: EncoderSize) -> Result<Graph> {
        self.half(Half::Head, input, encoder)
    }

    fn half(mut self, half: Half, name: &str, encoder: EncoderSize) -> Result<Graph> {
        let graph = self.model.graph.as_mut().expect("a graph without its graph is not opened");
        let cut = find(graph, encoder).map_err(|why| {
            Error::unsupported(format!("the graph does not give {name} and cannot be cut: {why}")).in_field(name)
        })?;
        // The name may be the value's already, but no other's.
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
                // What depends on no input belongs to whichever half needs it.
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

/// The description of the value at the cut, under its new name. Where the file has none it is made up of what a trunk
/// gives, because engines choose kernels by it: hidden states `[batch, tokens, width]`.
fn boundary(graph: &GraphProto, cut: &Cut, name: &str) -> ValueInfoProto {
    let known = graph.value_info.iter().find(|known| known.name.as_ref() == Some(&cut.value));
    let kind = known.and_then(|known| known.r#type.clone()).unwrap_or_else(|| {
        // The scale or shift that the normalization ends in.
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

/// Drops the nodes that no output needs.
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
