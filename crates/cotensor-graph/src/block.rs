//! Finds the end of an inner block of an encoder that normalizes before attention and before the feed-forward part, as
//! CLIP does. Two models that read different layers of one tower are cut at the same block, and share the blocks before.

use super::constants::Constants;
use super::encoder::{Cut, Walk};
use super::flow::{Flow, repeatable, separates};
use super::proto::operator;
use rten_onnx::onnx::GraphProto;

/// A place after a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEnd {
    /// The number of blocks in the graph.
    pub blocks: usize,
    /// The number of blocks before the place.
    pub before: usize,
    /// The elements of a hidden state.
    pub width: usize,
}

/// Finds the sum that ends block number `place.before`.
///
/// # Errors
/// The reason why the end cannot be proved.
pub(super) fn find_block(graph: &GraphProto, place: BlockEnd) -> Result<Cut, String> {
    let constants = Constants::of(graph);
    let flow = Flow::of(graph).ok_or("the graph has subgraphs, or its nodes are out of order")?;
    let walk = Walk::new(graph, &constants, &flow);
    let products = walk.all_products();
    let (wanted, count) = (place.blocks.saturating_mul(2), products.len());
    if count != wanted {
        return Err(format!("{} blocks have {wanted} attention products, the graph has {count}", place.blocks));
    }
    let Some(&last) = (place.before.checked_mul(2)).and_then(|end| products.get(end.checked_sub(1)?)) else {
        return Err(format!("{} blocks have no end of block {}", place.blocks, place.before));
    };
    // The next block begins with its attention. After the last one, anything may follow.
    let next = products.get(place.before * 2).copied().unwrap_or(graph.node.len());
    let norm = (last + 1..next).find_map(|node| walk.norm(node));
    let norm = norm.ok_or("no normalization follows the attention")?;
    let attended = walk.depending_on(graph.node[last].output.first().map_or("", String::as_str), last);
    let fed_forward = walk.depending_on(norm.output, norm.end);
    let residual = |name: &str| walk.origin(name) == walk.origin(norm.input);
    if !walk.sum(norm.input).is_some_and(|(a, b)| attended.contains(a) || attended.contains(b)) {
        return Err("the normalization after the attention is not around a residual sum, as a block's is".into());
    }
    let scaled = |name: &String| constants.dims(name) == Some(&[place.width as i64]);
    if !graph.node[norm.end].input.iter().any(scaled) {
        return Err(format!("the normalization after the attention is not over {} elements", place.width));
    }
    let ends = |node: &usize| {
        let sum = graph.node[*node].output.first().and_then(|name| walk.sum(name));
        operator(&graph.node[*node]) == "Add"
            && sum
                .is_some_and(|(a, b)| residual(a) && fed_forward.contains(b) || residual(b) && fed_forward.contains(a))
    };
    let node = (norm.end + 1..next).find(ends).ok_or("no residual sum follows the feed-forward part")?;
    let value = graph.node[node].output[0].clone();
    if graph.output.iter().any(|output| output.name.as_ref() == Some(&value)) {
        return Err("the block's result is an output already, under another name".into());
    }
    let repeatable = repeatable(graph, &flow, &[]);
    separates(graph, &flow, node, &value, &repeatable)?;
    Ok(Cut { node, value, repeated: flow.repeated(graph, &repeatable) })
}
