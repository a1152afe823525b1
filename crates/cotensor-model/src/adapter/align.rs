//! Alignment of the rows of two encoders that read the same input: tokens by character offsets, patches of an image by
//! their grid, frames of audio by time.

use super::patches::{Grid, ROWS_MAX};
use cotensor_core::{Error, Result};
use std::ops::Range;

/// For each row of the target, a weighted mean of rows of the source.
#[derive(Clone, Debug, PartialEq)]
pub struct Alignment {
    /// The rows of the source with their weights, which sum to one. Never empty.
    rows: Vec<Vec<(usize, f32)>>,
}

impl Alignment {
    /// The number of rows of the target.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The rows of the source, `[source rows, width]`, aligned to `[target rows, width]`.
    ///
    /// # Panics
    /// When `source` has fewer rows than the alignment names.
    pub fn apply(&self, source: &[f32], width: usize) -> Vec<f32> {
        let mut aligned = vec![0.0; self.rows.len() * width];
        for (row, target) in self.rows.iter().zip(aligned.chunks_exact_mut(width)) {
            for &(index, weight) in row {
                for (target, value) in target.iter_mut().zip(&source[index * width..][..width]) {
                    *target += weight * value;
                }
            }
        }
        aligned
    }

    /// Aligns tokens by the characters that they cover. A token of the target becomes the mean of the source's tokens,
    /// weighted by the number of common characters. A token without characters, which a tokenizer adds, becomes the
    /// source's first or last token by its position; a token without common characters the nearest token.
    ///
    /// # Errors
    /// `Invalid` without tokens.
    pub fn of_tokens(source: &[Range<usize>], target: &[Range<usize>]) -> Result<Self> {
        if source.is_empty() || target.is_empty() {
            return Err(Error::invalid("no tokens to align"));
        }
        // Added tokens before the first token of the text are at the beginning.
        let text_begin = target.iter().position(|span| !span.is_empty()).unwrap_or(target.len() / 2);
        let row = |(position, span): (usize, &Range<usize>)| {
            if span.is_empty() {
                return vec![(if position < text_begin { 0 } else { source.len() - 1 }, 1.0)];
            }
            let common = |known: &Range<usize>| known.end.min(span.end).saturating_sub(known.start.max(span.start));
            let total: usize = source.iter().map(common).sum();
            if total > 0 {
                let weighted = source.iter().map(common).enumerate().filter(|(_, common)| *common > 0);
                return weighted.map(|(index, common)| (index, common as f32 / total as f32)).collect();
            }
            let distance = |known: &Range<usize>| {
                if known.is_empty() {
                    usize::MAX
                } else {
                    span.start.saturating_sub(known.end) + known.start.saturating_sub(span.end)
                }
            };
            let nearest = (0..source.len()).min_by_key(|&index| distance(&source[index])).unwrap_or(0);
            vec![(nearest, 1.0)]
        };
        Ok(Self { rows: target.iter().enumerate().map(row).collect() })
    }

    /// Aligns patches of an image by their position: a patch is the mean of smaller patches in its place, or is interpolated
    /// between the centers of larger ones. A class token becomes the source's
    /// class token in the same position, or the mean of all patches if the source has none.
    ///
    /// A pooled embedding is a grid with one class token and no patch.
    pub fn of_grids(source: &Grid, target: &Grid) -> Self {
        let mean = || (0..source.rows()).map(|index| (index, 1.0 / source.rows() as f32)).collect::<Vec<_>>();
        let class = |index: usize| match source.class_tokens {
            0 => mean(),
            tokens => vec![(index.min(tokens - 1), 1.0)],
        };
        let mut rows: Vec<_> = (0..target.class_tokens).map(class).collect();
        for y in 0..target.height {
            for x in 0..target.width {
                if source.height * source.width == 0 {
                    rows.push(class(0));
                    continue;
                }
                let mut row = Vec::with_capacity(4);
                for (source_y, weight_y) in between(y, target.height, source.height) {
                    for (source_x, weight_x) in between(x, target.width, source.width) {
                        let index = source.class_tokens + source_y * source.width + source_x;
                        row.push((index, weight_y * weight_x));
                    }
                }
                rows.push(row);
            }
        }
        Self { rows }
    }

    /// Aligns `target` frames to `source` frames of the same audio: a frame is the mean of shorter frames in its time, or
    /// is interpolated between the centers of longer ones.
    ///
    /// # Errors
    /// `Invalid` without frames, and for more than a million.
    pub fn of_frames(source: usize, target: usize) -> Result<Self> {
        if source == 0 || target == 0 || target > ROWS_MAX {
            return Err(Error::invalid(format!("{source} frames cannot be aligned to {target}")));
        }
        Ok(Self { rows: (0..target).map(|frame| between(frame, target, source)).collect() })
    }
}

/// The parts of a line in `source` equal parts that part `index` of `target` equal parts corresponds to, with their
/// weights: the parts that it covers, by length, if they are smaller; else the two with the nearest centers.
fn between(index: usize, target: usize, source: usize) -> Vec<(usize, f32)> {
    let scale = source as f64 / target as f64;
    let (first, weights) = if scale >= 1.0 {
        let (start, end) = (index as f64 * scale, (index + 1) as f64 * scale);
        let first = start.floor() as usize;
        let covered = |part: usize| (end.min((part + 1) as f64) - start.max(part as f64)) / scale;
        (first, (first..source.min(end.ceil() as usize)).map(covered).collect())
    } else {
        let center = ((index as f64 + 0.5) * scale - 0.5).clamp(0.0, (source - 1) as f64);
        (center.floor() as usize, vec![1.0 - center.fract(), center.fract()])
    };
    let weighted = weights.into_iter().enumerate().map(|(part, weight)| (first + part, weight as f32));
    weighted.filter(|(_, weight)| *weight > 1e-6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_take_the_mean_of_tokens_that_cover_the_same_characters() {
        // "unbelievable cat": [CLS] un believ able cat [SEP] beside <s> unbelieve able cat </s>.
        let source = [0..0, 0..2, 2..8, 8..12, 13..16, 0..0];
        let target = [0..0, 0..9, 9..12, 13..16, 0..0];
        let alignment = Alignment::of_tokens(&source, &target).unwrap();
        let expected: Vec<Vec<(usize, f32)>> = vec![
            vec![(0, 1.0)],
            vec![(1, 2.0 / 9.0), (2, 6.0 / 9.0), (3, 1.0 / 9.0)],
            vec![(3, 1.0)],
            vec![(4, 1.0)],
            vec![(5, 1.0)],
        ];
        assert_eq!(alignment.rows, expected);
        let aligned = alignment.apply(&[9.0, 1.0, 2.0, 10.0, 4.0, 8.0], 1);
        let expected = [9.0, 24.0 / 9.0, 10.0, 4.0, 8.0];
        assert!(aligned.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{aligned:?}");
    }

    #[test]
    fn token_without_common_characters_takes_the_nearest_token() {
        let alignment = Alignment::of_tokens(&[0..0, 0..2, 10..12], &[3..4, 8..9]).unwrap();
        assert_eq!(alignment.rows, [vec![(1, 1.0)], vec![(2, 1.0)]]);
        assert!(Alignment::of_tokens(&[], &[0..1, 1..2]).is_err());
    }

    #[test]
    fn patches_and_frames_are_interpolated() {
        let (source, target) =
            (Grid { class_tokens: 1, height: 2, width: 2 }, Grid { class_tokens: 2, height: 1, width: 2 });
        let alignment = Alignment::of_grids(&source, &target);
        assert_eq!(alignment.apply(&[7.0, 1.0, 2.0, 3.0, 4.0], 1), [7.0, 7.0, 2.0, 3.0]);
        let pooled = Alignment::of_grids(
            &Grid { class_tokens: 0, height: 2, width: 2 },
            &Grid { class_tokens: 1, height: 0, width: 0 },
        );
        assert_eq!(pooled.apply(&[1.0, 2.0, 3.0, 6.0], 1), [3.0]);
        let frames = Alignment::of_frames(2, 4).unwrap();
        assert_eq!(frames.apply(&[0.0, 4.0], 1), [0.0, 1.0, 3.0, 4.0]);
        assert_eq!(Alignment::of_frames(4, 2).unwrap().apply(&[0.0, 2.0, 4.0, 8.0], 1), [1.0, 6.0]);
    }

    #[test]
    fn weights_of_a_row_sum_to_one() {
        for alignment in [
            Alignment::of_frames(7, 50).unwrap(),
            Alignment::of_grids(
                &Grid { class_tokens: 1, height: 7, width: 7 },
                &Grid { class_tokens: 1, height: 14, width: 14 },
            ),
        ] {
            for row in &alignment.rows {
                let sum: f32 = row.iter().map(|(_, weight)| weight).sum();
                assert!((sum - 1.0).abs() < 1e-6);
            }
        }
    }
}
