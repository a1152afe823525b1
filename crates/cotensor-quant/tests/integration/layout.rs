//! The stored bytes, and their way there and back.

use crate::samples::normal;
use cotensor_quant::{QuantSpec, QuantTensor, Scheme, Width, f16, quantize, relative_error};
use proptest::prelude::*;

fn spec(width: Width, scheme: Scheme) -> Option<QuantSpec> {
    QuantSpec::new(width, if scheme == Scheme::TwoLevel { 0 } else { 64 }, scheme).ok()
}

#[test]
fn bytes_are_those_of_the_width() {
    for width in Width::ALL {
        for spec in Scheme::ALL.into_iter().filter_map(|scheme| spec(width, scheme)) {
            let tensor = quantize(&normal(8 * 1024, 1), 8, 1024, &spec).unwrap();
            assert_eq!(tensor.codes().len(), 8 * 1024 * width.bits() as usize / 8);
            assert_eq!(tensor.size_bytes() as f64, 8.0 * 1024.0 * spec.bits_per_weight() / 8.0, "{spec:?}");
            let members: usize = tensor.members().iter().map(|member| member.bytes.len()).sum();
            assert_eq!(members, tensor.size_bytes());
        }
    }
}

#[test]
fn members_give_the_matrix_again_with_its_hash() {
    let weights = normal(4 * 512, 2);
    let mut hashes = Vec::new();
    for width in Width::ALL {
        for spec in Scheme::ALL.into_iter().filter_map(|scheme| spec(width, scheme)) {
            let tensor = quantize(&weights, 4, 512, &spec).unwrap();
            let mut members = tensor.members();
            members.reverse();
            let again = QuantTensor::from_members(&spec, 4, 512, &members).unwrap();
            assert_eq!((again.hash(), &again), (tensor.hash(), &tensor));
            hashes.push(tensor.hash());
        }
    }
    let count = hashes.len();
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), count, "no two have one hash");
}

/// The layout that `MatMulNBits` documents, written without this crate: 4 bits, blocks of 16, zero 8.
#[test]
fn four_bits_lie_as_the_operator_has_them() {
    let weights: Vec<f32> = (0..16).map(|at| (at - 8) as f32 * 0.5).collect();
    let spec = QuantSpec::new(Width::Four, 16, Scheme::Round).unwrap();
    let tensor = quantize(&weights, 1, 16, &spec).unwrap();
    let wanted: Vec<u8> = (0..8).map(|byte| (2 * byte) | (2 * byte + 1) << 4).collect();
    assert_eq!(tensor.codes(), wanted);
    let scales = &tensor.members()[1];
    assert_eq!((scales.name, &*scales.bytes), ("scales", &f16::from_f32(0.5).to_bits().to_le_bytes()[..]));
    let mut out = [0.0; 16];
    tensor.dequantize_into(0..1, &mut out).unwrap();
    assert_eq!(out[..], weights);
}

#[test]
fn rows_are_read_alone_and_in_float16() {
    for width in Width::ALL {
        for spec in Scheme::ALL.into_iter().filter_map(|scheme| spec(width, scheme)) {
            let tensor = quantize(&normal(6 * 512, 3), 6, 512, &spec).unwrap();
            let (mut all, mut rows, mut halves) =
                (vec![0.0; 6 * 512], vec![0.0; 2 * 512], vec![f16::from_bits(0); 2 * 512]);
            tensor.dequantize_into(0..6, &mut all).unwrap();
            tensor.dequantize_into(3..5, &mut rows).unwrap();
            tensor.dequantize_f16_into(3..5, &mut halves).unwrap();
            assert_eq!(rows, all[3 * 512..5 * 512]);
            assert!(halves.iter().zip(&rows).all(|(half, value)| *half == f16::from_f32(*value)));
        }
    }
}

proptest! {
    /// What a matrix shows has, quantized by `round`, the same elements: the dequantizer inverts the quantizer.
    #[test]
    fn every_code_round_trips(seed in any::<u64>(), bits in prop::sample::select(vec![2u32, 3, 4, 8])) {
        let width = Width::of(bits).unwrap();
        let spec = QuantSpec::new(width, 16, Scheme::Round).unwrap();
        let mut out = vec![0.0; 256];
        quantize(&normal(256, seed), 1, 256, &spec).unwrap().dequantize_into(0..1, &mut out).unwrap();
        let tensor = quantize(&out, 1, 256, &spec).unwrap();
        prop_assert_eq!(relative_error(&out, &tensor).unwrap(), 0.0);
    }

    /// Any bytes of members are a matrix of finite elements.
    #[test]
    fn any_codes_are_read(bytes in prop::collection::vec(any::<u8>(), 128), scale in -1e4f32..1e4) {
        let spec = QuantSpec::new(Width::Four, 256, Scheme::Search).unwrap();
        let weights = vec![scale; 256];
        let tensor = quantize(&weights, 1, 256, &spec).unwrap();
        let mut members = tensor.members();
        members[0].bytes = bytes.into();
        let again = QuantTensor::from_members(&spec, 1, 256, &members).unwrap();
        let mut out = vec![0.0; 256];
        again.dequantize_into(0..1, &mut out).unwrap();
        prop_assert!(out.iter().all(|value| value.is_finite()));
    }
}
