//! Graphs that other programs quantized: products by codes with zero points and a bias.

use crate::support::onnx::*;
use cotensor_core::{DType, ErrorKind};
use cotensor_model::engine::RtenEngine;
use cotensor_model::graph::open_graph;
use cotensor_model::tensor::TensorRef;
use cotensor_quant::f16;
use rten_onnx::onnx::{DataType, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto};
use std::path::Path;

const ROWS: usize = 24;
const GROUP: usize = 32;
/// Five groups: zero points of 2 and 4 bits leave a part of the last byte of a row.
const GROUPS: usize = 5;
const COLUMNS: usize = GROUP * GROUPS;

/// `count` codes that look random.
fn codes(bits: u32, count: usize, seed: usize) -> Vec<u8> {
    let most = (1usize << bits) - 1;
    (0..count).map(|at| ((((at + seed) * 2_654_435_761) >> 11) & most) as u8).collect()
}

/// Rows of codes, lowest bits first; each row ends with a whole byte.
fn packed(bits: u32, codes: &[u8], row: usize) -> Vec<u8> {
    let in_byte = 8 / bits as usize;
    let pack = |part: &[u8]| part.iter().rev().fold(0u8, |byte, code| byte << (bits % 8) | code);
    codes.chunks(row).flat_map(|row| row.chunks(in_byte).map(pack)).collect()
}

struct Case {
    bits: u32,
    zeros: Zeros,
    has_bias: bool,
    /// Whether scales have one dimension, as older quantizers write them.
    is_flat: bool,
    /// Whether all numbers are `float16`.
    is_half: bool,
}

impl Case {
    /// Numbers as the graph has them.
    fn rounded(&self, values: Vec<f32>) -> Vec<f32> {
        let round = |value: f32| if self.is_half { f16::from_f32(value).to_f32() } else { value };
        values.into_iter().map(round).collect()
    }

    fn dtype(&self) -> DataType {
        if self.is_half { DataType::FLOAT16 } else { DataType::FLOAT }
    }

    fn tensor(&self, name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
        if self.is_half {
            raw_tensor(name, DataType::FLOAT16, dims, halves(values).into_iter().flat_map(u16::to_le_bytes).collect())
        } else {
            f32_tensor(name, dims, values)
        }
    }
}

fn halves(values: &[f32]) -> Vec<u16> {
    values.iter().map(|value| f16::from_f32(*value).to_bits()).collect()
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Zeros {
    None,
    Packed,
    Float,
}

/// The model, and the matrix that its codes stand for.
fn model_of(case: &Case) -> (ModelProto, Vec<f32>) {
    let Case { bits, zeros, has_bias, is_flat, .. } = *case;
    let all = codes(bits, ROWS * COLUMNS, 3);
    let zero_codes = codes(bits, ROWS * GROUPS, 11);
    let scales = case.rounded(noise(ROWS * GROUPS, 6).iter().map(|scale| 0.01 + scale.abs()).collect());
    let middle = f32::from(1u8 << (bits - 1));
    let zero = |at: usize| match zeros {
        Zeros::None => middle,
        Zeros::Packed => f32::from(zero_codes[at]),
        Zeros::Float => f32::from(zero_codes[at]) + 0.25,
    };
    let matrix = all.iter().enumerate().map(|(at, code)| (f32::from(*code) - zero(at / GROUP)) * scales[at / GROUP]);
    let (rows, groups) = (ROWS as i64, GROUPS as i64);
    let bytes = (GROUP * bits as usize / 8) as i64;
    let scale_dims: &[i64] = if is_flat { &[rows * groups] } else { &[rows, groups] };
    let mut initializer: Vec<TensorProto> = vec![
        raw_tensor("codes", DataType::UINT8, &[rows, groups, bytes], packed(bits, &all, GROUP)),
        case.tensor("scales", scale_dims, &scales),
    ];
    let mut inputs = vec!["x", "codes", "scales", "", "", ""];
    match zeros {
        Zeros::None => {}
        Zeros::Packed => {
            let bytes = packed(bits, &zero_codes, GROUPS);
            initializer.push(raw_tensor("zeros", DataType::UINT8, &[rows, bytes.len() as i64 / rows], bytes));
            inputs[3] = "zeros";
        }
        Zeros::Float => {
            let values: Vec<f32> = (0..ROWS * GROUPS).map(zero).collect();
            initializer.push(case.tensor("zeros", &[rows, groups], &values));
            inputs[3] = "zeros";
        }
    }
    if has_bias {
        initializer.push(case.tensor("bias", &[rows], &noise(ROWS, 9)));
        inputs[5] = "bias";
    }
    let attributes = [("K", COLUMNS), ("N", ROWS), ("bits", bits as usize), ("block_size", GROUP)];
    let attributes = attributes.map(|(name, value)| int_attribute(name, value as i64)).to_vec();
    while inputs.last() == Some(&"") {
        inputs.pop();
    }
    let product =
        NodeProto { domain: Some("com.microsoft".into()), ..node("MatMulNBits", &inputs, &["y"], attributes) };
    let graph = GraphProto {
        node: vec![product],
        initializer,
        input: vec![value("x", case.dtype(), &[None, Some(COLUMNS as i64)])],
        output: vec![value("y", case.dtype(), &[None, Some(rows)])],
        value_info: vec![],
    };
    let matrix = matrix.collect();
    let mut whole = model(graph);
    whole.opset_import.push(OperatorSetIdProto { domain: Some("com.microsoft".into()), version: Some(1) });
    (whole, matrix)
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for bits in [2, 4, 8] {
        for zeros in [Zeros::None, Zeros::Packed, Zeros::Float] {
            for has_bias in [false, true] {
                for (is_flat, is_half) in [(false, false), (true, false), (false, true), (true, true)] {
                    cases.push(Case { bits, zeros, has_bias, is_flat, is_half });
                }
            }
        }
    }
    cases
}

#[test]
fn engines_subtract_zero_points_and_add_a_bias() {
    let folder = tempfile::tempdir().unwrap();
    for (number, case) in cases().iter().enumerate() {
        let (whole, matrix) = model_of(case);
        let path = save(folder.path(), &format!("{number}.onnx"), &whole);
        let x = case.rounded(noise(2 * COLUMNS, 4));
        let bias = if case.has_bias { case.rounded(noise(ROWS, 9)) } else { vec![0.0; ROWS] };
        let rows = x.chunks(COLUMNS).flat_map(|x| {
            let product =
                |row: &[f32]| row.iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32;
            matrix.chunks(COLUMNS).zip(&bias).map(move |(row, bias)| product(row) + bias).collect::<Vec<_>>()
        });
        let wanted: Vec<f32> = rows.collect();
        for engine in engines() {
            // onnxruntime expands zero points that are not codes, and codes of 2 and 8 bits with activations in float32.
            let keeps = engine.name() != RtenEngine::NAME && case.bits == 4 && case.zeros != Zeros::Float;
            let graph = open_for(&*engine, &path);
            graph.visit_nodes(&mut |node| {
                let is_product = node.op_type.as_deref() == Some("MatMulNBits");
                assert!(!is_product || keeps || node.input.len() == 3, "{} {:?}", engine.name(), node.input);
            });
            assert!(graph.coded_products().iter().all(|product| product.bits == 4));
            let graph = load_graph(&*engine, &graph, &*store());
            let half = halves(&x);
            let given = if case.is_half {
                TensorRef::new(DType::F16, &[2, COLUMNS], &half).unwrap()
            } else {
                TensorRef::f32(&[2, COLUMNS], &x).unwrap()
            };
            let y = graph.run_alone(&[("x", given)], &["y"]).unwrap().remove(0);
            let y = TensorRef::from(&y).to_f32().unwrap();
            let most = wanted.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            let found = y.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / most;
            let Case { bits, zeros, has_bias, is_flat, is_half } = case;
            // The result is rounded to float16.
            let bound = if *is_half { 1e-3 } else { 3e-6 };
            assert!(found < bound, "{} {bits} bits, {zeros:?}, {has_bias} {is_flat} {is_half}: {found}", engine.name());
        }
    }
}

#[test]
fn zero_points_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |case: &Case, dims: &[i64], dtype: DataType| {
        let (mut whole, _) = model_of(case);
        let tensors = &mut whole.graph.as_mut().unwrap().initializer;
        let zeros = tensors.iter_mut().find(|tensor| tensor.name.as_deref() == Some("zeros")).unwrap();
        let size = if dtype == DataType::UINT8 { 1 } else { 4 };
        *zeros = raw_tensor("zeros", dtype, dims, vec![0; dims.iter().product::<i64>() as usize * size]);
        let path: &Path = &save(folder.path(), "model.onnx", &whole);
        let error = open_graph(path).err().unwrap();
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("zero points"), "{error}");
    };
    for bits in [2, 4, 8] {
        let case = Case { bits, zeros: Zeros::Packed, has_bias: false, is_flat: false, is_half: false };
        refused(&case, &[ROWS as i64, 1], DataType::UINT8);
        refused(&case, &[ROWS as i64 + 1, GROUPS as i64], DataType::UINT8);
        refused(&case, &[ROWS as i64, 6], DataType::FLOAT);
    }
}
