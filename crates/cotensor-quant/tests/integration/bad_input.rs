//! Weights and members that are not possible, and groups that are hard to divide by.

use crate::samples::normal;
use cotensor_core::ErrorKind;
use cotensor_quant::{Member, QuantSpec, QuantTensor, Scheme, Width, quantize};

fn specs() -> impl Iterator<Item = QuantSpec> {
    let all = Width::ALL.into_iter().flat_map(|width| Scheme::ALL.map(|scheme| (width, scheme)));
    all.filter_map(|(width, scheme)| {
        QuantSpec::new(width, if scheme == Scheme::TwoLevel { 0 } else { 32 }, scheme).ok()
    })
}

fn dequantized(tensor: &QuantTensor) -> Vec<f32> {
    let mut out = vec![0.0; tensor.rows() * tensor.columns()];
    tensor.dequantize_into(0..tensor.rows(), &mut out).unwrap();
    out
}

#[test]
fn weights_that_are_not_finite_are_named() {
    for spec in specs() {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 65_536.0] {
            let mut weights = normal(2 * 256, 1);
            weights[256 + 7] = wrong;
            let error = quantize(&weights, 2, 256, &spec).unwrap_err();
            assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("weights")));
            assert!(error.to_string().contains("row 1, column 7"), "{error}");
        }
    }
}

#[test]
fn shapes_that_are_not_possible_are_refused() {
    for spec in specs() {
        let field = |weights: usize, rows, columns| {
            let error = quantize(&vec![0.0; weights], rows, columns, &spec).unwrap_err();
            error.field().map(str::to_owned)
        };
        assert_eq!(field(30, 1, 30).as_deref(), Some("columns"));
        assert_eq!(field(0, 1, 0).as_deref(), Some("columns"));
        assert_eq!(field(255, 1, 256).as_deref(), Some("weights"));
        assert_eq!(field(0, usize::MAX / 2, 256).as_deref(), Some("rows"));
        // More than the memory, in what can be addressed.
        assert_eq!(field(0, 1 << 45, 256).as_deref(), Some("weights"));
        let members = quantize(&[0.0; 256], 1, 256, &spec).unwrap();
        let error = QuantTensor::from_members(&spec, 1 << 45, 256, &members.members()).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("codes")));
        let error = QuantTensor::from_members(&spec, 1 << 45, 256, &[]).unwrap_err();
        assert_eq!(error.field(), Some("codes"));
        assert_eq!(quantize(&[], 0, 256, &spec).unwrap().size_bytes(), 0);
    }
}

#[test]
fn groups_of_zeros_equal_values_and_tiny_values_stay_finite() {
    for spec in specs() {
        for value in [0.0, 1.0, -3.5, 65_504.0, -65_504.0, 1e-7, f32::MIN_POSITIVE, f32::from_bits(1)] {
            let found = dequantized(&quantize(&[value; 256], 1, 256, &spec).unwrap());
            let tolerance = (value.abs() * 0.34).max(2e-7);
            for found in found {
                assert!((found - value).abs() <= tolerance, "{spec:?}: {found} instead of {value}");
            }
        }
        // One outlier.
        let mut weights = normal(256, 2);
        weights[100] = 60_000.0;
        assert!(dequantized(&quantize(&weights, 1, 256, &spec).unwrap()).iter().all(|value| value.is_finite()));
    }
}

#[test]
fn rows_and_room_are_checked() {
    let spec = QuantSpec::new(Width::Four, 32, Scheme::Search).unwrap();
    let tensor = quantize(&normal(4 * 64, 1), 4, 64, &spec).unwrap();
    let field =
        |rows, room: usize| tensor.dequantize_into(rows, &mut vec![0.0; room]).unwrap_err().field().map(str::to_owned);
    assert_eq!(field(3..5, 128).as_deref(), Some("rows"));
    #[expect(clippy::reversed_empty_ranges, reason = "bad input")]
    let reversed = 2..1;
    assert_eq!(field(reversed, 0).as_deref(), Some("rows"));
    assert_eq!(field(1..3, 64).as_deref(), Some("out"));
}

#[test]
fn members_that_do_not_fit_are_named() {
    for spec in specs() {
        let tensor = quantize(&normal(2 * 256, 5), 2, 256, &spec).unwrap();
        let members = tensor.members();
        let build = |members: &[Member<'_>]| QuantTensor::from_members(&spec, 2, 256, members);
        for (number, member) in members.iter().enumerate() {
            let with = |other: Member<'static>| {
                let mut changed = members.clone();
                changed[number] = other;
                build(&changed).unwrap_err()
            };
            let own = |bytes: Vec<u8>| Member {
                name: member.name,
                dtype: member.dtype,
                shape: member.shape.clone(),
                bytes: bytes.into(),
            };
            let mut bytes = member.bytes.to_vec();
            bytes.pop();
            assert_eq!(with(own(bytes)).field(), Some(member.name), "truncated");
            let mut shape = own(member.bytes.to_vec());
            shape.shape[0] = 3;
            assert_eq!(with(shape).field(), Some(member.name));
            assert_eq!(with(Member { name: "other", ..own(member.bytes.to_vec()) }).field(), Some("other"));
            let mut missing = members.clone();
            missing.remove(number);
            assert_eq!(build(&missing).unwrap_err().field(), Some(member.name));
            let twice = [&members[..], &members[number..=number]].concat();
            assert_eq!(build(&twice).unwrap_err().field(), Some(member.name));
            if member.dtype.name() == "float16" {
                let mut bytes = member.bytes.to_vec();
                bytes[..2].copy_from_slice(&[0, 0x7c]);
                assert_eq!(with(own(bytes)).field(), Some(member.name), "infinite");
            }
        }
    }
}
