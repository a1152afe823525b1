//! Engines read the stored codes of `cotensor-quant`: a product with the identity matrix is the dequantized matrix.

use crate::support::onnx::*;
use cotensor_model::engine::RtenEngine;
use cotensor_model::tensor::TensorRef;
use cotensor_quant::{QuantSpec, QuantTensor, Scheme, Width, quantize};
use rten_onnx::onnx::{AttributeProto, DataType, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto};

const ROWS: usize = 48;
const COLUMNS: usize = 128;

/// `y = x · matrixᵀ`, x `[n, COLUMNS]`. The scales are converted to float32 in the graph.
fn product(tensor: &QuantTensor) -> ModelProto {
    let members = tensor.members();
    let proto = |name: &str| -> Option<TensorProto> {
        let member = members.iter().find(|member| member.name == name)?;
        let dims: Vec<i64> = member.shape.iter().map(|&dim| dim as i64).collect();
        let dtype = if name == "codes" { DataType::UINT8 } else { DataType::FLOAT16 };
        Some(raw_tensor(name, dtype, &dims, member.bytes.to_vec()))
    };
    let to_float = || vec![int_attribute("to", 1)];
    let mut node_list = vec![node("Cast", &["scales"], &["scales32"], to_float())];
    let mut inputs = vec!["x", "codes", "scales32"];
    if let Some(zeros) = proto("zero_points") {
        assert_eq!(zeros.dims.len(), 2);
        node_list
            .push(NodeProto { name: Some("zeros".into()), ..node("Cast", &["zero_points"], &["zeros32"], to_float()) });
        inputs.push("zeros32");
    }
    let spec = tensor.spec();
    let attribute = |name: &str, value: usize| -> AttributeProto { int_attribute(name, value as i64) };
    let attributes = vec![
        attribute("K", tensor.columns()),
        attribute("N", tensor.rows()),
        attribute("bits", spec.width().bits() as usize),
        attribute("block_size", spec.group()),
    ];
    node_list
        .push(NodeProto { domain: Some("com.microsoft".into()), ..node("MatMulNBits", &inputs, &["y"], attributes) });
    let graph = GraphProto {
        node: node_list,
        initializer: ["codes", "scales", "zero_points"].into_iter().filter_map(proto).collect(),
        input: vec![value("x", DataType::FLOAT, &[None, Some(COLUMNS as i64)])],
        output: vec![value("y", DataType::FLOAT, &[None, Some(ROWS as i64)])],
        value_info: vec![],
    };
    let mut whole = model(graph);
    whole.opset_import.push(OperatorSetIdProto { domain: Some("com.microsoft".into()), version: Some(1) });
    whole
}

/// The engine's own dequantization of the transposed matrix.
fn of_engine(engine: &dyn cotensor_model::engine::Engine, tensor: &QuantTensor) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    let graph = load_on(engine, &save(folder.path(), "model.onnx", &product(tensor)), &*store());
    let identity: Vec<f32> =
        (0..COLUMNS * COLUMNS).map(|at| f32::from(u8::from(at / COLUMNS == at % COLUMNS))).collect();
    let x = TensorRef::f32(&[COLUMNS, COLUMNS], &identity).unwrap();
    let y = graph.run_alone(&[("x", x)], &["y"]).unwrap().remove(0);
    let y = y.as_f32().unwrap();
    (0..ROWS * COLUMNS).map(|at| y[at % COLUMNS * ROWS + at / COLUMNS]).collect()
}

#[test]
fn engines_dequantize_the_stored_codes() {
    let weights = noise(ROWS * COLUMNS, 5);
    for engine in engines() {
        let is_rten = engine.name() == RtenEngine::NAME;
        let mut ran = 0;
        for width in [Width::Two, Width::Four, Width::Eight] {
            for (scheme, group) in
                [(Scheme::Search, 16), (Scheme::Round, 32), (Scheme::Search, 128), (Scheme::Affine, 32)]
            {
                // What the engines have: rten 4 bits without zero points, onnxruntime no float zero points with 8 bits.
                let has_zeros = scheme == Scheme::Affine;
                if (is_rten && (width != Width::Four || has_zeros)) || (width == Width::Eight && has_zeros) {
                    continue;
                }
                let tensor = quantize(&weights, ROWS, COLUMNS, &QuantSpec::new(width, group, scheme).unwrap()).unwrap();
                let mut own = vec![0.0; ROWS * COLUMNS];
                tensor.dequantize_into(0..ROWS, &mut own).unwrap();
                let found = of_engine(&*engine, &tensor);
                let most = own.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                // Products with ones and zeros; a float zero point may be subtracted in another order.
                assert!(
                    most <= if has_zeros { 1e-6 } else { 0.0 },
                    "{} {width:?} {scheme} {group}: {most}",
                    engine.name()
                );
                ran += 1;
            }
        }
        assert!(ran >= 3, "{}", engine.name());
    }
}
