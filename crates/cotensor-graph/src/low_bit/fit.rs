//! Products by codes that an engine does not have, or would expand, as products by codes of 4 bits.

use super::made::{Form, MadeTensors};
use super::product::{float_scales, sums_of_groups};
use super::rules::CodeRules;
use crate::build::Builder;
use crate::coded_product::{MICROSOFT, Shape, is_product};
use crate::constants::Constants;
use crate::initializer::detach;
use crate::onnx::Graph;
use crate::proto::visit_nodes;
use crate::repack::Repack;
use crate::transpose::{self, drop_unread};
use cotensor_core::DType;
use rten_onnx::onnx::{DataType, GraphProto, NodeProto, TensorProto};
use std::collections::{HashMap, HashSet};

impl Graph {
    /// Makes each `MatMulNBits` that an engine does not multiply as it is one or two of 4 bits. A code of 2 or 3 bits becomes the code of
    /// 4 bits with the same distance from the middle. One of 8 bits becomes two codes, and its product becomes a sum. Nodes with zero
    /// points stay as they are.
    pub(super) fn fit_widths(&mut self, rules: &CodeRules) {
        let floats = float_scales(self.graph(), rules);
        let stored = Product::all(self.graph(), rules, &floats);
        if stored.is_empty() {
            return;
        }
        let flat = flat_scales(self.graph());
        let mut build = Builder::new(&self.model);
        let graph = self.model.graph.as_mut().expect("an opened model has a graph");
        let mut made = MadeTensors::new(&mut self.weights);
        build.replace(graph, &mut |build, node| {
            let Some(product) = Product::of(node, rules, &floats) else { return false };
            let (first, second) = Repack::of(product.shape.bits, product.shape.group);
            let Some(first) = product.repacked(build, &stored, &mut made, first) else { return false };
            if !rules.keeps_activations && product.shape.bits != 3 {
                set(node, "accuracy_level", 0);
            }
            match second {
                None => become_four_bits(node, &first),
                Some(second) => {
                    let Some(second) = product.repacked(build, &stored, &mut made, second) else { return false };
                    product.halves(build, node, [&first, &second], flat.contains(&node.input[2]));
                }
            }
            second.is_some()
        });
        made.finish(graph);
        let stored = stored.into_keys().collect();
        drop_unread(graph, &mut self.weights, stored);
        // The scales of halves, by group.
        transpose::fold(graph, &mut self.weights);
        detach(graph, &self.weights);
    }
}

/// The constants with one dimension that products read as scales.
fn flat_scales(graph: &GraphProto) -> HashSet<String> {
    let constants = Constants::of(graph);
    let mut names = HashSet::new();
    visit_nodes(graph, &mut |node| {
        let scales = node.input.get(2).filter(|_| is_product(node));
        names.extend(scales.filter(|name| constants.dims(name).is_some_and(|dims| dims.len() == 1)).cloned());
    });
    names
}

/// A product by codes that are constants.
struct Product {
    codes: String,
    shape: Shape,
}

impl Product {
    /// `floats` are the scales of products that may be sums.
    fn of(node: &NodeProto, rules: &CodeRules, floats: &HashSet<String>) -> Option<Self> {
        let shape = Shape::of(node).ok().filter(|shape| is_product(node) && !rules.run(node, shape, None))?;
        // Zero points and what follows them.
        let is_plain = node.input.iter().skip(3).all(String::is_empty) && node.output.len() == 1;
        let [codes, scales] = node.input.get(1..3)? else { return None };
        let is_possible = matches!(shape.bits, 2 | 3) || (shape.bits == 8 && floats.contains(scales));
        (is_plain && shape.is_whole && is_possible).then(|| Self { codes: codes.clone(), shape })
    }

    /// The constants that are codes of such products.
    fn all(graph: &GraphProto, rules: &CodeRules, floats: &HashSet<String>) -> HashMap<String, TensorProto> {
        let mut names = HashSet::new();
        visit_nodes(graph, &mut |node| names.extend(Self::of(node, rules, floats).map(|product| product.codes)));
        let named = graph.initializer.iter().filter_map(|tensor| Some((tensor.name.clone()?, tensor)));
        named.filter(|(name, _)| names.contains(name)).map(|(name, tensor)| (name, tensor.clone())).collect()
    }

    /// `(16 · high + low − 128) · scale` is `16 · (high − 8) · scale + (low − 8) · scale + 8 · scale`.
    fn halves(&self, build: &mut Builder, node: &NodeProto, codes: [&str; 2], is_flat: bool) {
        let output = node.output.first().map(String::as_str).unwrap_or_default();
        let own = |part: &str| format!("{output}.{part}");
        let (x, scales) = (node.input[0].as_str(), node.input[2].as_str());
        let [high, low] = ["high", "low"].map(|part| build.fresh(own(&format!("{part}.product"))));
        for (codes, product) in codes.into_iter().zip([&high, &low]) {
            let mut half = node.clone();
            half.name = Some(product.clone());
            half.output = vec![product.clone()];
            become_four_bits(&mut half, codes);
            build.nodes.push(half);
        }
        let sixteen = build.float(own("sixteen"), 16.0);
        let high = build.op("Mul", &[&high, &sixteen], own("high"));
        let codes = build.op("Add", &[&high, &low], own("codes"));
        let sums = sums_of_groups(build, x, self.shape.groups, self.shape.group, output);
        let eight = build.float(own("eight"), 8.0);
        let sums = build.op("Mul", &[&sums, &eight], own("sums.eight"));
        let mut scales = scales.to_owned();
        if is_flat {
            let dims = build.ints(own("scales.dims"), &[self.shape.rows as i64, self.shape.groups as i64]);
            scales = build.op("Reshape", &[&scales, &dims], own("scales.by_row"));
        }
        let scales = build.op("Transpose", &[&scales], own("scales.by_group"));
        let added = build.op("MatMul", &[&sums, &scales], own("by_sums"));
        build.give("Add", &[&codes, &added], output, Vec::new());
    }
}

/// Makes a node one of 4 bits with these codes.
fn become_four_bits(node: &mut NodeProto, codes: &str) {
    node.domain = Some(MICROSOFT.to_owned());
    codes.clone_into(&mut node.input[1]);
    node.input.truncate(3);
    set(node, "bits", 4);
}

/// Sets an attribute that a node has.
fn set(node: &mut NodeProto, name: &str, value: i64) {
    for attribute in node.attribute.iter_mut().filter(|attribute| attribute.name.as_deref() == Some(name)) {
        attribute.i = Some(value);
    }
}

impl Product {
    /// The name of codes in another form. `None` for those that are not a constant of the product's groups.
    fn repacked(
        &self,
        build: &mut Builder,
        stored: &HashMap<String, TensorProto>,
        made: &mut MadeTensors<'_>,
        step: Repack,
    ) -> Option<String> {
        let tensor = stored.get(&self.codes)?;
        let wanted = self.shape.codes()?;
        if wanted.as_slice() != tensor.dims || tensor.data_type != Some(DataType::UINT8) {
            return None;
        }
        let [rows, groups, bytes] = wanted;
        let dims = vec![rows, groups, step.len(usize::try_from(bytes).ok()?) as i64];
        made.of(build, tensor, Form { part: step.name(), codes: Some(DType::U8), dims, steps: vec![step] })
    }
}
