//! A product by codes, as its node has it.

use super::{COTENSOR, MICROSOFT};
use crate::proto::{given, integer, visit_nodes};
use rten_onnx::onnx::{GraphProto, NodeProto};
use std::collections::HashMap;

/// The most elements of a group.
const GROUP_MAX: usize = 1 << 16;

/// A product by codes.
pub(crate) struct Shape {
    pub(crate) bits: u32,
    /// Elements of a group.
    pub(crate) group: usize,
    /// The columns of the result.
    pub(crate) rows: usize,
    /// Groups of a row.
    pub(crate) groups: usize,
    /// Whether the last group of a row is a whole one.
    pub(crate) is_whole: bool,
}

/// Whether a node is a product by codes.
pub(crate) fn is_product(node: &NodeProto) -> bool {
    node.op_type.as_deref() == Some("MatMulNBits") && matches!(node.domain.as_deref(), Some(MICROSOFT | COTENSOR))
}

/// Whether a graph or one of its subgraphs has a product by codes.
pub(crate) fn has_products(graph: &GraphProto) -> bool {
    let mut found = false;
    visit_nodes(graph, &mut |node| found |= is_product(node));
    found
}

impl Shape {
    /// That of a node, by its attributes.
    ///
    /// # Errors
    /// The attribute that is missing or not possible.
    pub(crate) fn of(node: &NodeProto) -> Result<Self, &'static str> {
        let number = |name: &'static str| {
            let found = integer(node, name).and_then(|value| usize::try_from(value).ok());
            found.filter(|value| *value > 0).ok_or(name)
        };
        // The operator's default.
        let bits = if integer(node, "bits").is_none() { 4 } else { number("bits")? };
        let (group, columns, rows) = (number("block_size")?, number("K")?, number("N")?);
        if !(1..=8).contains(&bits) {
            return Err("bits");
        }
        if !(16..=GROUP_MAX).contains(&group) || !group.is_power_of_two() {
            return Err("block_size");
        }
        let groups = columns.div_ceil(group);
        // The bits of a row can be counted.
        groups.checked_mul(8).ok_or("K")?;
        Ok(Self { bits: bits as u32, group, rows, groups, is_whole: columns.is_multiple_of(group) })
    }

    /// Whether the product can be a sum of products of 4 bits.
    pub(crate) fn can_be_a_sum(&self) -> bool {
        matches!(self.bits, 2 | 4 | 8) && self.is_whole
    }

    /// The dimensions of the codes; `None` beyond what can be addressed.
    pub(crate) fn codes(&self) -> Option<[i64; 3]> {
        let bytes = (self.group * self.bits as usize).div_ceil(8);
        let dims = [self.rows, self.groups, bytes].map(|dim| i64::try_from(dim).ok());
        Some([dims[0]?, dims[1]?, dims[2]?])
    }
}

/// The inputs of the operator after the scales.
pub(crate) const ZERO_POINTS: usize = 3;
pub(crate) const GROUP_INDICES: usize = 4;
pub(crate) const BIAS: usize = 5;

/// The zero points of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zeros {
    /// Codes.
    Packed,
    /// Numbers.
    Float,
}

impl Zeros {
    pub(crate) fn of(is_packed: bool) -> Self {
        if is_packed { Self::Packed } else { Self::Float }
    }
}

/// The zero points of a product, of which the constants are `known`. `None` for others.
pub(crate) fn zeros_of(node: &NodeProto, known: &HashMap<String, Zeros>) -> Option<Option<Zeros>> {
    match given(node, ZERO_POINTS) {
        Some(name) => known.get(name).map(|zeros| Some(*zeros)),
        None => Some(None),
    }
}

/// The bias of a product.
pub(crate) fn bias(node: &NodeProto) -> Option<&str> {
    given(node, BIAS)
}
