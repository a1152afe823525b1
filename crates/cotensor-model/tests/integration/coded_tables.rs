//! Tables of codes in blocks (`GatherBlockQuantized`): engines that do not have the operator give the same entries.

use crate::dequantized::{COLUMNS, Case, ROWS, Reader, Spread, model_of, run, wanted};
use crate::low_bit::differs;
use crate::support::onnx::*;
use rten_onnx::onnx::{DataType, ModelProto, NodeProto, OperatorSetIdProto};

/// The zero points of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Points {
    None,
    Random,
    /// All 0: the code, not the middle one.
    Zero,
}

/// A table of blocks, as quantizers write them for embeddings.
fn coded_table(kind: DataType, bits: u32, size: usize, zeros: Points, is_half: bool) -> (ModelProto, Vec<f32>) {
    let has_zeros = zeros != Points::None;
    let (columns, blocks) = (COLUMNS, COLUMNS / size);
    let of = if bits == 4 && kind == DataType::UINT8 { DataType::UINT4 } else { kind };
    let case =
        Case { kind: of, spread: Spread::Blocks(size), has_zeros, reader: Reader::Gather, is_half, has_nodes: false };
    let (mut whole, _) = model_of(&case);
    let graph = whole.graph.as_mut().unwrap();
    let codes = case.codes(ROWS * columns, 3);
    let scales = case.rounded(noise(ROWS * blocks, 6).iter().map(|scale| (0.01 + scale.abs()) / 64.0).collect());
    // As onnxruntime has it: the middle code for bytes only.
    let default = if kind == DataType::UINT8 { 1 << (bits - 1) } else { 0 };
    let zeros = match zeros {
        Points::None => vec![default; ROWS * blocks],
        Points::Random => case.codes(ROWS * blocks, 12),
        Points::Zero => vec![0; ROWS * blocks],
    };
    if let Some(tensor) = graph.initializer.iter_mut().find(|tensor| tensor.name.as_deref() == Some("zeros")) {
        *tensor = case.tensor("zeros", &[ROWS, blocks], &zeros);
    }
    let of = |at: usize| (codes[at] - zeros[at / size]) as f32 * scales[at / size];
    let matrix = case.rounded((0..ROWS * columns).map(of).collect());
    for tensor in &mut graph.initializer {
        if tensor.data_type != Some(case.dtype()) {
            tensor.data_type = Some(kind);
            if kind == DataType::UINT8 && bits == 4 {
                *tensor.dims.last_mut().unwrap() /= 2;
            }
        }
    }
    let mut inputs = vec!["codes", "x", "scales"];
    inputs.extend(has_zeros.then_some("zeros"));
    let attributes = [("bits", i64::from(bits)), ("block_size", size as i64), ("quantize_axis", 1)];
    let attributes = attributes.map(|(name, value)| int_attribute(name, value)).to_vec();
    let table = node("GatherBlockQuantized", &inputs, &["y"], attributes);
    graph.node = vec![NodeProto { domain: Some("com.microsoft".into()), ..table }];
    whole.opset_import.push(OperatorSetIdProto { domain: Some("com.microsoft".into()), version: Some(1) });
    (whole, matrix)
}

#[test]
fn tables_of_blocks_run_on_engines_without_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut number = 0;
    for (kind, bits) in [(DataType::INT4, 4), (DataType::UINT4, 4), (DataType::UINT8, 4), (DataType::UINT8, 8)] {
        for (size, zeros, is_half) in [
            (16, Points::None, false),
            (16, Points::Random, false),
            (16, Points::Random, true),
            // Less than 1 KiB: in the file of the graph.
            (4 * bits as usize, Points::Zero, false),
        ] {
            number += 1;
            let (whole, matrix) = coded_table(kind, bits, size, zeros, is_half);
            let path = save(folder.path(), &format!("{number}.onnx"), &whole);
            let (spread, has_zeros) = (Spread::Blocks(size), zeros != Points::None);
            let case = Case { kind, spread, has_zeros, reader: Reader::Gather, is_half, has_nodes: false };
            let wanted = wanted(&case, &matrix);
            for engine in engines() {
                let graph = open_for(&*engine, &path);
                assert_eq!(graph.operators().contains("com.microsoft::GatherBlockQuantized"), engine.name() != "rten");
                // onnxruntime has no shared weights of 4 bits.
                if matches!(kind, DataType::INT4 | DataType::UINT4) && engine.name() == "ort-shared" {
                    continue;
                }
                let found = run(&*load_graph(&*engine, &graph, &*store()), &case);
                let most = differs(&found, &wanted);
                assert!(
                    most < if is_half { 2e-3 } else { 3e-7 },
                    "{} {kind} {bits} {size} {zeros:?}: {most}",
                    engine.name()
                );
                if engine.name() == "rten" {
                    let bytes: usize = graph.weights().iter().map(|weight| weight.size_bytes()).sum();
                    assert!(bytes < ROWS * COLUMNS * 3 / 2, "{bytes}");
                }
            }
        }
    }
}
