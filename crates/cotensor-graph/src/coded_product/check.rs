//! Refuses products by codes whose attributes do not fit their tensors. An engine that trusts one of them would read beyond the other, or
//! multiply by other numbers.

use super::COTENSOR;
use super::node::{Shape, ZERO_POINTS, has_products, is_product};
use crate::constants::Constants;
use crate::proto::{defined_twice, given, visit_nodes};
use cotensor_core::{Error, Result};
use rten_onnx::onnx::{DataType, GraphProto, NodeProto};
use std::collections::HashSet;

/// Checks all products of a graph and its subgraphs.
///
/// # Errors
/// `Corrupt`, or `Unsupported` for codes of 3 bits that are not those of [`COTENSOR`]; it names the node.
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
    if shape.bits == 3 && node.domain.as_deref() != Some(COTENSOR) {
        let message = "codes of 3 bits of another program have no known layout";
        return Err(Error::unsupported(message).in_field(field()));
    }
    let (Some(codes), Some(scales)) = (node.input.get(1), node.input.get(2)) else {
        return wrong("it needs codes and scales".to_owned());
    };
    if let Some(name) = [codes, scales].into_iter().find(|name| twice.contains(*name)) {
        return wrong(format!("{name:?} is defined more than once"));
    }
    // Tensors that are not constants are the engine's to check.
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
    let zeros = given(node, ZERO_POINTS);
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
