//! A row whose codes and scales lessen the error of a product step by step: the scale and the offset of each group, then each code, while
//! the others stay as they are (coordinate descent; for codes, as in QuantEase, Behdin et al., 2023, arXiv:2309.01885).

use crate::encode::{Line, inverse, nearest_within};
use crate::halves::stored;
use crate::inputs::InputFactor;
use crate::lanes::sums;
use crate::spec::{Scheme, Width};
use std::ops::Range;

/// How often all groups are visited at most. Later visits change little.
const ROUNDS: usize = 3;

/// A row while it is fitted. An element is `level · scale + offset` of its group.
pub(super) struct Row {
    width: Width,
    scheme: Scheme,
    pub(super) group: usize,
    pub(super) lines: Vec<Line>,
    /// Codes less the middle one.
    pub(super) levels: Vec<f32>,
    /// Weights less elements.
    pub(super) errors: Vec<f32>,
    /// The moments times the errors: half of the slope of the squared error of the product, with the other sign.
    slope: Vec<f32>,
    /// How the slope changes with a scale or an offset.
    change: Vec<f32>,
}

impl Row {
    pub(super) fn new(width: Width, scheme: Scheme, group: usize, columns: usize) -> Self {
        let zeros = || vec![0.0; columns];
        let lines = vec![Line::new(width, 0.0, 0.0); columns / group];
        let (levels, errors, slope, change) = (zeros(), zeros(), zeros(), zeros());
        Self { width, scheme, group, lines, levels, errors, slope, change }
    }

    /// Lessens the error from the present codes on. `Round` keeps its scales.
    #[inline(always)]
    pub(super) fn refine(&mut self, factor: &InputFactor) {
        self.slope.fill(0.0);
        for (at, error) in self.errors.iter().enumerate() {
            add(&mut self.slope, *error, factor.moments(at));
        }
        for _ in 0..ROUNDS {
            let mut is_changed = false;
            for number in 0..self.lines.len() {
                let range = number * self.group..(number + 1) * self.group;
                if self.scheme != Scheme::Round {
                    self.fit_scale(number, range.clone(), factor);
                }
                if self.scheme == Scheme::Affine {
                    self.fit_offset(number, range.clone(), factor);
                }
                for at in range {
                    is_changed |= self.fit_code(number, at, factor);
                }
            }
            if !is_changed {
                break;
            }
        }
    }

    #[inline(always)]
    fn fit_scale(&mut self, number: usize, range: Range<usize>, factor: &InputFactor) {
        self.change.fill(0.0);
        for at in range.clone() {
            add(&mut self.change, self.levels[at], factor.moments(at));
        }
        let (levels, slope, change) =
            (&self.levels[range.clone()], &self.slope[range.clone()], &self.change[range.clone()]);
        let [product, square] = sums(
            levels.len(),
            #[inline(always)]
            |at| [levels[at] * slope[at], levels[at] * change[at]],
        );
        let Line { scale, offset, .. } = self.lines[number];
        if let Some(better) = better(scale, product, square) {
            self.lines[number] = Line::new(self.width, better, offset);
            add(&mut self.errors[range.clone()], scale - better, &self.levels[range]);
            add(&mut self.slope, scale - better, &self.change);
        }
    }

    #[inline(always)]
    fn fit_offset(&mut self, number: usize, range: Range<usize>, factor: &InputFactor) {
        self.change.fill(0.0);
        for at in range.clone() {
            add(&mut self.change, 1.0, factor.moments(at));
        }
        let (slope, change) = (&self.slope[range.clone()], &self.change[range.clone()]);
        let [product, square] = sums(
            slope.len(),
            #[inline(always)]
            |at| [slope[at], change[at]],
        );
        let Line { scale, offset, .. } = self.lines[number];
        if let Some(better) = better(offset, product, square) {
            self.lines[number] = Line::new(self.width, scale, better);
            for error in &mut self.errors[range] {
                *error += offset - better;
            }
            add(&mut self.slope, offset - better, &self.change);
        }
    }

    /// The best code of an element. Whether it is another one.
    #[inline(always)]
    fn fit_code(&mut self, number: usize, at: usize, factor: &InputFactor) -> bool {
        let (scale, moments) = (self.lines[number].scale, factor.moments(at));
        let (max, middle) = (f32::from(self.width.code_max()), f32::from(self.width.middle()));
        let level = self.levels[at];
        let wanted = level + self.slope[at] / moments[at] * inverse(scale);
        let better = nearest_within(wanted + middle, max) - middle;
        if better == level {
            return false;
        }
        let step = (level - better) * scale;
        self.levels[at] = better;
        self.errors[at] += step;
        add(&mut self.slope, step, moments);
        true
    }
}

/// The best number in the place of `number`, if float16 has one that is better: the squared error falls by `2 · step · product − step² · square`.
#[inline(always)]
fn better(number: f32, product: f32, square: f32) -> Option<f32> {
    let found = stored(number + product / square);
    let step = found - number;
    (found.is_finite() && step * (2.0 * product - step * square) > 0.0).then_some(found)
}

/// Adds `factor · row`.
#[inline(always)]
fn add(sum: &mut [f32], factor: f32, row: &[f32]) {
    for (sum, element) in sum.iter_mut().zip(row) {
        *sum += factor * element;
    }
}
