//! Products by codes.

use super::codes::{LowBits, Names};
use super::rotation::rotated;
use super::rules::CodeRules;
use crate::build::{Builder, int};
use crate::coded_product::{COTENSOR, MICROSOFT, ZERO_POINTS, Zeros, is_product};
use crate::constants::Constants;
use crate::proto::{given, visit_nodes};
use rten_onnx::onnx::{DataType, GraphProto, NodeProto};
use std::collections::{HashMap, HashSet};

/// Adds the nodes of a `MatMul` or `Gemm` by a matrix of `rows × columns`.
pub(super) fn replace(
    build: &mut Builder,
    node: &NodeProto,
    names: &Names,
    [rows, columns]: [usize; 2],
    low: &LowBits,
) {
    let (Some(x), Some(output)) = (node.input.first(), node.output.first()) else { return };
    let rotated = low.rotation.map(|block| rotated(build, x, columns, block));
    let x = rotated.as_ref().unwrap_or(x);
    let attributes = vec![
        int("K", columns as i64),
        int("N", rows as i64),
        int("bits", i64::from(low.bits)),
        int("block_size", low.group as i64),
        int("accuracy_level", low.accuracy_level),
    ];
    let summand = given(node, 2);
    let mut product = output.clone();
    if summand.is_some() || names.offsets.is_some() {
        product = build.fresh(format!("{output}.codes"));
    }
    let mut inputs = vec![x.as_str(), &names.codes, &names.scales];
    inputs.extend(names.zeros.as_deref());
    build.give("MatMulNBits", &inputs, &product, attributes);
    if let Some(node) = build.nodes.last_mut() {
        node.domain = Some(if low.bits == 3 { COTENSOR } else { MICROSOFT }.to_owned());
    }
    if let Some(offsets) = &names.offsets {
        let sums = sums_of_groups(build, x, columns / low.group, low.group, output);
        let added = build.op("MatMul", &[&sums, offsets], format!("{output}.by_sums"));
        if summand.is_none() {
            return build.give("Add", &[&product, &added], output, Vec::new());
        }
        product = build.op("Add", &[&product, &added], format!("{output}.product"));
    }
    if let Some(summand) = summand {
        build.give("Add", &[&product, summand], output, Vec::new());
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

/// The scales of products that compute with `float32`, which can become sums with constants of this type.
pub(super) fn float_scales(graph: &GraphProto, rules: &CodeRules) -> HashSet<String> {
    if !rules.widens_floats {
        return scales_of_type(graph, DataType::FLOAT);
    }
    let mut names = HashSet::new();
    visit_nodes(graph, &mut |node| names.extend(node.input.get(2).filter(|_| is_product(node)).cloned()));
    names
}

/// The scales of products that are constants of a type.
pub(super) fn scales_of_type(graph: &GraphProto, dtype: DataType) -> HashSet<String> {
    let constants = Constants::of(graph);
    let mut names = HashSet::new();
    visit_nodes(graph, &mut |node| {
        let scales = node.input.get(2).filter(|_| is_product(node));
        names.extend(scales.filter(|name| constants.has_type(name, dtype) == Some(true)).cloned());
    });
    names
}

/// The zero points of products that are constants.
pub(super) fn constant_zeros(graph: &GraphProto) -> HashMap<String, Zeros> {
    let constants = Constants::of(graph);
    let mut known = HashMap::new();
    visit_nodes(graph, &mut |node| {
        if let Some(zeros) = given(node, ZERO_POINTS).filter(|_| is_product(node)) {
            let is_packed = constants.has_type(zeros, DataType::UINT8);
            known.extend(is_packed.map(|is_packed| (zeros.to_owned(), Zeros::of(is_packed))));
        }
    });
    known
}
