//! Relative errors of seeded weights. The bounds are those of the project; the comments have what was measured.

use crate::samples::{normal, student};
use cotensor_quant::{QuantSpec, Scheme, Width, quantize, relative_error, rotate};

const ROWS: usize = 128;
const COLUMNS: usize = 2048;

fn error(weights: &[f32], width: Width, group: usize, scheme: Scheme) -> f64 {
    let tensor = quantize(weights, ROWS, COLUMNS, &QuantSpec::new(width, group, scheme).unwrap()).unwrap();
    relative_error(weights, &tensor).unwrap()
}

#[test]
fn errors_are_below_their_bounds() {
    let normal = normal(ROWS * COLUMNS, 1);
    let mut rotated = student(ROWS * COLUMNS, 2);
    rotate(&mut rotated, 128).unwrap();
    let bounds = [
        (Scheme::Search, 64, [(Width::Two, 0.360), (Width::Three, 0.180), (Width::Four, 0.091)]),
        (Scheme::TwoLevel, 0, [(Width::Two, 0.275), (Width::Three, 0.147), (Width::Four, 0.075)]),
    ];
    let mut missed = Vec::new();
    for (scheme, group, widths) in bounds {
        for (width, bound) in widths {
            for (name, weights) in [("normal", &normal), ("rotated student", &rotated)] {
                let found = error(weights, width, group, scheme);
                println!("{scheme} {width:?} {name}: {found:.4} (bound {bound})");
                if found > bound {
                    missed.push(format!("{scheme} {width:?} {name}: {found:.4} is above {bound}"));
                }
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn better_schemes_have_smaller_errors() {
    for weights in [normal(ROWS * COLUMNS, 3), student(ROWS * COLUMNS, 4)] {
        for width in [Width::Two, Width::Three, Width::Four] {
            let [round, search, affine, two_level] = Scheme::ALL
                .map(|scheme| error(&weights, width, if scheme == Scheme::TwoLevel { 0 } else { 64 }, scheme));
            println!("{width:?}: {round:.4} {search:.4} {affine:.4} {two_level:.4}");
            assert!(round > search && search > affine && affine > two_level);
        }
        assert!(error(&weights, Width::Eight, 64, Scheme::Search) < 0.01);
    }
}

/// Scales of two levels save bits of a file, and give no smaller errors than flat scales of the same groups.
#[test]
fn two_levels_have_the_errors_of_flat_scales_in_their_groups() {
    let mut rotated = student(ROWS * COLUMNS, 2);
    rotate(&mut rotated, 128).unwrap();
    for weights in [normal(ROWS * COLUMNS, 1), rotated] {
        let flat =
            [(Width::Two, 16, Scheme::Affine), (Width::Three, 16, Scheme::Search), (Width::Four, 32, Scheme::Affine)];
        for (width, group, scheme) in flat {
            let [two_level, flat] =
                [(0, Scheme::TwoLevel), (group, scheme)].map(|(group, scheme)| error(&weights, width, group, scheme));
            println!("{width:?}: two_level {two_level:.4}, {scheme} {flat:.4}");
            assert!((two_level / flat - 1.0).abs() < 0.02);
        }
    }
}
