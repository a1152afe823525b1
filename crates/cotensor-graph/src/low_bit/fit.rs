//! Products by codes of a width that an engine does not have, as products by codes of 4 bits.

use super::MICROSOFT;
use super::build::Builder;
use super::check::{Shape, is_product};
use super::product::sums_of_groups;
use crate::constants::Constants;
use crate::initializer::detach;
use crate::onnx::Graph;
use crate::proto::{integer, tensor_bytes, visit_nodes};
use crate::repack::Repack;
use crate::transpose::{self, drop_unread};
use crate::types::{Weight, WeightSource};
use rten_onnx::onnx::{DataLocation, DataType, GraphProto, NodeProto, TensorProto};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

impl Graph {
    /// Makes each `MatMulNBits` whose number of bits is not in `widths` one or two of 4 bits. A code of 2 or 3 bits becomes the code of
    /// 4 bits with the same distance from the middle. One of 8 bits becomes two codes, and its product becomes a sum. The activations
    /// of the new products are `float32`, but with 3 bits, which no engine has, they are as the file has them. Nodes with zero points
    /// stay as they are.
    pub fn fit_widths(&mut self, widths: &[u32]) {
        let stored = Product::all(self.graph(), widths);
        if stored.is_empty() {
            return;
        }
        let flat = flat_scales(self.graph());
        let mut build = Builder::new(&self.model);
        let graph = self.model.graph.as_mut().expect("an opened model has a graph");
        let mut codes =
            NewCodes { stored: &stored, made: HashMap::new(), tensors: Vec::new(), weights: &mut self.weights };
        build.replace(graph, &mut |build, node| {
            let Some(product) = Product::of(node, widths) else { return false };
            let (first, second) = Repack::of(product.shape.bits, product.shape.group);
            let Some(first) = codes.of(build, &product, first) else { return false };
            match second {
                None if product.shape.bits == 3 => {
                    become_four_bits(node, &first, integer(node, "accuracy_level").unwrap_or(0))
                }
                None => become_four_bits(node, &first, 0),
                Some(second) => {
                    let Some(second) = codes.of(build, &product, second) else { return false };
                    product.halves(build, node, [&first, &second], flat.contains(&node.input[2]));
                }
            }
            second.is_some()
        });
        let NewCodes { tensors, .. } = codes;
        graph.initializer.extend(tensors);
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
    fn of(node: &NodeProto, widths: &[u32]) -> Option<Self> {
        let shape = Shape::of(node).ok().filter(|shape| is_product(node) && !widths.contains(&shape.bits))?;
        // Zero points and what follows them.
        let is_plain = node.input.iter().skip(3).all(String::is_empty) && node.output.len() == 1;
        let is_whole =
            integer(node, "K") == shape.groups.checked_mul(shape.group).and_then(|columns| i64::try_from(columns).ok());
        if !is_plain || !is_whole || !matches!(shape.bits, 2 | 3 | 8) || node.input.len() < 3 {
            return None;
        }
        Some(Self { codes: node.input[1].clone(), shape })
    }

    /// The constants that are codes of such products.
    fn all(graph: &GraphProto, widths: &[u32]) -> HashMap<String, TensorProto> {
        let mut names = HashSet::new();
        visit_nodes(graph, &mut |node| names.extend(Self::of(node, widths).map(|product| product.codes)));
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
            become_four_bits(&mut half, codes, 0);
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
fn become_four_bits(node: &mut NodeProto, codes: &str, accuracy_level: i64) {
    node.domain = Some(MICROSOFT.to_owned());
    codes.clone_into(&mut node.input[1]);
    node.input.truncate(3);
    for attribute in &mut node.attribute {
        match attribute.name.as_deref() {
            Some("bits") => attribute.i = Some(4),
            Some("accuracy_level") => attribute.i = Some(accuracy_level),
            _ => {}
        }
    }
}

/// The codes of 4 bits that are made of others.
struct NewCodes<'w> {
    stored: &'w HashMap<String, TensorProto>,
    /// The names by the name and the form of the stored ones.
    made: HashMap<(String, Repack), String>,
    tensors: Vec<TensorProto>,
    weights: &'w mut Vec<Weight>,
}

impl NewCodes<'_> {
    /// The name of codes in another form. `None` for those that are no constant of the product's groups.
    fn of(&mut self, build: &mut Builder, product: &Product, repack: Repack) -> Option<String> {
        let codes = product.codes.as_str();
        let key = (codes.to_owned(), repack);
        if let Some(name) = self.made.get(&key) {
            return Some(name.clone());
        }
        let tensor = self.stored.get(codes)?;
        if product.shape.codes()?.as_slice() != tensor.dims || tensor.data_type != Some(DataType::UINT8) {
            return None;
        }
        let [rows, groups, bytes] = product.shape.codes()?;
        let dims = vec![rows, groups, repack.len(usize::try_from(bytes).ok()?) as i64];
        let name = build.fresh(format!("{codes}.{}", repack.name()));
        let mut new = TensorProto {
            name: Some(name.clone()),
            dims: dims.clone(),
            data_type: Some(DataType::UINT8),
            ..TensorProto::default()
        };
        match self.weights.iter().find(|weight| weight.name == codes) {
            Some(weight) if weight.source.is_rearranged() => return None,
            Some(weight) => {
                let source = WeightSource { repack: Some(repack), ..weight.source.clone() };
                let shape = dims.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<_>>()?;
                self.weights.push(Weight { name: name.clone(), dtype: weight.dtype, shape, source });
            }
            None if tensor.data_location == Some(DataLocation::EXTERNAL) => return None,
            None => {
                let stored = tensor_bytes(tensor);
                let mut bytes = vec![0; repack.len(stored.len())];
                repack.fill(&stored, &mut bytes);
                new.raw_data = Some(RefCell::new(bytes));
            }
        }
        self.tensors.push(new);
        self.made.insert(key, name.clone());
        Some(name)
    }
}
