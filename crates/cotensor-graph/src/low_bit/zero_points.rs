//! Products by codes with zero points, for an engine that has none, or not these.

use super::product::{constant_zeros, float_scales, sums_of_groups};
use super::rules::CodeRules;
use super::table::split;
use crate::build::Builder;
use crate::coded_product::{GROUP_INDICES, Shape, ZERO_POINTS, Zeros, bias, is_product, zeros_of};
use crate::onnx::Graph;
use crate::proto::given;
use rten_onnx::onnx::NodeProto;

impl Graph {
    /// Makes each `MatMulNBits` with constant zero points or a bias that an engine does not multiply as it is a sum: `(code − z) · scale` is
    /// `(code − middle) · scale` plus `(middle − z) · scale`, and the second part is a product of the sums of groups. Nodes with indices of
    /// groups stay as they are.
    pub(super) fn without_zero_points(&mut self, rules: &CodeRules) {
        let mut build = Builder::new(&self.model);
        let graph = self.model.graph.as_mut().expect("an opened model has a graph");
        // The check of the graph has seen their number.
        let known = constant_zeros(graph);
        let floats = float_scales(graph, rules);
        build.replace(graph, &mut |build, node| {
            let is_possible = |shape: &Shape| is_product(node) && shape.can_be_a_sum();
            let Some(shape) = Shape::of(node).ok().filter(is_possible) else { return false };
            let Some(zeros) = zeros_of(node, &known) else { return false };
            let is_plain = zeros.is_none() && bias(node).is_none();
            let is_float = floats.contains(&node.input[2]);
            if is_plain || !is_float || given(node, GROUP_INDICES).is_some() || rules.run(node, &shape, zeros) {
                return false;
            }
            replace(build, node, &shape, zeros.zip(given(node, ZERO_POINTS)));
            true
        });
    }
}

/// Adds the nodes of a product. `zeros` have their name.
fn replace(build: &mut Builder, node: &NodeProto, shape: &Shape, zeros: Option<(Zeros, &str)>) {
    let output = node.output.first().map(String::as_str).unwrap_or_default();
    let own = |part: &str| format!("{output}.{part}");
    let (x, scales) = (node.input[0].as_str(), node.input[2].as_str());
    let mut product = build.fresh(own("plain"));
    let mut plain = node.clone();
    plain.name = Some(product.clone());
    plain.output = vec![product.clone()];
    plain.input.truncate(ZERO_POINTS);
    build.nodes.push(plain);
    let bias = bias(node);
    if let Some((kind, zeros)) = zeros {
        let zeros = unpacked(build, zeros, shape, kind, &own("zeros"));
        let middle = build.float(own("middle"), (1u32 << (shape.bits - 1)) as f32);
        let below = build.op("Sub", &[&middle, &zeros], own("below"));
        let groups = [shape.rows as i64, shape.groups as i64];
        let dims = build.ints(own("scales.dims"), &groups);
        let scales = build.op("Reshape", &[scales, &dims], own("scales.by_row"));
        let offsets = build.op("Mul", &[&below, &scales], own("offsets"));
        let offsets = build.op("Transpose", &[&offsets], own("offsets.by_group"));
        let sums = sums_of_groups(build, x, shape.groups, shape.group, output);
        let added = build.op("MatMul", &[&sums, &offsets], own("by_sums"));
        if bias.is_none() {
            return build.give("Add", &[&product, &added], output, Vec::new());
        }
        product = build.op("Add", &[&product, &added], own("product"));
    }
    if let Some(bias) = bias {
        build.give("Add", &[&product, bias], output, Vec::new());
    }
}

/// Zero points as numbers `[rows, groups]`.
fn unpacked(build: &mut Builder, zeros: &str, shape: &Shape, kind: Zeros, prefix: &str) -> String {
    let (rows, groups) = (shape.rows as i64, shape.groups as i64);
    let dims = build.ints(format!("{prefix}.dims"), &[rows, groups]);
    let numbers = build.as_float(zeros, format!("{prefix}.numbers"));
    if kind == Zeros::Float || shape.bits == 8 {
        return build.op("Reshape", &[&numbers, &dims], prefix.to_owned());
    }
    let in_byte = 8 / shape.bits as usize;
    let bytes = shape.groups.div_ceil(in_byte);
    let of_bytes = build.ints(format!("{prefix}.bytes.dims"), &[rows, bytes as i64, 1]);
    let parts = split(build, &numbers, &of_bytes, shape.bits, prefix);
    let all = build.ints(format!("{prefix}.all.dims"), &[rows, (bytes * in_byte) as i64]);
    let parts = build.op("Reshape", &[&parts, &all], format!("{prefix}.all"));
    // The last byte of a row may have codes of no group.
    build.slice(&parts, [0, groups], 1, prefix.to_owned())
}
