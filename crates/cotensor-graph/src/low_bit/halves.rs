//! Products by codes of `float16` that become sums, for an engine that computes with the types of the graph.

use super::product::{constant_zeros, scales_of_type};
use super::rules::CodeRules;
use crate::build::{Builder, int};
use crate::coded_product::{BIAS, GROUP_INDICES, Shape, Zeros, bias, is_product, zeros_of};
use crate::onnx::Graph;
use crate::proto::given;
use rten_onnx::onnx::{DataType, NodeProto};
use std::collections::HashMap;

impl Graph {
    /// Makes each product of `float16` that an engine does not multiply as it is, and that becomes a sum, one of `float32`: the parts of a sum
    /// may be larger than the sum, and would be rounded.
    pub(super) fn widen_sums(&mut self, rules: &CodeRules) {
        let halves = scales_of_type(self.graph(), DataType::FLOAT16);
        if rules.widens_floats || halves.is_empty() {
            return;
        }
        let zeros = constant_zeros(self.graph());
        let mut build = Builder::new(&self.model);
        let graph = self.model.graph.as_mut().expect("an opened model has a graph");
        build.replace(graph, &mut |build, node| {
            let is_half = is_product(node) && node.input.get(2).is_some_and(|scales| halves.contains(scales));
            let is_wide = is_half && becomes_a_sum(node, rules, &zeros);
            if is_wide {
                widen(build, node);
            }
            is_wide
        });
    }
}

fn becomes_a_sum(node: &NodeProto, rules: &CodeRules, known: &HashMap<String, Zeros>) -> bool {
    let shape = Shape::of(node).ok().filter(Shape::can_be_a_sum);
    let (Some(shape), Some(zeros)) = (shape, zeros_of(node, known)) else { return false };
    let is_sum = zeros.is_some() || bias(node).is_some() || shape.bits == 8;
    is_sum && given(node, GROUP_INDICES).is_none() && !rules.run(node, &shape, zeros)
}

/// Puts conversions around a product.
fn widen(build: &mut Builder, node: &NodeProto) {
    let Some(output) = node.output.first() else { return };
    let mut product = node.clone();
    for at in [0, BIAS].into_iter().filter(|&at| given(node, at).is_some()) {
        let name = format!("{}.float", node.input[at]);
        product.input[at] = build.once(name.clone(), |build| build.as_float(&node.input[at], name));
    }
    let scales = format!("{}.float", node.input[2]);
    product.input[2] =
        build.once_for_all(scales, |build, name| build.at_the_start(|build| build.as_float(&node.input[2], name)));
    let float = build.fresh(format!("{output}.float"));
    product.name = Some(float.clone());
    product.output = vec![float.clone()];
    build.nodes.push(product);
    build.give("Cast", &[&float], output, vec![int("to", i64::from(DataType::FLOAT16.0))]);
}
