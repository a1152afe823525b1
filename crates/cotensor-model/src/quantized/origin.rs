//! Whether weights are trained, by the weights themselves: rows of random numbers have no direction in common, rows of a trained matrix have.

use serde::{Deserialize, Serialize};

/// The rows of a matrix that are compared.
const ROWS_MAX: usize = 64;
/// Fewer rows say nothing.
const ROWS_MIN: usize = 8;
/// How many standard deviations random rows differ at most from the mean of random rows, and trained ones at least.
const RANDOM_MAX: f64 = 4.0;
const TRAINED_MIN: f64 = 8.0;

/// Where weights come from. Errors of outputs of random weights say nothing about trained ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightsOrigin {
    /// Their rows are like those of random numbers.
    Seeded,
    /// They are trained.
    Checkpoint,
}

impl WeightsOrigin {
    /// `seeded` or `checkpoint`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Seeded => "seeded",
            Self::Checkpoint => "checkpoint",
        }
    }

    /// Of matrices with these [`likeness`]es: by that of the middle one. `None` without matrices, and in doubt.
    pub(crate) fn of(mut likenesses: Vec<f64>) -> Option<Self> {
        likenesses.sort_by(f64::total_cmp);
        match *likenesses.get(likenesses.len() / 2)? {
            found if found <= RANDOM_MAX => Some(Self::Seeded),
            found if found >= TRAINED_MIN => Some(Self::Checkpoint),
            _ => None,
        }
    }
}

/// By how many standard deviations the squared cosines of pairs of rows are larger than those of random rows in the mean. `None` for too
/// few rows, and for rows of zeros.
pub(crate) fn likeness(values: &[f32], columns: usize) -> Option<f64> {
    let rows: Vec<&[f32]> = values.chunks_exact(columns).collect();
    let step = rows.len().div_ceil(ROWS_MAX).max(1);
    let rows: Vec<Vec<f64>> = rows.into_iter().step_by(step).filter_map(direction).collect();
    if rows.len() < ROWS_MIN {
        return None;
    }
    let mut sum = 0.0;
    for (at, one) in rows.iter().enumerate() {
        for other in &rows[..at] {
            sum += dot(one, other).powi(2);
        }
    }
    // The squared cosine of independent directions is 1 / columns in the mean, and has a variance of 2 / columns² or less.
    let pairs = (rows.len() * (rows.len() - 1) / 2) as f64;
    Some((sum / pairs * columns as f64 - 1.0) * (pairs / 2.0).sqrt())
}

/// A row with length 1; `None` for a row of zeros.
pub(crate) fn direction(row: &[f32]) -> Option<Vec<f64>> {
    let length = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    (length > 0.0).then(|| row.iter().map(|value| f64::from(*value) / length).collect())
}

/// The product of two rows of equal length.
pub(crate) fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of a seeded sequence (SplitMix64), −0.5 to 0.5.
    fn random(count: usize) -> Vec<f32> {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let bits = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            ((bits ^ bits >> 27) >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn random_rows_are_seeded_and_rows_with_common_directions_trained() {
        for columns in [32, 384] {
            let values = random(200 * columns);
            let found = likeness(&values, columns).unwrap();
            assert!(found.abs() < 3.0, "{columns}: {found}");
            // A fifth of each row is along one direction.
            let direction = random(columns);
            let share = |at: usize| ((at / columns * 37) % 11) as f32 / 10.0 - 0.5;
            let common: Vec<f32> = (values.iter().enumerate())
                .map(|(at, value)| value + 1.5 * share(at) * direction[at % columns])
                .collect();
            let common = likeness(&common, columns).unwrap();
            assert!(common > TRAINED_MIN, "{columns}: {common}");
        }
        assert_eq!(likeness(&[0.0; 640], 32), None);
        assert_eq!(likeness(&random(32 * 7), 32), None);
    }

    #[test]
    fn the_middle_matrix_decides() {
        assert_eq!(WeightsOrigin::of(vec![]), None);
        assert_eq!(WeightsOrigin::of(vec![-1.0, 0.5, 90.0]), Some(WeightsOrigin::Seeded));
        assert_eq!(WeightsOrigin::of(vec![0.5, 40.0, 90.0]), Some(WeightsOrigin::Checkpoint));
        assert_eq!(WeightsOrigin::of(vec![5.0]), None);
    }
}
