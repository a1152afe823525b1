//! Which codes engines multiply.

use crate::low_bit::options;
use crate::support::onnx::*;
use cotensor_model::engine::RtenEngine;
use cotensor_model::quantize::{Activations, quantize_graph};
use cotensor_quant::{Scheme, Width};
use rten_onnx::onnx::{DataType, GraphProto};

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
