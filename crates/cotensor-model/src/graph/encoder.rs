//! Finds the end of an encoder in a graph by the structure of encoder blocks.
//!
//! A transformer block multiplies two values that depend on the elements of the input twice (queries by keys, weights
//! by values), adds the result to the residual stream, and adds a feed-forward part. Two normalizations follow the last
//! such product: one around the feed-forward part, and one at the end of the encoder. A normalization of the head comes
//! later and adds no residual, so it is not the end.

use super::proto::{operator, tensor_bytes};
use rten_onnx::onnx::{GraphProto, NodeProto, TensorProto};
use std::collections::{HashMap, HashSet};

/// The size of an encoder, from its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderSize {
    /// The number of blocks.
    pub layers: usize,
    /// The elements of a hidden state.
    pub width: usize,
}

/// The position of a cut: the nodes up to `node` are the trunk, and `value` is the only varying value that the head
/// reads.
pub(super) struct Cut {
    pub(super) node: usize,
    pub(super) value: String,
    /// For each node, whether the part after the cut may compute it again: it does not depend on the inputs of the graph,
    /// or on their shapes only.
    pub(super) constant: Vec<bool>,
}

/// A layer normalization: one node or a sequence of nodes.
pub(super) struct Norm<'g> {
    pub(super) end: usize,
    pub(super) input: &'g str,
    pub(super) output: &'g str,
}

/// Finds the end of the last encoder block.
///
/// # Errors
/// The reason why the end cannot be proved.
pub(super) fn find(graph: &GraphProto, size: EncoderSize) -> Result<Cut, String> {
    let constants: HashMap<&str, &TensorProto> =
        graph.initializer.iter().filter_map(|tensor| Some((tensor.name.as_deref()?, tensor))).collect();
    let flow = Flow::of(graph, &constants).ok_or("the graph has subgraphs, or its nodes are out of order")?;
    let walk = Walk::new(graph, &constants, &flow);

    let products = walk.all_products();
    let (wanted, count) = (size.layers.saturating_mul(2), products.len());
    let (Some(&last), true) = (products.last(), count == wanted) else {
        return Err(format!("{} encoder blocks have {wanted} attention products, the graph has {count}", size.layers));
    };
    let mut norms = (last + 1..graph.node.len()).filter_map(|node| walk.norm(node));
    let (Some(inner), Some(outer)) = (norms.next(), norms.next()) else {
        return Err("fewer than two normalizations follow the last attention".into());
    };
    let attended = walk.depending_on(graph.node[last].output.first().map_or("", String::as_str), last);
    let fed_forward = walk.depending_on(inner.output, inner.end);
    let around_attention = walk.sum(inner.input).is_some_and(|(a, b)| attended.contains(a) || attended.contains(b));
    let residual =
        |name: &str| [inner.input, inner.output].map(|known| walk.origin(known)).contains(&walk.origin(name));
    let around_feed_forward = walk
        .sum(outer.input)
        .is_some_and(|(a, b)| residual(a) && fed_forward.contains(b) || residual(b) && fed_forward.contains(a));
    if !around_attention || !around_feed_forward {
        return Err(
            "the normalizations after the last attention do not end residual sums, as an encoder block's do".into()
        );
    }
    let scaled = |name: &String| constants.get(name.as_str()).is_some_and(|scale| scale.dims == [size.width as i64]);
    if !graph.node[outer.end].input.iter().any(scaled) {
        return Err(format!("the normalization after the last block is not over {} elements", size.width));
    }
    if graph.output.iter().any(|output| output.name.as_deref() == Some(outer.output)) {
        return Err("the last block's result is an output already, under another name".into());
    }
    if crossings(graph, &flow)[outer.end].as_deref() != Some(outer.output) {
        return Err("the nodes after the last block read other values, too".into());
    }
    let constant = graph.node.iter().map(|node| !node.output.iter().any(|name| flow.varying.contains(name.as_str())));
    Ok(Cut { node: outer.end, value: outer.output.to_owned(), constant: constant.collect() })
}

/// A graph with indexes of its values.
pub(super) struct Walk<'g> {
    graph: &'g GraphProto,
    constants: &'g HashMap<&'g str, &'g TensorProto>,
    flow: &'g Flow<'g>,
    /// The node that makes each value.
    makers: HashMap<&'g str, &'g NodeProto>,
    /// The nodes that read each value, in order.
    readers: HashMap<&'g str, Vec<usize>>,
}

impl<'g> Walk<'g> {
    pub(super) fn new(
        graph: &'g GraphProto,
        constants: &'g HashMap<&'g str, &'g TensorProto>,
        flow: &'g Flow<'g>,
    ) -> Self {
        let makes = |node: &'g NodeProto| node.output.iter().map(move |name| (name.as_str(), node));
        let mut readers: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, node) in graph.node.iter().enumerate() {
            node.input.iter().for_each(|name| readers.entry(name).or_default().push(at));
        }
        Self { graph, constants, flow, makers: graph.node.iter().flat_map(makes).collect(), readers }
    }

    /// The nodes with the products of attentions, in order; a node with two products is there twice.
    pub(super) fn all_products(&self) -> Vec<usize> {
        (0..self.graph.node.len()).flat_map(|node| std::iter::repeat_n(node, self.products(node))).collect()
    }

    /// The number of products of two values with data of the inputs that a node computes. A product with a table of
    /// positions is none: at most the size of the table depends on the inputs.
    fn products(&self, node: usize) -> usize {
        let node = &self.graph.node[node];
        let varying = || node.input.iter().filter(|name| self.flow.data.contains(name.as_str())).count() >= 2;
        match operator(node) {
            "MatMul" | "Einsum" | "Gemm" if varying() => 1,
            "Attention" => 2,
            _ => 0,
        }
    }

    /// The normalization that starts at a node.
    pub(super) fn norm(&self, start: usize) -> Option<Norm<'g>> {
        let node = &self.graph.node[start];
        let (input, first) = (node.input.first()?, node.output.first()?);
        if operator(node) == "LayerNormalization" {
            return Some(Norm { end: start, input, output: first });
        }
        if operator(node) != "ReduceMean" || !over_last_axis(node, self.constants) {
            return None;
        }
        // Before operator set 17: (x - mean) / deviation, then a scale and a shift.
        let (_, centred) =
            self.reader(first, |node| operator(node) == "Sub" && node.input == [input.as_str(), first])?;
        let divided =
            |node: &NodeProto| operator(node) == "Div" && node.input.first().is_some_and(|name| name == centred);
        let (mut end, mut output) = self.reader(centred, divided)?;
        for with in ["Mul", "Add"] {
            let varies = |name: &String| name != output && self.flow.varying.contains(name.as_str());
            let by_constant = |node: &NodeProto| operator(node) == with && !node.input.iter().any(varies);
            if let Some(next) = self.reader(output, by_constant) {
                (end, output) = next;
            }
        }
        Some(Norm { end, input, output })
    }

    /// The first node that reads a value and satisfies `like`, and its first output.
    fn reader(&self, name: &str, like: impl Fn(&NodeProto) -> bool) -> Option<(usize, &'g str)> {
        let at = *self.readers.get(name)?.iter().find(|&&at| like(&self.graph.node[at]))?;
        Some((at, self.graph.node[at].output.first()?))
    }

    /// The value of which `name` is a copy, possibly with another element type.
    pub(super) fn origin<'a>(&self, mut name: &'a str) -> &'a str
    where
        'g: 'a,
    {
        // The nodes are in order, so the loop ends.
        while let Some(node) = self.makers.get(name)
            && matches!(operator(node), "Identity" | "Cast" | "Dropout")
            && let Some(input) = node.input.first()
        {
            name = input;
        }
        name
    }

    /// The two varying summands of a value.
    pub(super) fn sum(&self, name: &str) -> Option<(&'g str, &'g str)> {
        let name = self.origin(name);
        let node = self.makers.get(name).filter(|node| operator(node) == "Add")?;
        match node.input.as_slice() {
            [a, b] if [a, b].iter().all(|name| self.flow.varying.contains(name.as_str())) => Some((a, b)),
            _ => None,
        }
    }

    /// All values after node `from` that depend on `name`, including `name`.
    pub(super) fn depending_on(&self, name: &'g str, from: usize) -> HashSet<&'g str> {
        let mut found = HashSet::from([name]);
        for node in &self.graph.node[from..] {
            if node.input.iter().any(|input| found.contains(input.as_str())) {
                found.extend(node.output.iter().map(String::as_str));
            }
        }
        found
    }
}

/// For each node: the only varying value that later nodes read; `None` if they read several.
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

/// The values that depend on the inputs of the graph.
pub(super) struct Flow<'g> {
    pub(super) inputs: Vec<&'g str>,
    pub(super) varying: HashSet<&'g str>,
    /// The varying values that depend on elements, not on shapes alone.
    data: HashSet<&'g str>,
}

impl<'g> Flow<'g> {
    /// `None` for nodes out of order, names that are defined twice, and subgraphs, which may read any outer value.
    pub(super) fn of(graph: &'g GraphProto, constants: &HashMap<&str, &TensorProto>) -> Option<Self> {
        let names = graph.input.iter().filter_map(|input| input.name.as_deref());
        let inputs: Vec<&str> = names.filter(|name| !constants.contains_key(name)).collect();
        let mut varying: HashSet<&str> = inputs.iter().copied().collect();
        let (mut defined, mut data) = (varying.clone(), varying.clone());
        for node in &graph.node {
            let known = |name: &String| {
                name.is_empty() || defined.contains(name.as_str()) || constants.contains_key(name.as_str())
            };
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
}

/// Whether a node reduces the last axis.
fn over_last_axis(node: &NodeProto, constants: &HashMap<&str, &TensorProto>) -> bool {
    let attribute = node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some("axes"));
    match (attribute, node.input.get(1).and_then(|name| constants.get(name.as_str()))) {
        (Some(axes), _) => axes.ints == [-1],
        (None, Some(axes)) => tensor_bytes(axes) == (-1i64).to_le_bytes(),
        (None, None) => false,
    }
}
