//! Puts codes in the place of matrices.

use super::codes::{Content, LowBits, Names};
use super::find::{Matrix, Use};
use super::{product, table};
use crate::build::{Builder, int, ints};
use crate::coded_product::{COTENSOR, MICROSOFT};
use crate::initializer;
use crate::onnx::Graph;
use crate::types::{Weight, WeightPlace, WeightSource};
use cotensor_core::{DType, Result};
use rten_onnx::onnx::{DataType, ModelProto, NodeProto, OperatorSetIdProto, TensorProto};
use std::collections::HashMap;
use std::path::PathBuf;

/// A graph with codes in the place of matrices, to be written to a file.
pub struct LowBitGraph {
    /// The sources of its weights are unknown.
    graph: Graph,
    contents: Vec<Content>,
    /// The weights of the graph before.
    before: Vec<Weight>,
}

impl LowBitGraph {
    /// The contents of the tensors, in the order of their places.
    pub fn contents(&self) -> &[Content] {
        &self.contents
    }

    /// The weights of the graph before, by which contents are numbered.
    pub fn weights(&self) -> &[Weight] {
        &self.before
    }

    /// The graph as an ONNX file. Tensor number `i` is at `places[i]`.
    ///
    /// # Errors
    /// `Corrupt` when the graph cannot be encoded.
    ///
    /// # Panics
    /// When the number of places is not the number of tensors.
    pub fn encode(&self, places: &[WeightPlace]) -> Result<Vec<u8>> {
        self.graph.encode_with_weights_at(places)
    }
}

impl Graph {
    /// This graph with codes in the place of some of its [`matrices`](Graph::matrices).
    ///
    /// # Panics
    /// When the columns of a matrix are not a multiple of the group.
    pub fn with_low_bits(mut self, chosen: &[(Matrix, LowBits)]) -> LowBitGraph {
        let mut build = Builder::new(&self.model);
        let mut stored = Vec::new();
        let names: Vec<Names> = (chosen.iter().enumerate())
            .map(|(number, (matrix, low))| {
                store(&mut build, &self.weights[matrix.weights[0]].name, number, matrix, low, &mut stored)
            })
            .collect();
        let numbers = chosen.iter().enumerate().flat_map(|(number, (matrix, _))| {
            let weights = &self.weights;
            matrix.weights.iter().map(move |&weight| (weights[weight].name.clone(), number))
        });
        let replaced: HashMap<String, usize> = numbers.collect();
        replace_nodes(&mut self.model, build, chosen, &names, &replaced);

        let graph = self.model.graph.as_mut().expect("an opened model has a graph");
        graph.initializer.retain(|tensor| !tensor.name.as_ref().is_some_and(|name| replaced.contains_key(name)));
        graph.initializer.extend(stored.iter().map(|(weight, _)| TensorProto {
            name: Some(weight.name.clone()),
            dims: weight.shape.iter().map(|&dim| dim as i64).collect(),
            ..TensorProto::default()
        }));
        let before = std::mem::take(&mut self.weights);
        let kept = before.iter().enumerate().filter(|(_, weight)| !replaced.contains_key(&weight.name));
        let kept = kept.map(|(number, weight)| (weight.clone(), Content::Weight(number)));
        let contents;
        (self.weights, contents) = kept.chain(stored).unzip();
        initializer::detach(graph, &self.weights);
        LowBitGraph { graph: self, contents, before }
    }
}

/// Adds the tensors of matrix number `number`, whose weight is `name`.
fn store(
    build: &mut Builder,
    name: &str,
    number: usize,
    matrix: &Matrix,
    low: &LowBits,
    stored: &mut Vec<(Weight, Content)>,
) -> Names {
    assert!(matrix.columns.is_multiple_of(low.group), "{name:?}: whole groups");
    let groups = matrix.columns / low.group;
    let mut add = |part: &str, dtype, shape, content| {
        let name = build.fresh(format!("{name}.{part}"));
        let source =
            WeightSource { file: PathBuf::new(), offset: 0, length: 0, dtype, permutation: None, repacks: Vec::new() };
        stored.push((Weight { name: name.clone(), dtype, shape, source }, content));
        name
    };
    let bytes = low.group * low.bits as usize / 8;
    let codes = add("codes", DType::U8, vec![matrix.rows, groups, bytes], Content::Codes(number));
    let scales = add("scales", low.scales, vec![matrix.rows, groups], Content::Scales(number));
    let offsets = low.offsets.map(|dtype| add("offsets", dtype, vec![matrix.rows, groups], Content::Offsets(number)));
    Names { codes, scales, zeros: None, offsets }
}

/// Replaces the nodes that read the matrices, and imports the operator sets of the new ones.
fn replace_nodes(
    model: &mut ModelProto,
    mut build: Builder,
    chosen: &[(Matrix, LowBits)],
    names: &[Names],
    replaced: &HashMap<String, usize>,
) {
    let graph = model.graph.as_mut().expect("an opened model has a graph");
    let mut of_products: Vec<Option<Names>> = vec![None; chosen.len()];
    let mut of_tables = of_products.clone();
    build.replace(graph, &mut |build, node| {
        let found = node.input.iter().enumerate().find_map(|(at, input)| {
            let number = *replaced.get(input)?;
            Some((number, Use::of(node, at)?))
        });
        let Some((number, used)) = found else { return false };
        let (matrix, low) = &chosen[number];
        let stored = &names[number];
        // What replaces a node of `float16` computes with `float32`.
        let half = (matrix.dtype == DType::F16).then(|| in_floats(build, node, used)).flatten();
        if used.is_table {
            let floats =
                of_tables[number].get_or_insert_with(|| build.at_the_start(|build| of_table(build, stored, low)));
            table::replace(build, node, floats, matrix.columns, low);
        } else {
            let floats =
                of_products[number].get_or_insert_with(|| build.at_the_start(|build| of_product(build, stored, low)));
            product::replace(build, node, floats, [matrix.rows, matrix.columns], low);
        }
        if let Some(half) = half {
            build.give("Cast", &[&node.output[0]], &half, vec![int("to", i64::from(DataType::FLOAT16.0))]);
        }
        true
    });
    for (_, (_, low)) in of_products.iter().zip(chosen).filter(|(floats, _)| floats.is_some()) {
        let domain = if low.bits == 3 { COTENSOR } else { MICROSOFT };
        if !model.opset_import.iter().any(|set| set.domain.as_deref() == Some(domain)) {
            model.opset_import.push(OperatorSetIdProto { domain: Some(domain.to_owned()), version: Some(1) });
        }
    }
}

/// Makes a node read and give `float32`. Returns the name of what it gave.
fn in_floats(build: &mut Builder, node: &mut NodeProto, used: Use) -> Option<String> {
    for (at, input) in node.input.iter_mut().enumerate() {
        // A product's other factor and summand.
        if !used.is_table && at != 1 && !input.is_empty() {
            let name = format!("{input}.float");
            *input = build.once(name.clone(), |build| build.as_float(input, name));
        }
    }
    let output = node.output.first_mut()?;
    let float = build.fresh(format!("{output}.float"));
    Some(std::mem::replace(output, float))
}

/// The tensors of a matrix as products read them: scales in `float32`, and offsets in `float32` by group.
fn of_product(build: &mut Builder, names: &Names, low: &LowBits) -> Names {
    let offsets = names.offsets.as_ref().zip(low.offsets).map(|(offsets, dtype)| {
        let by_group =
            build.op_with("Transpose", &[offsets], format!("{offsets}.by_group"), vec![ints("perm", &[1, 0])]);
        build.as_float_from(dtype, &by_group, format!("{offsets}.float"))
    });
    Names { codes: names.codes.clone(), scales: float_scales(build, names, low), zeros: None, offsets }
}

/// The tensors of a matrix as tables read them: scales and offsets in `float32`, since WebGPU may have no `float16`.
fn of_table(build: &mut Builder, names: &Names, low: &LowBits) -> Names {
    let offsets = names.offsets.as_ref().zip(low.offsets);
    let offsets = offsets.map(|(offsets, dtype)| build.as_float_from(dtype, offsets, format!("{offsets}.float")));
    Names { codes: names.codes.clone(), scales: float_scales(build, names, low), zeros: None, offsets }
}

fn float_scales(build: &mut Builder, names: &Names, low: &LowBits) -> String {
    build.as_float_from(low.scales, &names.scales, format!("{}.float", names.scales))
}
