//! Finds the end of an encoder in a graph by the structure of encoder blocks.
//!
//! A transformer block multiplies two values that depend on the elements of the input twice (queries by keys, weights
//! by values), adds the result to the residual stream, and adds a feed-forward part. Two normalizations follow the last
//! such product: one around the feed-forward part, and one at the end of the encoder. A normalization of the head comes
//! later and adds no residual, so it is not the end.

use super::constants::Constants;
use super::flow::{Flow, repeatable, separates};
use super::proto::operator;
use cotensor_core::DType;
use rten_onnx::onnx::{GraphProto, NodeProto};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// The size of an encoder and what follows it in its graph, from the configuration of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncoderSize {
    /// The number of blocks.
    pub layers: usize,
    /// The elements of a hidden state.
    pub width: usize,
    /// The decoder that follows; `None` for a head.
    pub decoder: Option<DecoderSize>,
}

/// A decoder in the graph of its encoder. Each of its blocks has an attention to itself and one to the encoder's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecoderSize {
    /// The number of blocks.
    pub layers: usize,
    /// The inputs of the graph that it may read beside the encoder's result: masks. It may read the shapes of all inputs.
    pub inputs: Vec<String>,
}

/// The attention products of a decoder that do not count if the queries of its first block are constants, as in DETR: two of
/// its attention to itself, and the product of its queries and the encoder's keys.
const CONSTANT_PRODUCTS: usize = 3;

impl EncoderSize {
    /// The number of attention products of the encoder.
    fn products(&self) -> usize {
        self.layers.saturating_mul(2)
    }

    /// The possible numbers of attention products of the whole graph.
    fn products_in_all(&self) -> [usize; 2] {
        let decoder = self.decoder.as_ref().map_or(0, |decoder| decoder.layers.saturating_mul(4));
        [0, CONSTANT_PRODUCTS].map(|constant| self.products().saturating_add(decoder.saturating_sub(constant)))
    }
}

impl fmt::Display for EncoderSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} encoder blocks", self.layers)?;
        self.decoder.as_ref().map_or(Ok(()), |decoder| write!(formatter, " and {} decoder blocks", decoder.layers))
    }
}

/// The position of a cut: the nodes up to `node` are the trunk, and the rest reads `value`, and otherwise only what it
/// computes again.
pub(super) struct Cut {
    pub(super) node: usize,
    pub(super) value: String,
    /// For each node, whether the part after the cut may compute it again: it does not depend on the inputs of the graph,
    /// or on their shapes only, or on inputs that the part may read.
    pub(super) repeated: Vec<bool>,
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
pub(super) fn find(graph: &GraphProto, size: &EncoderSize) -> Result<Cut, String> {
    let constants = Constants::of(graph);
    let flow = Flow::of(graph).ok_or("the graph has subgraphs, or its nodes are out of order")?;
    let walk = Walk::new(graph, &constants, &flow);

    let products = walk.all_products();
    let last = size.products().checked_sub(1).and_then(|last| products.get(last));
    let (Some(&last), true) = (last, size.products_in_all().contains(&products.len())) else {
        let [wanted, _] = size.products_in_all();
        return Err(format!("{size} have {wanted} attention products, the graph has {}", products.len()));
    };
    let next = products.get(size.products()).copied().unwrap_or(graph.node.len());
    let mut norms = (last + 1..next).filter_map(|node| walk.norm(node));
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
    let scaled = |name: &String| constants.dims(name) == Some(&[size.width as i64]);
    if !graph.node[outer.end].input.iter().any(scaled) {
        return Err(format!("the normalization after the last block is not over {} elements", size.width));
    }
    if graph.output.iter().any(|output| output.name.as_deref() == Some(outer.output)) {
        return Err("the last block's result is an output already, under another name".into());
    }
    let repeatable = match &size.decoder {
        Some(decoder) => repeatable(graph, &flow, &decoder.inputs),
        // A head has one input.
        None if graph.node[outer.end..].iter().any(|node| flow.measures_input(node)) => {
            return Err("the nodes after the last block read the shape of an input".into());
        }
        None => HashSet::new(),
    };
    separates(graph, &flow, outer.end, outer.output, &repeatable)?;
    Ok(Cut { node: outer.end, value: outer.output.to_owned(), repeated: flow.repeated(graph, &repeatable) })
}

/// A graph with indexes of its values.
pub(super) struct Walk<'g> {
    graph: &'g GraphProto,
    constants: &'g Constants<'g>,
    flow: &'g Flow<'g>,
    /// The node that makes each value.
    makers: HashMap<&'g str, &'g NodeProto>,
    /// The nodes that read each value, in order.
    readers: HashMap<&'g str, Vec<usize>>,
}

impl<'g> Walk<'g> {
    pub(super) fn new(graph: &'g GraphProto, constants: &'g Constants<'g>, flow: &'g Flow<'g>) -> Self {
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

/// Whether a node reduces the last axis.
fn over_last_axis(node: &NodeProto, constants: &Constants<'_>) -> bool {
    let attribute = node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some("axes"));
    match (attribute, node.input.get(1)) {
        (Some(axes), _) => axes.ints == [-1],
        (None, Some(axes)) => constants.elements(axes) == Some((DType::I64, (-1i64).to_le_bytes().to_vec())),
        (None, None) => false,
    }
}
