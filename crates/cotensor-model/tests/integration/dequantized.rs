//! Graphs with `DequantizeLinear` beside their weights (QDQ): the codes are in the store, and engines multiply by them.

use crate::low_bit::differs;
use crate::support::onnx::*;
use cotensor_core::{DType, ErrorKind};
use cotensor_model::engine::{Engine, FileMode, RtenEngine};
use cotensor_model::graph::open_graph;
use cotensor_model::tensor::TensorRef;
use cotensor_quant::f16;
use cotensor_store::StoreReports;
use rten_onnx::onnx::{
    AttributeProto, AttributeType, DataType, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
};
use std::path::Path;

pub(crate) const ROWS: usize = 192;
/// 32 is the largest power of two that divides it.
pub(crate) const COLUMNS: usize = 96;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Spread {
    Whole,
    Row,
    Blocks(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reader {
    /// By `[columns, rows]`.
    MatMul,
    /// By the transposition of `[rows, columns]`.
    Turned,
    /// By `[rows, columns]`, with a summand.
    Gemm,
    Gather,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) kind: DataType,
    pub(crate) spread: Spread,
    pub(crate) has_zeros: bool,
    pub(crate) reader: Reader,
    pub(crate) is_half: bool,
    /// Whether scales and zero points are nodes.
    pub(crate) has_nodes: bool,
}

impl Case {
    fn bits(&self) -> u32 {
        if matches!(self.kind, DataType::INT4 | DataType::UINT4) { 4 } else { 8 }
    }

    fn least(&self) -> i32 {
        if matches!(self.kind, DataType::INT4 | DataType::INT8) { -(1 << (self.bits() - 1)) } else { 0 }
    }

    /// `count` codes that look random.
    pub(crate) fn codes(&self, count: usize, seed: u32) -> Vec<i32> {
        let levels = (1u32 << self.bits()) as f32;
        let code = |value: &f32| self.least() + ((value + 1.0) / 2.0 * levels).min(levels - 1.0) as i32;
        noise(count, seed).iter().map(code).collect()
    }

    pub(crate) fn tensor(&self, name: &str, dims: &[usize], codes: &[i32]) -> TensorProto {
        let bytes = match self.bits() {
            4 => codes
                .chunks(2)
                .map(|two| (two[0] as u8 & 15) | (two.get(1).map_or(0, |code| *code as u8) << 4))
                .collect(),
            _ => codes.iter().map(|code| *code as u8).collect(),
        };
        raw_tensor(name, self.kind, &numbers(dims), bytes)
    }

    pub(crate) fn dtype(&self) -> DataType {
        if self.is_half { DataType::FLOAT16 } else { DataType::FLOAT }
    }

    pub(crate) fn rounded(&self, values: Vec<f32>) -> Vec<f32> {
        values.into_iter().map(|value| if self.is_half { f16::from_f32(value).to_f32() } else { value }).collect()
    }

    fn floats(&self, name: &str, dims: &[usize], values: &[f32]) -> TensorProto {
        if self.is_half {
            let halves = values.iter().flat_map(|value| f16::from_f32(*value).to_bits().to_le_bytes());
            raw_tensor(name, DataType::FLOAT16, &numbers(dims), halves.collect())
        } else {
            f32_tensor(name, &numbers(dims), values)
        }
    }
}

fn numbers(dims: &[usize]) -> Vec<i64> {
    dims.iter().map(|&dim| dim as i64).collect()
}

/// A tensor as the value of a `Constant`, or as an initializer.
fn add(graph: &mut GraphProto, tensor: TensorProto, is_node: bool) {
    if !is_node {
        return graph.initializer.push(tensor);
    }
    let name = tensor.name.clone().unwrap();
    let value = AttributeProto {
        name: Some("value".into()),
        // Its own name says nothing: exporters give many the same.
        t: Some(TensorProto { name: Some("value".into()), ..tensor }),
        r#type: Some(AttributeType::TENSOR),
        ..AttributeProto::default()
    };
    graph.node.push(NodeProto { name: Some(name.clone()), ..node("Constant", &[], &[&name], vec![value]) });
}

/// The model, and its matrix `[rows, columns]`.
pub(crate) fn model_of(case: &Case) -> (ModelProto, Vec<f32>) {
    let has_rows_first = case.reader != Reader::MatMul;
    let dims = if has_rows_first { [ROWS, COLUMNS] } else { [COLUMNS, ROWS] };
    let (row_axis, axis) = (usize::from(!has_rows_first), usize::from(has_rows_first));
    let (scale_dims, attributes) = match case.spread {
        Spread::Whole => (vec![], vec![]),
        Spread::Row => (vec![ROWS], vec![int_attribute("axis", row_axis as i64)]),
        Spread::Blocks(size) => {
            let mut blocks = dims.to_vec();
            blocks[axis] /= size;
            (blocks, vec![int_attribute("axis", axis as i64 - 2), int_attribute("block_size", size as i64)])
        }
    };
    let count = scale_dims.iter().product();
    let codes = case.codes(ROWS * COLUMNS, 3);
    let scales = case.rounded(noise(count, 6).iter().map(|scale| (0.01 + scale.abs()) / 64.0).collect());
    let zeros = if case.has_zeros { case.codes(count, 12) } else { vec![0; count] };
    let of = |row: usize, column: usize| {
        let at = match case.spread {
            Spread::Whole => 0,
            Spread::Row => row,
            Spread::Blocks(size) if has_rows_first => row * (COLUMNS / size) + column / size,
            Spread::Blocks(size) => column / size * ROWS + row,
        };
        let code = codes[if has_rows_first { row * COLUMNS + column } else { column * ROWS + row }];
        (code - zeros[at]) as f32 * scales[at]
    };
    let matrix = case.rounded((0..ROWS * COLUMNS).map(|at| of(at / COLUMNS, at % COLUMNS)).collect());

    let mut graph = GraphProto { node: vec![], initializer: vec![], input: vec![], output: vec![], value_info: vec![] };
    graph.initializer.push(case.tensor("codes", &dims, &codes));
    add(&mut graph, case.floats("scales", &scale_dims, &scales), case.has_nodes);
    let mut inputs = vec!["codes", "scales"];
    if case.has_zeros {
        add(&mut graph, case.tensor("zeros", &scale_dims, &zeros), case.has_nodes);
        inputs.push("zeros");
    }
    graph.node.push(node("DequantizeLinear", &inputs, &["matrix"], attributes));
    let x = value("x", case.dtype(), &[None, Some(COLUMNS as i64)]);
    let y = value("y", case.dtype(), &[None, Some(ROWS as i64)]);
    (graph.input, graph.output) = (vec![x], vec![y]);
    match case.reader {
        Reader::MatMul => graph.node.push(node("MatMul", &["x", "matrix"], &["y"], vec![])),
        Reader::Turned => {
            graph.node.push(node("Transpose", &["matrix"], &["turned"], vec![]));
            graph.node.push(node("MatMul", &["x", "turned"], &["y"], vec![]));
        }
        Reader::Gemm => {
            graph.initializer.push(case.floats("bias", &[ROWS], &noise(ROWS, 9)));
            graph.node.push(node("Gemm", &["x", "matrix", "bias"], &["y"], vec![int_attribute("transB", 1)]));
        }
        Reader::Gather => {
            graph.input = vec![value("x", DataType::INT64, &[None, Some(2)])];
            graph.output = vec![value("y", case.dtype(), &[None, Some(2), Some(COLUMNS as i64)])];
            graph.node.push(node("Gather", &["matrix", "x"], &["y"], vec![]));
        }
    }
    (whole(graph), matrix)
}

/// A model with the operators that have blocks.
fn whole(graph: GraphProto) -> ModelProto {
    let opset_import = vec![OperatorSetIdProto { domain: None, version: Some(21) }];
    ModelProto { ir_version: Some(10), opset_import, ..model(graph) }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [DataType::INT8, DataType::UINT8, DataType::INT4, DataType::UINT4] {
        for spread in [Spread::Whole, Spread::Row, Spread::Blocks(16), Spread::Blocks(48)] {
            for reader in [Reader::MatMul, Reader::Turned, Reader::Gemm, Reader::Gather] {
                for has_zeros in [false, true] {
                    let case = Case { kind, spread, has_zeros, reader, is_half: false, has_nodes: false };
                    cases.push(case);
                    if spread != Spread::Blocks(48) {
                        cases.push(Case { has_nodes: true, ..case });
                        cases.push(Case { is_half: true, ..case });
                    }
                }
            }
        }
    }
    cases
}

const ENTRIES: [i64; 6] = [0, 191, 7, 7, 100, 64];

pub(crate) fn run(graph: &dyn cotensor_model::engine::LoadedGraph, case: &Case) -> Vec<f32> {
    let x = case.rounded(noise(3 * COLUMNS, 4));
    let halves: Vec<u16> = x.iter().map(|value| f16::from_f32(*value).to_bits()).collect();
    let given = match (case.reader, case.is_half) {
        (Reader::Gather, _) => TensorRef::i64(&[3, 2], &ENTRIES).unwrap(),
        (_, true) => TensorRef::new(DType::F16, &[3, COLUMNS], &halves).unwrap(),
        (_, false) => TensorRef::f32(&[3, COLUMNS], &x).unwrap(),
    };
    let y = graph.run_alone(&[("x", given)], &["y"]).unwrap().remove(0);
    TensorRef::from(&y).to_f32().unwrap().into_owned()
}

/// The results for a matrix.
pub(crate) fn wanted(case: &Case, matrix: &[f32]) -> Vec<f32> {
    let rows: Vec<&[f32]> = matrix.chunks(COLUMNS).collect();
    if case.reader == Reader::Gather {
        return ENTRIES.iter().flat_map(|&entry| rows[entry as usize].to_vec()).collect();
    }
    products(case, matrix, &case.rounded(noise(3 * COLUMNS, 4)))
}

/// The products of rows of `x` by a matrix.
fn products(case: &Case, matrix: &[f32], x: &[f32]) -> Vec<f32> {
    let bias = if case.reader == Reader::Gemm { case.rounded(noise(ROWS, 9)) } else { vec![0.0; ROWS] };
    let product = |x: &[f32], row: &[f32]| row.iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let rows = || matrix.chunks(COLUMNS).zip(&bias);
    let of = |x: &[f32]| rows().map(|(row, bias)| product(x, row) as f32 + bias).collect::<Vec<_>>();
    x.chunks(COLUMNS).flat_map(of).collect()
}

#[test]
fn engines_multiply_by_the_codes() {
    let folder = tempfile::tempdir().unwrap();
    for (number, case) in cases().iter().enumerate() {
        let (whole, matrix) = model_of(case);
        let path = save(folder.path(), &format!("{number}.onnx"), &whole);
        let wanted = wanted(case, &matrix);
        assert_eq!(open_graph(&path).unwrap().has_codes(), case.reader != Reader::Gather);
        for engine in engines() {
            let graph = open_for(&*engine, &path);
            assert!(!graph.operators().contains("DequantizeLinear"), "{case:?}");
            // Codes, and scales and zero points, also by group: less than a byte for an element. Nothing is expanded.
            let codes = ROWS * COLUMNS * case.bits() as usize / 8;
            let bytes: usize = graph.weights().iter().map(|weight| weight.size_bytes()).sum();
            assert!((codes..codes + ROWS * COLUMNS).contains(&bytes), "{case:?} {}: {bytes}", engine.name());
            let store = store();
            let loaded = load_graph(&*engine, &graph, &*store);
            let found = run(&*loaded, case);
            let most = differs(&found, &wanted);
            assert!(most < if case.is_half { 2e-3 } else { 3e-6 }, "{} {case:?}: {most}", engine.name());
            if engine.name() == RtenEngine::NAME {
                let again = load_graph(&*engine, &graph, &*store);
                assert_eq!(store.stats().total_tensors, graph.weights().len(), "{case:?}");
                assert_eq!(run(&*again, case), found);
            } else {
                check_alone(&*engine, &path, case, &found);
            }
        }
    }
}

/// onnxruntime alone rounds the other factor of products. It makes signed codes of rows and blocks unsigned for the sake of older processors, and then
/// needs their zero points.
fn check_alone(engine: &dyn Engine, path: &Path, case: &Case, found: &[f32]) {
    if case.kind == DataType::INT8 && case.spread != Spread::Whole && !case.has_zeros {
        return;
    }
    let alone = run(&*engine.load_file(path, FileMode::Read).unwrap(), case);
    let most = differs(found, &alone);
    let bound = if case.reader == Reader::Gather { 0.0 } else { 2e-2 };
    assert!(most <= bound, "{} alone {case:?}: {most}", engine.name());
}

/// A product whose other factor has codes, too, between two conversions, and the results for the rounded factor.
fn quantized_factor(case: &Case, has_zero: bool) -> (ModelProto, Vec<f32>) {
    const STEP: f32 = 1.0 / 120.0;
    let (mut whole, matrix) = model_of(case);
    let graph = whole.graph.as_mut().unwrap();
    for node in &mut graph.node {
        node.input.iter_mut().filter(|name| *name == "x").for_each(|name| "rounded".clone_into(name));
        // onnxruntime alone needs zero points for signed codes of rows.
        if case.spread == Spread::Row && node.op_type.as_deref() == Some("DequantizeLinear") && !case.has_zeros {
            node.input.push("zeros".into());
            graph.initializer.push(raw_tensor("zeros", case.kind, &[ROWS as i64], vec![0; ROWS]));
        }
    }
    graph.initializer.push(f32_tensor("step", &[], &[STEP]));
    let mut inputs = vec!["x", "step"];
    let zero = if has_zero { 121 } else { 0 };
    if has_zero {
        graph.initializer.push(raw_tensor("middle", DataType::UINT8, &[], vec![zero]));
        inputs.push("middle");
    }
    graph.node.insert(0, node("QuantizeLinear", &inputs, &["bytes"], vec![]));
    inputs[0] = "bytes";
    let back = node("DequantizeLinear", &inputs, &["rounded"], vec![]);
    graph.node.insert(1, NodeProto { name: Some("back".into()), ..back });

    let round = |value: &f32| ((value / STEP).round_ties_even() + f32::from(zero)).clamp(0.0, 255.0) - f32::from(zero);
    let x: Vec<f32> = noise(3 * COLUMNS, 4).iter().map(|value| round(value) * STEP).collect();
    (whole, products(case, &matrix, &x))
}

#[test]
fn products_of_two_factors_with_codes_are_of_integers() {
    let folder = tempfile::tempdir().unwrap();
    for (number, (kind, spread, reader, has_zero)) in [
        (DataType::INT8, Spread::Whole, Reader::MatMul, true),
        (DataType::INT8, Spread::Row, Reader::Gemm, true),
        (DataType::INT8, Spread::Row, Reader::Turned, false),
        (DataType::UINT8, Spread::Row, Reader::MatMul, true),
        (DataType::UINT8, Spread::Whole, Reader::Gemm, true),
    ]
    .into_iter()
    .enumerate()
    {
        let has_zeros = kind == DataType::UINT8;
        let case = Case { kind, spread, has_zeros, reader, is_half: false, has_nodes: false };
        let (whole, wanted) = quantized_factor(&case, has_zero);
        let path = save(folder.path(), &format!("{number}.onnx"), &whole);
        // onnxruntime would come last without a cache, if it expanded codes.
        assert!(!open_graph(&path).unwrap().has_codes());
        for engine in engines() {
            let graph = open_for(&*engine, &path);
            let is_whole = graph.operators().contains("MatMulInteger");
            let able = engine.capabilities();
            let is_right = able.multiplies_int8 && (able.has_zero_points || !case.has_zeros);
            assert_eq!(is_whole, is_right, "{} {case:?}", engine.name());
            assert!(graph.weights().iter().all(|weight| weight.dtype != DType::F32), "{case:?}");
            // rten rounds to codes with a zero point only.
            if engine.name() == RtenEngine::NAME && !has_zero {
                continue;
            }
            let check = |found: &[f32], name: &str| {
                let most = differs(found, &wanted);
                assert!(most < 3e-6, "{name} {case:?}: {most}");
            };
            check(&run(&*load_graph(&*engine, &graph, &*store()), &case), engine.name());
            if engine.name() != RtenEngine::NAME {
                check(&run(&*engine.load_file(&path, FileMode::Read).unwrap(), &case), "onnxruntime alone");
            }
        }
    }
}

#[test]
fn what_has_no_exact_form_stays_or_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for kind in [DataType::INT8, DataType::INT4] {
        let case = Case {
            kind,
            spread: Spread::Whole,
            has_zeros: false,
            reader: Reader::Gemm,
            is_half: false,
            has_nodes: false,
        };
        let (mut whole, matrix) = model_of(&case);
        let graph = whole.graph.as_mut().unwrap();
        // Something else than a product and a table.
        let last = graph.node.last_mut().unwrap();
        *last = node("Mul", &["x", "matrix"], &["y"], vec![]);
        let dims = [Some(ROWS as i64), Some(COLUMNS as i64)];
        graph.input = vec![value("x", DataType::FLOAT, &dims)];
        graph.output = vec![value("y", DataType::FLOAT, &dims)];
        let path = save(folder.path(), "stays.onnx", &whole);
        let x = vec![1.0; ROWS * COLUMNS];
        for engine in engines() {
            let graph = open_for(&*engine, &path);
            assert!(graph.operators().contains("DequantizeLinear"));
            let reads_shared = kind == DataType::INT4 && engine.name() != "ort";
            if reads_shared {
                let weights = weights(&graph, &*store());
                let error = engine.load(&graph, weights.leases).err().unwrap();
                let field = Some("node \"DequantizeLinear node\"");
                assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, field), "{error}");
                continue;
            }
            let loaded = load_graph(&*engine, &graph, &*store());
            let x = TensorRef::f32(&[ROWS, COLUMNS], &x).unwrap();
            let y = loaded.run_alone(&[("x", x)], &["y"]).unwrap().remove(0);
            assert_eq!(y.as_f32().unwrap(), matrix, "{}", engine.name());
        }
    }
}

/// Scales that are turned, and at least 1 KiB, are no constant of which others can be made.
#[test]
fn codes_of_a_matrix_that_stays_are_no_weights() {
    let folder = tempfile::tempdir().unwrap();
    for reader in [Reader::MatMul, Reader::Gather] {
        let case = Case {
            kind: DataType::INT8,
            spread: Spread::Blocks(16),
            has_zeros: false,
            reader,
            is_half: false,
            has_nodes: false,
        };
        let (mut whole, _) = model_of(&case);
        let graph = whole.graph.as_mut().unwrap();
        let scales = graph.initializer.iter_mut().find(|tensor| tensor.name.as_deref() == Some("scales")).unwrap();
        scales.name = Some("by_block".into());
        scales.dims.reverse();
        graph.node.insert(0, node("Transpose", &["by_block"], &["scales"], vec![]));
        let path = save(folder.path(), "turned.onnx", &whole);
        for engine in engines() {
            let graph = open_for(&*engine, &path);
            assert!(graph.operators().contains("DequantizeLinear"));
            let unread: Vec<_> = graph.readers().into_iter().filter(|(_, readers)| readers.is_empty()).collect();
            assert!(unread.is_empty(), "{} {reader:?}: {unread:?}", engine.name());
        }
    }
}

/// A table that is a product, too, as tied embeddings are.
#[test]
fn a_table_that_is_a_product_is_stored_as_codes_for_both() {
    let folder = tempfile::tempdir().unwrap();
    for kind in [DataType::INT8, DataType::UINT4] {
        let case = Case {
            kind,
            spread: Spread::Blocks(32),
            has_zeros: true,
            reader: Reader::Turned,
            is_half: false,
            has_nodes: false,
        };
        let (mut whole, matrix) = model_of(&case);
        let graph = whole.graph.as_mut().unwrap();
        graph.input = vec![value("indices", DataType::INT64, &[None])];
        graph.node.insert(1, node("Gather", &["matrix", "indices"], &["x"], vec![]));
        let path = save(folder.path(), "tied.onnx", &whole);
        let rows: Vec<&[f32]> = matrix.chunks(COLUMNS).collect();
        let product =
            |x: &[f32], row: &[f32]| x.iter().zip(row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let wanted: Vec<f32> = ENTRIES
            .iter()
            .flat_map(|&entry| rows.iter().map(|row| product(rows[entry as usize], row) as f32).collect::<Vec<_>>())
            .collect();
        for engine in engines() {
            let graph = open_for(&*engine, &path);
            assert!(!graph.operators().contains("DequantizeLinear"));
            let loaded = load_graph(&*engine, &graph, &*store());
            let indices = TensorRef::i64(&[6], &ENTRIES).unwrap();
            let y = loaded.run_alone(&[("indices", indices)], &["y"]).unwrap().remove(0);
            assert!(differs(y.as_f32().unwrap(), &wanted) < 3e-6, "{} {kind:?}", engine.name());
        }
    }
}
