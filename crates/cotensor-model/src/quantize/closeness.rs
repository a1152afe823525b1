//! How close the embeddings of a quantized model are to those of the full one.

use crate::quantized::{direction, dot};

/// The nearest samples that are compared.
const NEIGHBOURS: usize = 10;

/// Measured on some samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Closeness {
    /// The mean cosine of the two embeddings of a sample.
    pub(super) cosine: f64,
    /// How many of the ten nearest other samples stay among the ten nearest, in the mean. `None` for 20 samples or fewer, of which most
    /// are near.
    pub(super) neighbours: Option<f64>,
}

impl Closeness {
    /// That of the embeddings of equal samples.
    pub(super) fn of(full: &[Vec<f32>], others: &[Vec<f32>]) -> Self {
        let (full, others) = (normalized(full), normalized(others));
        let cosines = full.iter().zip(&others).map(|(full, other)| dot(full, other));
        let cosine = cosines.sum::<f64>() / full.len().max(1) as f64;
        let neighbours = (full.len() > 2 * NEIGHBOURS).then(|| {
            let stay = |at| {
                let (known, found) = (nearest(&full, at), nearest(&others, at));
                known.iter().filter(|index| found.contains(index)).count()
            };
            (0..full.len()).map(stay).sum::<usize>() as f64 / full.len() as f64
        });
        Self { cosine, neighbours }
    }
}

/// The rows with length 1. A row of zeros stays.
fn normalized(rows: &[Vec<f32>]) -> Vec<Vec<f64>> {
    rows.iter().map(|row| direction(row).unwrap_or_else(|| vec![0.0; row.len()])).collect()
}

/// The rows that are nearest to row `at`.
fn nearest(rows: &[Vec<f64>], at: usize) -> Vec<usize> {
    let others = (0..rows.len()).filter(|other| *other != at);
    let mut found: Vec<(f64, usize)> = others.map(|other| (dot(&rows[at], &rows[other]), other)).collect();
    found.sort_by(|one, other| other.0.total_cmp(&one.0));
    found.into_iter().take(NEIGHBOURS).map(|(_, other)| other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Points on a circle: the nearest ones of each are those beside it.
    fn circle(count: usize, turned: f32) -> Vec<Vec<f32>> {
        let angle = |at: usize| at as f32 / count as f32 * std::f32::consts::TAU + turned;
        (0..count).map(|at| vec![3.0 * angle(at).cos(), 3.0 * angle(at).sin()]).collect()
    }

    #[test]
    fn neighbours_stay_when_all_samples_turn() {
        let full = circle(41, 0.0);
        assert_eq!(Closeness::of(&full, &full).neighbours, Some(10.0));
        let turned = Closeness::of(&full, &circle(41, 0.5));
        assert!((turned.cosine - f64::cos(0.5)).abs() < 1e-6 && turned.neighbours == Some(10.0), "{turned:?}");
        // In another order, a sample keeps few of its neighbours.
        let mixed: Vec<Vec<f32>> = (0..41).map(|at| full[at * 11 % 41].clone()).collect();
        let mixed = Closeness::of(&full, &mixed);
        assert!(mixed.cosine < 0.2 && mixed.neighbours.is_some_and(|stay| stay < 4.0), "{mixed:?}");
        assert_eq!(Closeness::of(&full[..20], &full[..20]).neighbours, None);
        assert_eq!(Closeness::of(&[vec![0.0; 2]], &[vec![0.0; 2]]).cosine, 0.0);
    }
}
