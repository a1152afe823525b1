//! Codes and scales that onnxruntime's quantizer wrote, with the elements that its operator gives for the identity (fixtures/scripts/codes.py).

use cotensor_core::DType;
use cotensor_quant::{Member, QuantSpec, QuantTensor, Scheme, Width};
use serde_json::Value;
use std::borrow::Cow;
use std::path::Path;

fn numbers(case: &Value, field: &str) -> Vec<f64> {
    case[field].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

#[test]
fn codes_of_onnxruntime_have_the_elements_of_its_operator() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/low-bit/onnxruntime.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut widths = Vec::new();
    for case in golden["cases"].as_array().unwrap() {
        let count = |field: &str| case[field].as_u64().unwrap() as usize;
        let width = Width::of(case["bits"].as_u64().unwrap() as u32).unwrap();
        let spec = QuantSpec::new(width, count("group"), Scheme::Round).unwrap();
        let shape = numbers(case, "shape");
        let (rows, columns) = (shape[0] as usize, shape[1] as usize);
        let codes: Vec<u8> = numbers(case, "codes").iter().map(|&code| code as u8).collect();
        let scales: Vec<u8> = numbers(case, "scales").iter().flat_map(|&scale| (scale as u16).to_le_bytes()).collect();
        let groups = columns / count("group");
        let members = [
            Member {
                name: "codes",
                dtype: DType::U8,
                shape: vec![rows, groups, codes.len() / rows / groups],
                bytes: Cow::Owned(codes),
            },
            Member { name: "scales", dtype: DType::F16, shape: vec![rows, groups], bytes: Cow::Owned(scales) },
        ];
        let tensor = QuantTensor::from_members(&spec, rows, columns, &members).unwrap();
        let mut found = vec![0.0; rows * columns];
        tensor.dequantize_into(0..rows, &mut found).unwrap();
        let wanted: Vec<f32> = numbers(case, "elements").iter().map(|&element| element as f32).collect();
        assert_eq!(found, wanted, "{width:?}");
        widths.push(width);
    }
    assert_eq!(widths, [Width::Two, Width::Four, Width::Eight]);
}
