//! Which values of a graph depend on its inputs, and which of them a place between its nodes separates.

use super::proto::operator;
use rten_onnx::onnx::{GraphProto, NodeProto};
use std::collections::HashSet;

/// The values that depend on the inputs of the graph.
pub(super) struct Flow<'g> {
    pub(super) inputs: Vec<&'g str>,
    pub(super) varying: HashSet<&'g str>,
    /// The varying values that depend on elements, not on shapes alone.
    pub(super) data: HashSet<&'g str>,
}

impl<'g> Flow<'g> {
    /// `None` for nodes out of order, names that are defined twice, and subgraphs, which may read any outer value.
    pub(super) fn of(graph: &'g GraphProto) -> Option<Self> {
        let mut defined: HashSet<&str> = graph.initializer.iter().filter_map(|tensor| tensor.name.as_deref()).collect();
        let names = graph.input.iter().filter_map(|input| input.name.as_deref());
        let inputs: Vec<&str> = names.filter(|name| !defined.contains(name)).collect();
        let mut varying: HashSet<&str> = inputs.iter().copied().collect();
        let mut data = varying.clone();
        defined.extend(&inputs);
        for node in &graph.node {
            let known = |name: &String| name.is_empty() || defined.contains(name.as_str());
            if !node.input.iter().all(known) || node.attribute.iter().any(|attribute| attribute.g.is_some()) {
                return None;
            }
            let varies = node.input.iter().any(|name| varying.contains(name.as_str()));
            let measures = matches!(operator(node), "Shape" | "Size");
            let carries = !measures && node.input.iter().any(|name| data.contains(name.as_str()));
            for name in node.output.iter().map(String::as_str).filter(|name| !name.is_empty()) {
                if !defined.insert(name) {
                    return None;
                }
                if varies {
                    varying.insert(name);
                }
                if carries {
                    data.insert(name);
                }
            }
        }
        Some(Self { inputs, varying, data })
    }

    /// Whether a node gives the shape or the size of an input.
    pub(super) fn measures_input(&self, node: &NodeProto) -> bool {
        let first = node.input.first().map_or("", String::as_str);
        matches!(operator(node), "Shape" | "Size") && self.inputs.contains(&first)
    }

    /// For each node, whether the part after a place may compute it again: its outputs do not vary or are `repeatable`.
    pub(super) fn repeated(&self, graph: &GraphProto, repeatable: &HashSet<&str>) -> Vec<bool> {
        let again = |name: &String| !self.varying.contains(name.as_str()) || repeatable.contains(name.as_str());
        graph.node.iter().map(|node| node.output.iter().all(again)).collect()
    }
}

/// The varying values that the part after a place can compute again: those that follow from the shapes of the graph's inputs,
/// and from the elements of the inputs `again`.
pub(super) fn repeatable<'g>(graph: &'g GraphProto, flow: &Flow<'g>, again: &[String]) -> HashSet<&'g str> {
    let is_again = |name: &&str| again.iter().any(|input| input == name);
    let mut known: HashSet<&str> = flow.inputs.iter().copied().filter(is_again).collect();
    for node in &graph.node {
        let follows = |name: &String| !flow.varying.contains(name.as_str()) || known.contains(name.as_str());
        if flow.measures_input(node) || node.input.iter().all(follows) {
            known.extend(node.output.iter().map(String::as_str));
        }
    }
    known.retain(|name| flow.varying.contains(name));
    known
}

/// Whether `value`, which node number `end` makes, separates the nodes up to it from the rest: the rest and the outputs of
/// the graph read no other value from before that varies and is not `repeatable`.
///
/// # Errors
/// The reason, with the other value.
pub(super) fn separates(
    graph: &GraphProto,
    flow: &Flow<'_>,
    end: usize,
    value: &str,
    repeatable: &HashSet<&str>,
) -> Result<(), String> {
    let (before, after) = graph.node.split_at(end + 1);
    let made: HashSet<&str> = before.iter().flat_map(|node| &node.output).map(String::as_str).collect();
    // A shape of an input may be taken again.
    let reads = after.iter().filter(|node| !flow.measures_input(node)).flat_map(|node| &node.input);
    let given = graph.output.iter().filter_map(|output| output.name.as_deref());
    let other = reads.map(String::as_str).chain(given).find(|&name| {
        let crosses = made.contains(name) || flow.inputs.contains(&name);
        crosses && name != value && flow.varying.contains(name) && !repeatable.contains(name)
    });
    match other {
        None => Ok(()),
        Some(other) => Err(format!("the nodes after the block read another value, too: {other:?}")),
    }
}
