//! A whole graph, trunk and head in one file, cut in two, so that models which have a trunk in common share its computation.
//!
//! The trunk ends at the last normalization whose result is all that the rest of the graph needs. Where there is no such place the graph stays whole.

use super::fingerprint::tensor_bytes;
use super::{Graph, initializer, normal_domain};
use cotensor_core::Hasher;
use rten_onnx::onnx::{
    DataType, Dimension, GraphProto, NodeProto, TensorProto, TensorShapeProto, TypeProto, TypeProtoTensor,
    ValueInfoProto,
};
use std::collections::{HashMap, HashSet};

/// Where to cut: nodes up to and with `node` are the trunk, and `value` is what they hand on.
struct Cut {
    node: usize,
    value: String,
    /// For each node, whether it depends on no input of the graph.
    constant: Vec<bool>,
}

/// A half of a graph.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Trunk,
    Head,
}

impl Graph {
    /// The part up to the last normalization, its result as the only output, named `output`.
    /// `None` where the graph has no such place.
    pub fn trunk(self, output: &str) -> Option<Graph> {
        self.half(Half::Trunk, output)
    }

    /// The part after the last normalization, whose result is its only input, named `input`.
    /// `None` where the graph has no such place.
    pub fn rest(self, input: &str) -> Option<Graph> {
        self.half(Half::Head, input)
    }

    fn half(mut self, half: Half, name: &str) -> Option<Graph> {
        let graph = self.model.graph.as_mut().expect("a graph without its graph is not opened");
        let cut = find(graph)?;
        // The name may be the value's already, but no other's.
        let uses = |node: &NodeProto| node.input.iter().chain(&node.output).any(|known| known == name);
        let constant = |tensor: &TensorProto| tensor.name.as_deref() == Some(name);
        if cut.value != name && (graph.node.iter().any(uses) || graph.initializer.iter().any(constant)) {
            return None;
        }
        let boundary = boundary(graph, &cut, name);
        let port = super::port(&boundary).ok()?;
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
        Some(self)
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

fn find(graph: &GraphProto) -> Option<Cut> {
    let constants: HashMap<&str, &TensorProto> =
        graph.initializer.iter().filter_map(|tensor| Some((tensor.name.as_deref()?, tensor))).collect();
    let flow = Flow::of(graph, &constants)?;
    let crossings = crossings(graph, &flow);
    let is = |node: &NodeProto, operator: &str| {
        node.op_type.as_deref() == Some(operator) && normal_domain(node.domain.as_deref()).is_empty()
    };
    let mut node = match graph.node.iter().rposition(|node| is(node, "LayerNormalization")) {
        Some(node) => node,
        // Before operator set 17 a normalization is spelt out: means over the last axis, then a scale and a shift.
        None => {
            let mean = |node: &NodeProto| is(node, "ReduceMean") && over_last_axis(node, &constants);
            let mean = graph.node.iter().rposition(mean)?;
            (mean..graph.node.len()).find(|&node| crossings[node].is_some())?
        }
    };
    if !is(&graph.node[node], "LayerNormalization") {
        for operator in ["Mul", "Add"] {
            let (Some(value), Some(next)) = (&crossings[node], graph.node.get(node + 1)) else { break };
            let by_constant = next.input.iter().all(|input| input == value || !flow.varying.contains(input.as_str()));
            if is(next, operator) && by_constant && crossings[node + 1].is_some() {
                node += 1;
            }
        }
    }
    let value = crossings[node].clone()?;
    let ends_there = graph.output.iter().any(|output| output.name.as_ref() == Some(&value));
    let constant = graph.node.iter().map(|node| !node.output.iter().any(|name| flow.varying.contains(name.as_str())));
    (!ends_there && node + 1 < graph.node.len()).then(|| Cut { node, value, constant: constant.collect() })
}

/// For each node: the one varying value that those after it need; `None` where they need more.
fn crossings(graph: &GraphProto, flow: &Flow<'_>) -> Vec<Option<String>> {
    let count = graph.node.len();
    let mut last_use: HashMap<&str, usize> = HashMap::new();
    for (position, node) in graph.node.iter().enumerate() {
        last_use.extend(node.input.iter().map(|name| (name.as_str(), position)));
    }
    last_use.extend(graph.output.iter().filter_map(|output| Some((output.name.as_deref()?, count))));
    let mut open: HashSet<&str> = flow.inputs.iter().copied().filter(|name| last_use.contains_key(name)).collect();
    let mut crossings = Vec::with_capacity(count);
    for (position, node) in graph.node.iter().enumerate() {
        let needed = |name: &&str| last_use.get(name).is_some_and(|&last| last > position);
        open.extend(node.output.iter().map(String::as_str).filter(|name| flow.varying.contains(name)));
        open.retain(needed);
        let only = if open.len() == 1 { open.iter().next() } else { None };
        crossings.push(only.map(|&name| name.to_owned()));
    }
    crossings
}

/// Which values depend on the graph's inputs.
struct Flow<'g> {
    inputs: Vec<&'g str>,
    varying: HashSet<&'g str>,
}

impl<'g> Flow<'g> {
    /// `None` for nodes out of order, names defined twice, and subgraphs, which may read any value around them.
    fn of(graph: &'g GraphProto, constants: &HashMap<&str, &TensorProto>) -> Option<Self> {
        let names = graph.input.iter().filter_map(|input| input.name.as_deref());
        let inputs: Vec<&str> = names.filter(|name| !constants.contains_key(name)).collect();
        let mut varying: HashSet<&str> = inputs.iter().copied().collect();
        let mut defined = varying.clone();
        for node in &graph.node {
            let known = |name: &String| {
                name.is_empty() || defined.contains(name.as_str()) || constants.contains_key(name.as_str())
            };
            if !node.input.iter().all(known) || node.attribute.iter().any(|attribute| attribute.g.is_some()) {
                return None;
            }
            let varies = node.input.iter().any(|name| varying.contains(name.as_str()));
            for name in node.output.iter().map(String::as_str).filter(|name| !name.is_empty()) {
                if !defined.insert(name) {
                    return None;
                }
                if varies {
                    varying.insert(name);
                }
            }
        }
        Some(Self { inputs, varying })
    }
}

/// Whether a mean is over the last axis, which only a normalization takes.
fn over_last_axis(node: &NodeProto, constants: &HashMap<&str, &TensorProto>) -> bool {
    let attribute = node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some("axes"));
    match (attribute, node.input.get(1).and_then(|name| constants.get(name.as_str()))) {
        (Some(axes), _) => axes.ints == [-1],
        (None, Some(axes)) => tensor_bytes(axes) == (-1i64).to_le_bytes(),
        (None, None) => false,
    }
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
