//! Products by codes with zero points, for an engine that has none.

use super::build::Builder;
use super::check::{Shape, has_products, is_product};
use super::product::sums_of_groups;
use super::table::split;
use crate::constants::Constants;
use crate::onnx::Graph;
use crate::proto::visit_nodes;
use rten_onnx::onnx::NodeProto;
use std::collections::HashMap;

/// The inputs of the operator after the scales.
const ZERO_POINTS: usize = 3;
const GROUP_INDICES: usize = 4;
const BIAS: usize = 5;

impl Graph {
    /// Makes each `MatMulNBits` with constant zero points or a bias a sum: `(code − z) · scale` is `(code − middle) · scale` plus
    /// `(middle − z) · scale`, and the second part is a product of the sums of groups. Nodes with indices of groups stay as they are.
    pub fn without_zero_points(&mut self) {
        if !has_products(self.graph()) {
            return;
        }
        let mut build = Builder::new(&self.model);
        let graph = self.model.graph.as_mut().expect("an opened model has a graph");
        let constants = Constants::of(graph);
        // Whether they are packed codes. The check of the graph has seen their number.
        let mut packed: HashMap<String, bool> = HashMap::new();
        visit_nodes(graph, &mut |node| {
            if let Some(zeros) = given(node, ZERO_POINTS).filter(|_| is_product(node)) {
                packed.extend(constants.is_bytes(zeros).map(|is_packed| (zeros.to_owned(), is_packed)));
            }
        });
        build.replace(graph, &mut |build, node| {
            let shape = Shape::of(node).ok().filter(|shape| is_product(node) && matches!(shape.bits, 2 | 4 | 8));
            let Some(shape) = shape else { return false };
            let zeros = given(node, ZERO_POINTS).map(str::to_owned);
            let is_known = zeros.as_ref().is_none_or(|zeros| packed.contains_key(zeros));
            if !is_known || given(node, GROUP_INDICES).is_some() || (zeros.is_none() && given(node, BIAS).is_none()) {
                return false;
            }
            let zeros = zeros.map(|zeros| (packed[&zeros], zeros));
            replace(build, node, &shape, zeros);
            true
        });
    }
}

fn given(node: &NodeProto, at: usize) -> Option<&str> {
    node.input.get(at).map(String::as_str).filter(|name| !name.is_empty())
}

/// Adds the nodes of a product. `zeros` are packed or not, with their name.
fn replace(build: &mut Builder, node: &NodeProto, shape: &Shape, zeros: Option<(bool, String)>) {
    let output = node.output.first().map(String::as_str).unwrap_or_default();
    let own = |part: &str| format!("{output}.{part}");
    let (x, scales) = (node.input[0].as_str(), node.input[2].as_str());
    let mut product = build.fresh(own("plain"));
    let mut plain = node.clone();
    plain.name = Some(product.clone());
    plain.output = vec![product.clone()];
    plain.input.truncate(ZERO_POINTS);
    build.nodes.push(plain);
    let bias = given(node, BIAS);
    if let Some((is_packed, zeros)) = zeros {
        let zeros = unpacked(build, &zeros, shape, is_packed, &own("zeros"));
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
fn unpacked(build: &mut Builder, zeros: &str, shape: &Shape, is_packed: bool, prefix: &str) -> String {
    let (rows, groups) = (shape.rows as i64, shape.groups as i64);
    let dims = build.ints(format!("{prefix}.dims"), &[rows, groups]);
    let numbers = build.as_float(zeros, format!("{prefix}.numbers"));
    if !is_packed || shape.bits == 8 {
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
