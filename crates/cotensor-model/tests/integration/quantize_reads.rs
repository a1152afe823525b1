//! What quantizing reads.

use crate::support::onnx::*;
use crate::support::{copy, tiny};
use cotensor_core::ErrorKind;
use cotensor_model::quantize::{Activations, QuantizeOptions, quantize_folder, quantize_graph};
use cotensor_quant::{Scheme, Width};
use rten_onnx::onnx::{DataType, GraphProto};
use std::fs;

/// Bytes that this process has read from files.
fn read_bytes() -> u64 {
    let counts = fs::read_to_string("/proc/self/io").unwrap();
    let line = counts.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
    line.parse().unwrap()
}

fn options() -> QuantizeOptions {
    QuantizeOptions {
        width: Width::Four,
        group: 32,
        scheme: Scheme::Search,
        rotates: true,
        activations: Activations::Auto,
        keep: Vec::new(),
        mixed_bits: None,
        max_error: None,
    }
}

#[test]
fn each_matrix_is_read_once() {
    const SIZE: usize = 1024;
    let folder = tempfile::tempdir().unwrap();
    let whole = model(GraphProto {
        node: vec![node("MatMul", &["x", "w"], &["y"], vec![])],
        initializer: vec![f32_tensor("w", &[SIZE as i64, SIZE as i64], &noise(SIZE * SIZE, 5))],
        input: vec![value("x", DataType::FLOAT, &[None, Some(SIZE as i64)])],
        output: vec![value("y", DataType::FLOAT, &[None, Some(SIZE as i64)])],
        value_info: vec![],
    });
    let full = save(folder.path(), "full.onnx", &whole);
    let before = read_bytes();
    let report = quantize_graph(&full, &folder.path().join("4.onnx"), &options(), &mut |_, _, _| {}).unwrap();
    let read = read_bytes() - before;
    assert_eq!(report.matrices.len(), 1);
    let bytes = (SIZE * SIZE * 4) as u64;
    assert!((bytes..bytes * 5 / 4).contains(&read), "{read} bytes for a matrix of {bytes}");
}

/// Matrices of two states of a file are those of no model.
#[test]
fn a_model_that_changes_meanwhile_is_refused() {
    for name in ["onnx/model.onnx_data", "tokenizer.json"] {
        let folder = tempfile::tempdir().unwrap();
        let (model, target) = (folder.path().join("bert"), folder.path().join("new"));
        copy(&tiny("bert"), &model);
        let changed = model.join(name);
        let mut longer = fs::read(&changed).unwrap();
        longer.push(b' ');
        let mut calls = 0;
        let error = quantize_folder(&model, &target, &options(), None, &mut |_, _, _| {
            calls += 1;
            fs::write(&changed, &longer).unwrap();
        });
        let error = error.unwrap_err();
        assert!(calls > 1 && error.kind() == ErrorKind::Conflict, "{name}: {error}");
        assert_eq!(
            (error.file(), fs::read_dir(folder.path()).unwrap().count()),
            (Some(&*model.canonicalize().unwrap()), 1)
        );
    }
}
