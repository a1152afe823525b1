//! Refuses products by codes whose attributes do not fit their tensors. An engine that trusts one of them would read beyond the other, or
//! multiply by other numbers.

use super::{COTENSOR, MICROSOFT};
use crate::constants::Constants;
use crate::proto::{defined_twice, integer, visit_nodes};
use cotensor_core::{Error, Result};
use rten_onnx::onnx::{DataType, GraphProto, NodeProto};
use std::collections::HashSet;

/// The most elements of a group.
pub(super) const GROUP_MAX: usize = 1 << 16;

/// A product by codes.
pub(super) struct Shape {
    pub(super) bits: u32,
    /// Elements of a group.
    pub(super) group: usize,
    /// The columns of the result.
    pub(super) rows: usize,
    /// Groups of a row.
    pub(super) groups: usize,
    /// Whether the last group of a row is a whole one.
    pub(super) is_whole: bool,
}

/// Whether a node is a product by codes.
pub(super) fn is_product(node: &NodeProto) -> bool {
    node.op_type.as_deref() == Some("MatMulNBits") && matches!(node.domain.as_deref(), Some(MICROSOFT | COTENSOR))
}

impl Shape {
    /// That of a node, by its attributes.
    ///
    /// # Errors
    /// The attribute that is missing or not possible.
    pub(super) fn of(node: &NodeProto) -> Result<Self, &'static str> {
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

    /// The dimensions of the codes; `None` beyond what can be addressed.
    pub(super) fn codes(&self) -> Option<[i64; 3]> {
        let bytes = (self.group * self.bits as usize).div_ceil(8);
        let dims = [self.rows, self.groups, bytes].map(|dim| i64::try_from(dim).ok());
        Some([dims[0]?, dims[1]?, dims[2]?])
    }
}

/// Whether a graph or one of its subgraphs has a product by codes.
pub(super) fn has_products(graph: &GraphProto) -> bool {
    let mut found = false;
    visit_nodes(graph, &mut |node| found |= is_product(node));
    found
}

/// Checks all products of a graph and its subgraphs.
///
/// # Errors
/// `Corrupt`; it names the node.
pub(crate) fn check(graph: &GraphProto) -> Result<()> {
    if !has_products(graph) {
        return Ok(());
    }
    let constants = Constants::of(graph);
    let twice = defined_twice(graph);
    let mut found = Ok(());
    visit_nodes(graph, &mut |node| {
        if found.is_ok() && is_product(node) {
            found = of_node(node, &constants, &twice);
        }
    });
    found
}

fn of_node(node: &NodeProto, constants: &Constants<'_>, twice: &HashSet<String>) -> Result<()> {
    let field = || format!("MatMulNBits {:?}", node.name.as_deref().unwrap_or_default());
    let wrong = |message: String| Err(Error::corrupt(message).in_field(field()));
    let shape = match Shape::of(node) {
        Ok(shape) => shape,
        Err(attribute) => return wrong(format!("its attribute {attribute} is missing or not possible")),
    };
    let (Some(codes), Some(scales)) = (node.input.get(1), node.input.get(2)) else {
        return wrong("it needs codes and scales".to_owned());
    };
    if let Some(name) = [codes, scales].into_iter().find(|name| twice.contains(*name)) {
        return wrong(format!("{name:?} is defined more than once"));
    }
    // Tensors that are no constants are the engine's to check.
    if let Some(dims) = constants.dims(codes) {
        match shape.codes() {
            Some(wanted) if dims == wanted => {}
            Some(wanted) => return wrong(format!("codes {dims:?} do not fit its attributes: {wanted:?} is expected")),
            None => return wrong(format!("codes {dims:?} do not fit its attributes")),
        }
    }
    let wanted = [shape.rows as i64, shape.groups as i64];
    if let Some(dims) = constants.dims(scales)
        && dims != wanted
        && Some(dims) != wanted[0].checked_mul(wanted[1]).as_ref().map(std::slice::from_ref)
    {
        return wrong(format!("scales {dims:?} do not fit its attributes: {wanted:?} is expected"));
    }
    let zeros = node.input.get(3).filter(|name| !name.is_empty());
    if let Some((dims, is_bytes)) =
        zeros.and_then(|name| Some((constants.dims(name)?, constants.has_type(name, DataType::UINT8)?)))
    {
        let of_row = if is_bytes { (shape.groups * shape.bits as usize).div_ceil(8) } else { shape.groups };
        let count = dims.iter().try_fold(1i64, |count, dim| count.checked_mul(*dim));
        if count != shape.rows.checked_mul(of_row).and_then(|count| i64::try_from(count).ok()) {
            return wrong(format!(
                "zero points {dims:?} do not fit its attributes: {} × {of_row} are expected",
                shape.rows
            ));
        }
    }
    Ok(())
}

/// Whether codes and scales of all products are constants, which [`check`] has seen. The name of a node whose tensors are not.
pub(crate) fn unchecked(graph: &GraphProto) -> Option<String> {
    if !has_products(graph) {
        return None;
    }
    let constants = Constants::of(graph);
    let mut found = None;
    visit_nodes(graph, &mut |node| {
        let is_known = |at: usize| node.input.get(at).is_some_and(|name| constants.dims(name).is_some());
        if found.is_none() && is_product(node) && !(is_known(1) && is_known(2)) {
            found = Some(format!("MatMulNBits {:?}", node.name.as_deref().unwrap_or_default()));
        }
    });
    found
}

/// The inputs of the operator after the scales.
pub(super) const ZERO_POINTS: usize = 3;
pub(super) const GROUP_INDICES: usize = 4;
const BIAS: usize = 5;

/// The zero points of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zeros {
    /// Codes.
    Packed,
    /// Numbers.
    Float,
}

impl Zeros {
    pub(super) fn of(is_packed: bool) -> Self {
        if is_packed { Self::Packed } else { Self::Float }
    }
}

/// The bias of a product.
pub(super) fn bias(node: &NodeProto) -> Option<&str> {
    given(node, BIAS)
}

/// An input of a node, if it has one.
pub(super) fn given(node: &NodeProto, at: usize) -> Option<&str> {
    node.input.get(at).map(String::as_str).filter(|name| !name.is_empty())
}
