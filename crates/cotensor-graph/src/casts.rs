//! Drops conversions of weights to the type that they have in the store. An engine would compute them into private memory.

use super::proto::{defined_twice, integer, operator, visit_graphs};
use super::types::Weight;
use cotensor_core::DType;
use rten_onnx::onnx::{DataType, GraphProto, NodeProto};
use std::collections::{HashMap, HashSet};

/// Makes the readers of `Cast(weight)` to `float32` readers of the weight, if that is `float32`.
pub(super) fn drop(graph: &mut GraphProto, weights: &[Weight]) {
    let floats: HashSet<&str> =
        weights.iter().filter(|weight| weight.dtype == DType::F32).map(|weight| weight.name.as_str()).collect();
    if !graph.node.iter().any(|node| cast(node).is_some_and(|(input, _)| floats.contains(input))) {
        return;
    }
    let twice = defined_twice(graph);
    let is_plain =
        |input: &str, output: &str| floats.contains(input) && !twice.contains(input) && !twice.contains(output);
    let mut outputs = HashSet::new();
    visit_graphs(graph, &mut |scope| outputs.extend(scope.output.iter().filter_map(|output| output.name.clone())));
    let mut sources = HashMap::new();
    graph.node.retain(|node| match cast(node) {
        Some((input, output)) if is_plain(input, output) && !outputs.contains(output) => {
            sources.insert(output.to_owned(), input.to_owned());
            false
        }
        _ => true,
    });
    if !sources.is_empty() {
        rename(graph, &sources);
    }
}

/// The input and the output of a conversion to `float32`.
fn cast(node: &NodeProto) -> Option<(&str, &str)> {
    let (true, [input], [output]) = (operator(node) == "Cast", node.input.as_slice(), node.output.as_slice()) else {
        return None;
    };
    (integer(node, "to") == Some(i64::from(DataType::FLOAT.0)) && !output.is_empty()).then_some((input, output))
}

fn rename(graph: &mut GraphProto, sources: &HashMap<String, String>) {
    for node in &mut graph.node {
        for input in &mut node.input {
            if let Some(source) = sources.get(input) {
                source.clone_into(input);
            }
        }
        node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_mut()).for_each(|graph| rename(graph, sources));
    }
}
