//! Declared shapes, for an engine that computes with them instead of the true ones. No engine checks them all: exporters give two
//! axes of different sizes one name, and keep sizes of the example that they traced.

use rten_onnx::onnx::{GraphProto, ValueInfoProto};
use std::collections::HashMap;

/// Removes the shapes of all values but the inputs, whose sizes such an engine checks in each run. The names of their dimensions
/// become numbers, so that none is a name of the engine's own, or are removed.
pub(super) fn remove(graph: &mut GraphProto, keeps_names: bool) {
    let mut names = HashMap::new();
    let inputs = graph.input.iter_mut().filter_map(|input| input.r#type.as_mut()?.tensor_type.as_mut()?.shape.as_mut());
    for dim in inputs.flat_map(|shape| &mut shape.dim) {
        dim.dim_param = dim.dim_param.take().filter(|_| keeps_names).map(|name| {
            let number = names.len();
            format!("size_{}", names.entry(name).or_insert(number))
        });
    }
    graph.output.iter_mut().chain(&mut graph.value_info).for_each(remove_shape);
    remove_in_subgraphs(graph);
}

fn remove_in_subgraphs(graph: &mut GraphProto) {
    let attributes = graph.node.iter_mut().flat_map(|node| &mut node.attribute);
    for subgraph in attributes.filter_map(|attribute| attribute.g.as_mut()) {
        let values = subgraph.input.iter_mut().chain(&mut subgraph.output).chain(&mut subgraph.value_info);
        values.for_each(remove_shape);
        remove_in_subgraphs(subgraph);
    }
}

fn remove_shape(value: &mut ValueInfoProto) {
    if let Some(tensor) = value.r#type.as_mut().and_then(|kind| kind.tensor_type.as_mut()) {
        tensor.shape = None;
    }
}
