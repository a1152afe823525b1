//! The Hadamard rotation: it spreads outliers over a block, and is its own inverse.

use cotensor_core::{Error, Result};

/// Rotates each block of `block` values, a power of two: `x ↦ H·x / √block` with Hadamard's matrix in Sylvester's order. A second rotation
/// gives the values again, up to rounding.
///
/// # Errors
/// `Invalid` for another block, and for a number of values that is not a multiple of it.
pub fn rotate(values: &mut [f32], block: usize) -> Result<()> {
    if !block.is_power_of_two() || block > 1 << 16 {
        let message = format!("blocks of {block}; powers of two up to 65536 are possible");
        return Err(Error::invalid(message).in_field("block"));
    }
    if !values.len().is_multiple_of(block) {
        let message = format!("{} values for blocks of {block}", values.len());
        return Err(Error::invalid(message).in_field("values"));
    }
    let norm = 1.0 / (block as f32).sqrt();
    for part in values.chunks_exact_mut(block) {
        let mut half = 1;
        while half < block {
            for pair in part.chunks_exact_mut(2 * half) {
                let (left, right) = pair.split_at_mut(half);
                for (left, right) in left.iter_mut().zip(right) {
                    (*left, *right) = (*left + *right, *left - *right);
                }
            }
            half *= 2;
        }
        for value in part {
            *value *= norm;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotation_is_its_own_inverse_and_keeps_lengths() {
        let values: Vec<f32> = (0..256).map(|at| ((at * 29) % 17) as f32 - 8.0).collect();
        let mut rotated = values.clone();
        rotate(&mut rotated, 128).unwrap();
        let square = |values: &[f32]| values.iter().map(|value| value * value).sum::<f32>();
        assert!((square(&rotated) / square(&values) - 1.0).abs() < 1e-5);
        rotate(&mut rotated, 128).unwrap();
        for (one, other) in rotated.iter().zip(&values) {
            assert!((one - other).abs() < 1e-4);
        }
        let mut one = [0.0; 4];
        one[1] = 1.0;
        rotate(&mut one, 4).unwrap();
        assert_eq!(one, [0.5, -0.5, 0.5, -0.5]);
        assert_eq!(rotate(&mut [0.0; 6], 4).unwrap_err().field(), Some("values"));
        assert_eq!(rotate(&mut [0.0; 6], 3).unwrap_err().field(), Some("block"));
    }
}
