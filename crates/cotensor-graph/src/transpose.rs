//! Folds `Transpose(weight)` into a transposed weight, which is shared by its content. An engine would fold it into a
//! private copy.

use super::proto::{has_four_bits, normal_domain, visit_graphs, visit_nodes};
use super::repack::Repack;
use super::types::Weight;
use rten_onnx::onnx::{GraphProto, NodeProto, TensorProto};
use std::collections::{HashMap, HashSet};

/// Replaces transpositions of weights by weights, and drops unused weights.
pub(super) fn fold(graph: &mut GraphProto, weights: &mut Vec<Weight>) {
    let outputs: HashSet<String> = graph.output.iter().filter_map(|output| output.name.clone()).collect();
    let four_bits: HashSet<&str> = graph
        .initializer
        .iter()
        .filter(|tensor| has_four_bits(tensor))
        .filter_map(|tensor| tensor.name.as_deref())
        .collect();
    // The shape of a weight of 4 bits is not that of its bytes.
    let whole = weights.iter().filter(|weight| !four_bits.contains(weight.name.as_str()));
    let by_name: HashMap<&str, &Weight> = whole.map(|weight| (weight.name.as_str(), weight)).collect();
    let mut sources = HashSet::new();
    let mut transposed = Vec::new();
    graph.node.retain(|node| match transposition(node, &by_name) {
        // An output of the graph stays the output of a node.
        Some((source, weight)) if !outputs.contains(&weight.name) => {
            sources.insert(source);
            transposed.push(weight);
            false
        }
        _ => true,
    });
    drop_unread(graph, weights, sources);
    graph.initializer.extend(transposed.iter().map(|weight| TensorProto {
        name: Some(weight.name.clone()),
        dims: weight.shape.iter().map(|&dim| dim as i64).collect(),
        ..TensorProto::default()
    }));
    weights.append(&mut transposed);
}

/// Drops the weights with these names that neither a node nor an output reads.
pub(super) fn drop_unread(graph: &mut GraphProto, weights: &mut Vec<Weight>, mut names: HashSet<String>) {
    visit_nodes(graph, &mut |node| {
        for input in &node.input {
            names.remove(input);
        }
    });
    visit_graphs(graph, &mut |scope| {
        for output in &scope.output {
            names.remove(output.name.as_deref().unwrap_or_default());
        }
    });
    weights.retain(|weight| !names.contains(&weight.name));
    graph.initializer.retain(|tensor| !tensor.name.as_ref().is_some_and(|name| names.contains(name)));
}

/// The transposed weight that a node makes, with the name of its source.
fn transposition(node: &NodeProto, weights: &HashMap<&str, &Weight>) -> Option<(String, Weight)> {
    let ([input], [output]) = (node.input.as_slice(), node.output.as_slice()) else { return None };
    if node.op_type.as_deref() != Some("Transpose") || !normal_domain(node.domain.as_deref()).is_empty() {
        return None;
    }
    let weight = weights.get(input.as_str()).filter(|weight| weight.source.permutation.is_none())?;
    // The engine reports a second definition of the name.
    if output.is_empty() || weights.contains_key(output.as_str()) {
        return None;
    }
    let rank = weight.shape.len();
    let permutation = match node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some("perm")) {
        Some(perm) => perm.ints.iter().map(|&axis| usize::try_from(axis).ok()).collect::<Option<Vec<_>>>()?,
        None => (0..rank).rev().collect(),
    };
    let mut sorted = permutation.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..rank) {
        return None;
    }
    let shape = permutation.iter().map(|&axis| weight.shape[axis]).collect();
    let mut source = weight.source.clone();
    match (weight.shape.as_slice(), permutation.as_slice()) {
        _ if source.repacks.is_empty() => source.permutation = Some(permutation),
        (&[rows, columns], [1, 0]) => {
            source.repacks.push(Repack::Turned { rows, columns, width: source.dtype.size_bytes() });
        }
        _ => return None,
    }
    Some((input.clone(), Weight { name: output.clone(), dtype: weight.dtype, shape, source }))
}
