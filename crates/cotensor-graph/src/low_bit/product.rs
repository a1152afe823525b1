//! Products by codes.

use super::build::{Builder, int};
use super::codes::{LowBits, Names};
use super::{COTENSOR, MICROSOFT};
use rten_onnx::onnx::NodeProto;

/// Adds the nodes of a `MatMul` or `Gemm` by a matrix of `rows × columns`.
pub(super) fn replace(
    build: &mut Builder,
    node: &NodeProto,
    names: &Names,
    [rows, columns]: [usize; 2],
    low: &LowBits,
) {
    let (Some(x), Some(output)) = (node.input.first(), node.output.first()) else { return };
    let summand = node.input.get(2).filter(|name| !name.is_empty());
    let product = match summand {
        Some(_) => format!("{output}.product"),
        None => output.clone(),
    };
    let by_codes = if names.offsets.is_some() { format!("{product}.codes") } else { product.clone() };
    let attributes = vec![
        int("K", columns as i64),
        int("N", rows as i64),
        int("bits", i64::from(low.bits)),
        int("block_size", low.group as i64),
        int("accuracy_level", low.accuracy_level),
    ];
    build.op_with("MatMulNBits", &[x, &names.codes, &names.scales], by_codes.clone(), attributes);
    if let Some(node) = build.nodes.last_mut() {
        node.domain = Some(if low.bits == 3 { COTENSOR } else { MICROSOFT }.to_owned());
    }
    if let Some(offsets) = &names.offsets {
        let sums = sums_of_groups(build, x, columns / low.group, low.group, &product);
        let added = build.op("MatMul", &[&sums, offsets], format!("{product}.by_sums"));
        build.op("Add", &[&by_codes, &added], product.clone());
    }
    if let Some(summand) = summand {
        build.op("Add", &[&product, summand], output.clone());
    }
}

/// The sums of the groups of each row: the dimensions of `x`, with the groups in the place of the elements.
pub(super) fn sums_of_groups(build: &mut Builder, x: &str, groups: usize, group: usize, prefix: &str) -> String {
    let outer = build.shape_without_last(x, &format!("{prefix}.outer"));
    let inner = build.ints(format!("{prefix}.inner"), &[groups as i64, group as i64]);
    let shape = build.op_with("Concat", &[&outer, &inner], format!("{prefix}.groups.shape"), vec![int("axis", 0)]);
    // A dimension of 0 stays one.
    let parts = build.op("Reshape", &[x, &shape], format!("{prefix}.groups"));
    build.sum_last(&parts, format!("{prefix}.sums"))
}
