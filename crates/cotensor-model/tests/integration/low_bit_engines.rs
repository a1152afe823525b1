//! Which codes engines multiply, and graphs of `float16`.

use crate::low_bit::{COLUMNS, ROWS, differs, matrix, network, options};
use crate::support::onnx::*;
use cotensor_core::DType;
use cotensor_model::engine::{Engine, RtenEngine};
use cotensor_model::quantize::{Activations, QuantizeOptions, quantize_graph};
use cotensor_model::tensor::TensorRef;
use cotensor_quant::{QuantSpec, Scheme, Width, f16, quantize, rotate};
use rten_onnx::onnx::{DataType, GraphProto, ModelProto};
use std::path::Path;

#[test]
fn engines_get_codes_that_they_do_not_expand() {
    const LONG: usize = 256;
    let folder = tempfile::tempdir().unwrap();
    let whole = model(GraphProto {
        node: vec![node("MatMul", &["x", "w"], &["y"], vec![])],
        initializer: vec![f32_tensor("w", &[LONG as i64, 8], &noise(LONG * 8, 5))],
        input: vec![value("x", DataType::FLOAT, &[None, Some(LONG as i64)])],
        output: vec![value("y", DataType::FLOAT, &[None, Some(8)])],
        value_info: vec![],
    });
    let full = save(folder.path(), "full.onnx", &whole);
    for (width, group, activations) in Width::ALL.into_iter().flat_map(|width| {
        let groups = [16, 32, 64, 128, 256].into_iter();
        groups.flat_map(move |group| [Activations::Float32, Activations::Int8].map(|kind| (width, group, kind)))
    }) {
        let path = folder.path().join(format!("{}-{group}-{activations:?}.onnx", width.bits()));
        quantize_graph(&full, &path, &options(width, group, Scheme::Search, activations), &mut |_, _, _| {}).unwrap();
        for engine in engines() {
            let is_rten = engine.name() == RtenEngine::NAME;
            let is_int8 = activations == Activations::Int8;
            let graph = open_for(&*engine, &path);
            let found: Vec<u32> = graph.coded_products().iter().map(|product| product.bits).collect();
            let wanted: &[u32] = match (width, group) {
                (Width::Two, 32..=128) if is_int8 && !is_rten => &[2],
                (Width::Eight, _) if is_int8 && !is_rten => &[8],
                (Width::Eight, _) => &[4, 4],
                _ => &[4],
            };
            assert_eq!(found, wanted, "{} {width:?} {group} {activations:?}", engine.name());
            // rten rounds one row only.
            let keeps = !is_rten || matches!(width, Width::Three | Width::Four);
            let wanted = if is_int8 && keeps { 4 } else { 0 };
            let mut levels = Vec::new();
            graph.visit_nodes(&mut |node| {
                let level = node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some("accuracy_level"));
                levels.extend(level.and_then(|level| level.i));
            });
            assert!(levels.iter().all(|level| *level == wanted), "{} {width:?} {group} {levels:?}", engine.name());
            assert!(!levels.is_empty());
        }
    }
}

/// The model with `float16` in the place of `float32`.
fn halved(mut whole: ModelProto) -> ModelProto {
    let graph = whole.graph.as_mut().unwrap();
    for tensor in graph.initializer.iter_mut().filter(|tensor| tensor.data_type == Some(DataType::FLOAT)) {
        let floats = tensor.raw_data.take().unwrap().into_inner();
        let floats = floats.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        let halves = floats.flat_map(|value| f16::from_f32(value).to_bits().to_le_bytes()).collect();
        *tensor = raw_tensor(tensor.name.as_deref().unwrap(), DataType::FLOAT16, &tensor.dims, halves);
    }
    for port in graph.input.iter_mut().chain(&mut graph.output) {
        let kind = port.r#type.as_mut().unwrap().tensor_type.as_mut().unwrap();
        if kind.elem_type == Some(DataType::FLOAT) {
            kind.elem_type = Some(DataType::FLOAT16);
        }
    }
    whole
}

#[test]
fn graphs_of_float16_are_quantized() {
    let folder = tempfile::tempdir().unwrap();
    let full = save(folder.path(), "full.onnx", &halved(network(18, |number| matrix(number).0)));
    let run = |engine: &dyn Engine, path: &Path| {
        let graph = load_on(engine, path, &*store());
        let x: Vec<u16> = noise(2 * 3 * COLUMNS, 4).iter().map(|value| f16::from_f32(*value).to_bits()).collect();
        let indices = TensorRef::i64(&[2, 3], &[0, 5, 47, 5, 1, 33]).unwrap();
        let x = TensorRef::new(DType::F16, &[2, 3, COLUMNS], &x).unwrap();
        let y = graph.run_alone(&[("indices", indices), ("x", x)], &["y"]).unwrap().remove(0);
        assert_eq!(y.dtype(), DType::F16, "{}", engine.name());
        TensorRef::from(&y).to_f32().unwrap().into_owned()
    };
    for (width, scheme, rotates) in [
        (Width::Two, Scheme::Search, false),
        (Width::Three, Scheme::Affine, false),
        (Width::Four, Scheme::Affine, true),
        (Width::Eight, Scheme::Round, false),
    ] {
        let path = folder.path().join(format!("{}.onnx", width.bits()));
        let options = QuantizeOptions { rotates, ..options(width, 32, scheme, Activations::Float32) };
        let report = quantize_graph(&full, &path, &options, &mut |_, _, _| {}).unwrap();
        assert_eq!(report.matrices.len(), 3, "{report:?}");
        let halves = |values: &[f32]| values.iter().map(|value| f16::from_f32(*value).to_f32()).collect::<Vec<f32>>();
        let dequantized = network(18, |number| {
            let (weights, rows, columns) = matrix(number);
            let (mut weights, block) = (halves(&weights), if columns == ROWS { 32 } else { 128 });
            if rotates {
                rotate(&mut weights, block).unwrap();
            }
            let tensor = quantize(&weights, rows, columns, &QuantSpec::new(width, 32, scheme).unwrap()).unwrap();
            tensor.dequantize_into(0..rows, &mut weights).unwrap();
            if rotates {
                rotate(&mut weights, block).unwrap();
            }
            weights
        });
        let dequantized = save(folder.path(), "dequantized.onnx", &halved(dequantized));
        for engine in engines() {
            let found = run(&*engine, &path);
            let most = differs(&found, &run(&*engine, &dequantized));
            assert!(most < 3e-3, "{} {width:?} {scheme}: {most}", engine.name());
            let least = if width == Width::Eight { 3e-4 } else { 1e-2 };
            assert!(differs(&found, &run(&*engine, &full)) > least, "the same weights");
        }
    }
}
