//! The matrices of a graph that codes can replace.

use super::rotation::is_rotation;
use crate::coded_product::has_products;
use crate::onnx::{Graph, IR_VERSION_MIN};
use crate::proto::{defined_twice, integer, operator, visit_graphs, visit_nodes};
use crate::types::{Port, Weight};
use cotensor_core::DType;
use rten_onnx::onnx::{DataType, NodeProto, TypeProto, TypeProtoTensor, ValueInfoProto};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// A matrix of weights that only products and tables read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// The numbers in [`Graph::weights`] of the weights with these elements: one, or several with one place in a file.
    pub weights: Vec<usize>,
    /// The rows: the columns of a product's result, or the entries of a table.
    pub rows: usize,
    /// The columns: what a product sums over, or the elements of an entry.
    pub columns: usize,
    /// Whether the first weight has the shape `[columns, rows]`.
    pub is_transposed: bool,
    /// Whether a `Gather` reads it.
    pub is_table: bool,
    /// `float32` or `float16`.
    pub dtype: DType,
}

impl Matrix {
    /// Whether each of its weights, by its number, has the shape `[columns, rows]`. `weights` are those of the graph.
    pub fn orientations<'m>(&'m self, weights: &'m [Weight]) -> impl Iterator<Item = (usize, bool)> + 'm {
        let stored = |number: usize| stored_transposed(&weights[number]);
        let first = stored(self.weights[0]);
        self.weights.iter().map(move |&number| (number, self.is_transposed != (stored(number) != first)))
    }
}

/// How a node reads a weight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Use {
    /// Whether the weight has the shape `[columns, rows]`.
    pub(super) is_transposed: bool,
    pub(super) is_table: bool,
}

impl Use {
    /// How a node reads its input number `at`; `None` for a node that codes cannot serve.
    pub(super) fn of(node: &NodeProto, at: usize) -> Option<Self> {
        match (operator(node), at) {
            ("MatMul", 1) => Some(Self { is_transposed: true, is_table: false }),
            ("Gemm", 1) if is_plain_gemm(node) => {
                Some(Self { is_transposed: integer(node, "transB").unwrap_or(0) == 0, is_table: false })
            }
            ("Gather", 0) if integer(node, "axis").unwrap_or(0) == 0 => {
                Some(Self { is_transposed: false, is_table: true })
            }
            _ => None,
        }
    }
}

impl Graph {
    /// The matrices of `float32` and `float16` that only products by them and tables read, in the order of [`weights`](Graph::weights).
    pub fn matrices(&self) -> Vec<Matrix> {
        let (uses, others) = self.uses();
        let mut found: Vec<Matrix> = Vec::new();
        let mut by_place: HashMap<(&Path, u64, DType, bool, [usize; 2]), usize> = HashMap::new();
        for (number, weight) in self.weights.iter().enumerate() {
            let is_own = !others.contains(&weight.name) && !is_rotation(&weight.name);
            let Some(used) = uses.get(&weight.name).filter(|_| is_own) else {
                continue;
            };
            let (&[first, second], Some(stored)) = (weight.shape.as_slice(), stored_transposed(weight)) else {
                continue;
            };
            let (rows, columns) = if used.is_transposed { (second, first) } else { (first, second) };
            let (source, dtype) = (&weight.source, weight.dtype);
            let place = (source.file.as_path(), source.offset, dtype, stored != used.is_transposed, [rows, columns]);
            match by_place.get(&place) {
                Some(&at) => {
                    found[at].weights.push(number);
                    found[at].is_table |= used.is_table;
                }
                None => {
                    by_place.insert(place, found.len());
                    found.push(Matrix {
                        weights: vec![number],
                        rows,
                        columns,
                        is_transposed: used.is_transposed,
                        is_table: used.is_table,
                        dtype,
                    });
                }
            }
        }
        found
    }

    /// Whether a product of numbers reads codes, or will in the form that engines get.
    pub fn has_codes(&self) -> bool {
        let mut found = has_products(self.graph());
        if !found {
            self.visit_dequantized(&mut |_, _, _| found = true);
        }
        found
    }

    /// The values of the main graph that products by a matrix multiply, each once, with `columns` elements in the last dimension.
    pub fn factors(&self, matrix: &Matrix) -> Vec<String> {
        let names: Vec<&str> = matrix.weights.iter().map(|&weight| self.weights[weight].name.as_str()).collect();
        let mut found = Vec::new();
        for node in &self.graph().node {
            let is_product = node.input.get(1).is_some_and(|name| names.contains(&name.as_str()));
            if is_product && Use::of(node, 1).is_some_and(|used| !used.is_table) && !found.contains(&node.input[0]) {
                found.push(node.input[0].clone());
            }
        }
        found
    }

    /// The names of the nodes that read each weight, also in subgraphs, by the name of the weight.
    pub fn readers(&self) -> HashMap<String, Vec<String>> {
        let mut found: HashMap<String, Vec<String>> =
            self.weights.iter().map(|weight| (weight.name.clone(), Vec::new())).collect();
        visit_nodes(self.graph(), &mut |node| {
            for input in &node.input {
                if let Some(readers) = found.get_mut(input) {
                    readers.extend(node.name.clone());
                }
            }
        });
        found
    }

    /// This graph with further outputs: `float32` values of the main graph. Inputs and outputs of the graph stay what they are.
    #[must_use]
    pub fn with_outputs(mut self, names: &[String]) -> Self {
        let graph = self.model.graph.as_mut().expect("an opened model has a graph");
        for name in names {
            let is_port = self.inputs.iter().chain(&self.outputs).any(|port| port.name == *name);
            if !is_port {
                let tensor_type = TypeProtoTensor { elem_type: Some(DataType::FLOAT), shape: None };
                let kind = TypeProto { tensor_type: Some(tensor_type), ..TypeProto::default() };
                graph.output.push(ValueInfoProto { name: Some(name.clone()), r#type: Some(kind) });
                self.outputs.push(Port { name: name.clone(), dtype: Some(DType::F32), dims: None });
            }
        }
        self
    }

    /// How nodes read each weight, and the names that something else reads.
    fn uses(&self) -> (HashMap<String, Use>, HashSet<String>) {
        let mut uses: HashMap<String, Use> = HashMap::new();
        let mut others = HashSet::new();
        visit_graphs(self.graph(), &mut |scope| {
            others.extend(scope.output.iter().filter_map(|output| output.name.clone()));
        });
        others.extend(defined_twice(self.graph()));
        if self.model.ir_version.is_some_and(|version| version >= IR_VERSION_MIN) {
            // Defaults of inputs, which a caller may give.
            others.extend(self.graph().input.iter().filter_map(|input| input.name.clone()));
        }
        visit_nodes(self.graph(), &mut |node| {
            for (at, name) in node.input.iter().enumerate() {
                let Some(used) = Use::of(node, at) else {
                    others.insert(name.clone());
                    continue;
                };
                let known = uses.entry(name.clone()).or_insert(used);
                if known.is_transposed != used.is_transposed {
                    others.insert(name.clone());
                }
                known.is_table |= used.is_table;
            }
        });
        (uses, others)
    }
}

/// Whether the file has the weight with exchanged dimensions. `None` for a weight that is not a matrix of `float32` or `float16`.
fn stored_transposed(weight: &Weight) -> Option<bool> {
    let source = &weight.source;
    if !matches!(weight.dtype, DType::F32 | DType::F16) || source.dtype != weight.dtype || !source.repacks.is_empty() {
        return None;
    }
    match source.permutation.as_deref() {
        None | Some([0, 1]) => Some(false),
        Some([1, 0]) => Some(true),
        Some(_) => None,
    }
}

/// A number attribute of a node, 1 by default.
fn one_by_default(node: &NodeProto, name: &str) -> f32 {
    let found = node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name));
    found.and_then(|attribute| attribute.f).unwrap_or(1.0)
}

/// Whether a node is a `Gemm` that is a product and at most a sum.
fn is_plain_gemm(node: &NodeProto) -> bool {
    operator(node) == "Gemm"
        && integer(node, "transA").unwrap_or(0) == 0
        && one_by_default(node, "alpha") == 1.0
        && one_by_default(node, "beta") == 1.0
}
