//! Integer products whose sums saturate: on x86-64 processors without VNNI, rten adds two products of `uint8` and `int8`
//! as `int16` (`vpmaddubsw`), and a sum beyond that range becomes its limit, without an error.

use crate::graph::Graph;
use cotensor_core::{DType, Error, Result};
use rten_gemm::GemmExecutor;
use std::collections::BTreeMap;

/// Whether sums of this processor's kernels may saturate.
pub(super) fn is_possible() -> bool {
    GemmExecutor::<u8, i8, i32>::default().may_saturate()
}

/// # Errors
/// `Unsupported`, with the name of the node, if this processor's kernels could compute a product of `graph` wrongly.
/// `weights` has the bytes of each weight.
pub(super) fn refuse(graph: &Graph, weights: &[&[u8]]) -> Result<()> {
    if !is_possible() {
        return Ok(());
    }
    match saturating(graph, weights) {
        Some(node) => {
            let message = "the int8 kernels of rten saturate on this processor, which lacks VNNI, because the weights \
                           use more than 7 bits; use onnxruntime (`pip install onnxruntime`) or another variant";
            Err(Error::unsupported(message).in_file(graph.path()).in_field(format!("node {node:?}")))
        }
        None => Ok(()),
    }
}

/// The name of a node whose sums could saturate.
fn saturating(graph: &Graph, weights: &[&[u8]]) -> Option<String> {
    let types: BTreeMap<&str, (DType, &[u8])> = graph
        .weights()
        .iter()
        .enumerate()
        .map(|(at, weight)| (weight.name.as_str(), (weight.dtype, weights[at])))
        .collect();
    let constants = graph.constants();
    let mut found = None;
    graph.visit_nodes(&mut |node| {
        let fits = match node.op_type.as_deref() {
            Some("MatMulInteger") => fits_right_operand,
            Some("ConvInteger") => fits_kernel,
            _ => return,
        };
        let name = node.input.get(1).map_or("", String::as_str);
        let is_safe = match constants.plain_source(name).and_then(|name| types.get(name)) {
            Some(&(dtype, bytes)) => fits(dtype, bytes),
            None => constants.elements(name).is_some_and(|(dtype, bytes)| fits(dtype, &bytes)),
        };
        if !is_safe {
            found.get_or_insert_with(|| node.name.clone().unwrap_or_default());
        }
    });
    found
}

/// Whether two products of any `uint8` with these elements fit in `int16`. rten subtracts 128 from `uint8` weights.
fn fits_right_operand(dtype: DType, bytes: &[u8]) -> bool {
    let zero = if dtype == DType::U8 { 128 } else { 0 };
    bytes.iter().all(|byte| byte.wrapping_sub(zero).cast_signed().unsigned_abs() <= 64)
}

/// Whether two products of any `int8` with these elements fit in `int16`. rten adds the least number to `int8` kernels
/// that makes all elements positive.
fn fits_kernel(dtype: DType, bytes: &[u8]) -> bool {
    let least =
        if dtype == DType::U8 { 0 } else { bytes.iter().map(|byte| byte.cast_signed()).min().unwrap_or(0).min(0) };
    bytes.iter().all(|byte| byte.wrapping_sub(least.cast_unsigned()) <= 127)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_seven_bits_fit() {
        let signed = |values: &[i8]| values.iter().map(|value| value.cast_unsigned()).collect::<Vec<_>>();
        assert!(fits_right_operand(DType::I8, &signed(&[-64, 0, 64])));
        assert!(!fits_right_operand(DType::I8, &signed(&[0, 65])));
        assert!(!fits_right_operand(DType::I8, &signed(&[-128])));
        assert!(fits_right_operand(DType::U8, &[64, 128, 192]));
        assert!(!fits_right_operand(DType::U8, &[0]));
        assert!(!fits_right_operand(DType::U8, &[193]));
        assert!(fits_kernel(DType::I8, &signed(&[-64, 63])));
        assert!(!fits_kernel(DType::I8, &signed(&[-64, 64])));
        assert!(!fits_kernel(DType::I8, &signed(&[-128, 0])));
        assert!(fits_kernel(DType::I8, &signed(&[0, 127])));
        assert!(fits_kernel(DType::U8, &[0, 127]));
        assert!(!fits_kernel(DType::U8, &[128]));
    }
}
