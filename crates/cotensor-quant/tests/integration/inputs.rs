//! Codes for known inputs.

use crate::samples::normal;
use cotensor_quant::{
    InputMoments, QuantSpec, QuantTensor, Scheme, Width, quantize, quantize_for, relative_error, rotate,
};

const COLUMNS: usize = 128;
const ROWS: usize = 24;

/// Inputs with a few strong directions, as activations have them.
fn inputs(count: usize, seed: u64) -> Vec<f32> {
    let directions = normal(8 * COLUMNS, 77);
    let (strengths, noise) = (normal(count * 8, seed), normal(count * COLUMNS, seed + 1));
    (0..count * COLUMNS)
        .map(|at| {
            let (row, column) = (at / COLUMNS, at % COLUMNS);
            let strong: f32 = (0..8).map(|k| strengths[row * 8 + k] * directions[k * COLUMNS + column]).sum();
            strong + 0.3 * noise[at]
        })
        .collect()
}

fn moments(inputs: &[f32]) -> InputMoments {
    let mut moments = InputMoments::new(COLUMNS);
    // In parts that are not a multiple of what is added at a time.
    for part in inputs.chunks(5 * COLUMNS) {
        moments.add(part);
    }
    moments
}

/// The relative error of the results for these inputs.
fn error(inputs: &[f32], weights: &[f32], tensor: &QuantTensor) -> f64 {
    let mut found = vec![0.0; ROWS * COLUMNS];
    tensor.dequantize_into(0..ROWS, &mut found).unwrap();
    let product = |x: &[f32], row: &[f32]| x.iter().zip(row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let (mut wrong, mut all) = (0.0, 0.0);
    for x in inputs.chunks_exact(COLUMNS) {
        for (row, found) in weights.chunks_exact(COLUMNS).zip(found.chunks_exact(COLUMNS)) {
            wrong += (product(x, row) - product(x, found)).powi(2);
            all += product(x, row).powi(2);
        }
    }
    (wrong / all).sqrt()
}

#[test]
fn errors_of_results_are_those_of_the_moments() {
    let (weights, inputs) = (normal(ROWS * COLUMNS, 1), inputs(203, 5));
    let moments = moments(&inputs);
    assert_eq!((moments.rows(), moments.columns()), (203, COLUMNS));
    for width in Width::ALL {
        let tensor = quantize(&weights, ROWS, COLUMNS, &QuantSpec::new(width, 32, Scheme::Search).unwrap()).unwrap();
        let (found, wanted) = (moments.relative_error(&weights, &tensor).unwrap(), error(&inputs, &weights, &tensor));
        assert!((found / wanted - 1.0).abs() < 1e-3, "{width:?}: {found} {wanted}");
    }
}

#[test]
fn codes_for_inputs_give_better_results_for_other_inputs() {
    let weights = normal(ROWS * COLUMNS, 1);
    let (known, others) = (inputs(512, 5), inputs(100, 900));
    let factor = moments(&known).factor().unwrap();
    for width in Width::ALL {
        for scheme in [Scheme::Round, Scheme::Search, Scheme::Affine] {
            let spec = QuantSpec::new(width, 32, scheme).unwrap();
            let plain = quantize(&weights, ROWS, COLUMNS, &spec).unwrap();
            let fitted = quantize_for(&weights, ROWS, COLUMNS, &spec, &factor).unwrap();
            let (plain, fitted) = (error(&others, &weights, &plain), error(&others, &weights, &fitted));
            assert!(fitted < 0.75 * plain, "{width:?} {scheme}: {fitted} instead of {plain}");
        }
    }
}

#[test]
fn inputs_without_directions_change_little() {
    let weights = normal(ROWS * COLUMNS, 1);
    let mut moments = InputMoments::new(COLUMNS);
    let identity: Vec<f32> =
        (0..COLUMNS * COLUMNS).map(|at| f32::from(u8::from(at / COLUMNS == at % COLUMNS))).collect();
    moments.add(&identity);
    let spec = QuantSpec::new(Width::Four, 32, Scheme::Search).unwrap();
    let fitted = quantize_for(&weights, ROWS, COLUMNS, &spec, &moments.factor().unwrap()).unwrap();
    let plain = quantize(&weights, ROWS, COLUMNS, &spec).unwrap();
    let [fitted, plain] = [fitted, plain].map(|tensor| relative_error(&weights, &tensor).unwrap());
    // The scale of a group is fitted to its codes again.
    assert!(fitted <= plain && fitted > 0.99 * plain, "{fitted} instead of {plain}");
}

#[test]
fn targets_beyond_float16_stay_finite() {
    // Errors of the last columns weigh a thousand times as much as the first ones, which take them up.
    let weights: Vec<f32> = normal(ROWS * COLUMNS, 1).iter().map(|weight| weight * 15_000.0).collect();
    let inputs: Vec<f32> =
        inputs(64, 5).iter().enumerate().map(|(at, x)| x * (1 + 10 * (at % COLUMNS)) as f32).collect();
    let factor = moments(&inputs).factor().unwrap();
    for scheme in [Scheme::Round, Scheme::Search, Scheme::Affine] {
        let spec = QuantSpec::new(Width::Two, 16, scheme).unwrap();
        let weights: Vec<f32> = weights.iter().map(|weight| weight.clamp(-65_504.0, 65_504.0)).collect();
        let tensor = quantize_for(&weights, ROWS, COLUMNS, &spec, &factor).unwrap();
        let mut found = vec![0.0; ROWS * COLUMNS];
        tensor.dequantize_into(0..ROWS, &mut found).unwrap();
        assert!(found.iter().all(|element| element.is_finite()), "{scheme}");
        QuantTensor::from_members(&spec, ROWS, COLUMNS, &tensor.members()).unwrap();
    }
}

#[test]
fn inputs_that_do_not_fit_are_named() {
    let weights = normal(ROWS * COLUMNS, 1);
    let spec = QuantSpec::new(Width::Four, 32, Scheme::Search).unwrap();
    let mut moments = InputMoments::new(COLUMNS);
    assert_eq!(moments.factor().unwrap_err().field(), Some("inputs"));
    assert!(moments.is_zero());
    moments.add(&vec![f32::MAX; COLUMNS]);
    assert!(!moments.is_zero());
    assert_eq!(moments.factor().unwrap_err().field(), Some("inputs"));
    let mut moments = InputMoments::new(COLUMNS);
    let mut broken = vec![1.0; 2 * COLUMNS];
    broken[3] = f32::NAN;
    moments.add(&broken);
    assert_eq!(moments.rows(), 1);
    let factor = moments.factor().unwrap();
    let field = |result: cotensor_core::Result<QuantTensor>| result.unwrap_err().field().map(str::to_owned);
    let narrow = QuantSpec::new(Width::Four, 16, Scheme::Search).unwrap();
    assert_eq!(field(quantize_for(&weights, ROWS * 2, COLUMNS / 2, &narrow, &factor)).as_deref(), Some("inputs"));
    assert_eq!(field(quantize_for(&weights[1..], ROWS, COLUMNS, &spec, &factor)).as_deref(), Some("weights"));
    let two_level = QuantSpec::new(Width::Four, 0, Scheme::TwoLevel).unwrap();
    assert_eq!(field(quantize_for(&weights, ROWS, COLUMNS, &two_level, &factor)).as_deref(), Some("scheme"));
    let mut infinite = weights.clone();
    infinite[7] = f32::INFINITY;
    assert_eq!(field(quantize_for(&infinite, ROWS, COLUMNS, &spec, &factor)).as_deref(), Some("weights"));
}

#[test]
fn rotated_moments_are_those_of_rotated_inputs() {
    let mut rows = inputs(40, 9);
    let found = moments(&rows).rotated(16).unwrap();
    rotate(&mut rows, 16).unwrap();
    let wanted = moments(&rows);
    let mut weights = normal(8 * COLUMNS, 10);
    rotate(&mut weights, 16).unwrap();
    let tensor = quantize(&weights, 8, COLUMNS, &QuantSpec::new(Width::Three, 16, Scheme::Search).unwrap()).unwrap();
    let [found_error, wanted_error] =
        [&found, &wanted].map(|moments| moments.relative_error(&weights, &tensor).unwrap());
    assert!((found_error - wanted_error).abs() < 1e-4 * wanted_error, "{found_error} {wanted_error}");
    assert_eq!(found.rows(), 40);
    assert_eq!(found.rotated(COLUMNS * 2).unwrap_err().field(), Some("block"));
    assert_eq!(found.rotated(0).unwrap_err().field(), Some("block"));
}
