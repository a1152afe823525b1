//! Fits a map on samples: chooses the strength of the regularization and measures the error on samples that the fit does
//! not use.

use super::map::LinearMap;
use super::ridge::Moments;
use cotensor_core::{Error, Result};
use nalgebra::DVector;
use serde::{Deserialize, Serialize};

/// The fewest samples of a fit.
pub const SAMPLES_MIN: usize = 20;

/// The most elements of held-out rows, of source and target together. Their cosine is computed row by row.
const HELD_OUT_ELEMENTS_MAX: usize = 32 << 20;

/// The strengths that are tried, relative to the mean variance of an input.
const STRENGTHS: [f64; 9] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0];

/// The quality of a fit, measured on held-out samples. The baseline always predicts the mean of the fitted rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    /// The chosen strength of the regularization, relative to the mean variance of an input.
    pub strength: f64,
    /// Rows of the samples that were fitted.
    pub fitted_rows: usize,
    /// Rows of the held-out samples.
    pub held_out_rows: usize,
    /// The coefficient of determination: 1 is a perfect map, 0 is as good as the mean of the held-out rows.
    pub r2: f64,
    /// The mean cosine of the mapped row and the target's row.
    pub cosine: f64,
    /// The coefficient of determination of the baseline.
    pub baseline_r2: f64,
    /// The mean cosine of the baseline and the target's row.
    pub baseline_cosine: f64,
}

/// The use of a sample.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Fits the map.
    Fit,
    /// Chooses the strength.
    Choose,
    /// Measures the error.
    HeldOut,
}

/// Collects aligned rows of samples and fits a [`LinearMap`]. One sample of ten chooses the strength, one of ten is held
/// out.
pub struct Fitter {
    samples: usize,
    fit: Moments,
    choose: Moments,
    held_out: Moments,
    /// The first held-out rows of source and target.
    held_out_rows: (Vec<f32>, Vec<f32>),
    widths: (usize, usize),
}

impl Fitter {
    /// A fitter of maps from rows of `inputs` elements to rows of `outputs` elements.
    pub fn new(inputs: usize, outputs: usize) -> Self {
        let moments = || Moments::new(inputs, outputs);
        Self {
            samples: 0,
            fit: moments(),
            choose: moments(),
            held_out: moments(),
            held_out_rows: (Vec::new(), Vec::new()),
            widths: (inputs, outputs),
        }
    }

    /// Adds the rows of the next sample: of the source, `[rows, inputs]`, and of the target, `[rows, outputs]`. The
    /// samples are different from each other and in an order that has nothing to do with their content.
    ///
    /// # Errors
    /// `Invalid` for slices of other sizes, for no rows and for a number that is not finite.
    pub fn add(&mut self, source: &[f32], target: &[f32]) -> Result<()> {
        let (inputs, outputs) = self.widths;
        let rows = source.len() / inputs.max(1);
        if rows == 0 || source.len() != rows * inputs || target.len() != rows * outputs {
            let message = format!(
                "{} and {} elements are not rows of {inputs} and {outputs} elements",
                source.len(),
                target.len()
            );
            return Err(Error::invalid(message));
        }
        if source.iter().chain(target).any(|value| !value.is_finite()) {
            return Err(Error::invalid("an encoder gives a number that is not finite"));
        }
        match part(self.samples) {
            Part::Fit => self.fit.add(source, target),
            Part::Choose => self.choose.add(source, target),
            Part::HeldOut => {
                self.held_out.add(source, target);
                let (x, y) = &mut self.held_out_rows;
                if x.len() + y.len() + source.len() + target.len() <= HELD_OUT_ELEMENTS_MAX || x.is_empty() {
                    x.extend_from_slice(source);
                    y.extend_from_slice(target);
                }
            }
        }
        self.samples += 1;
        Ok(())
    }

    /// Fits the map with the strength that has the smallest error on the samples that choose it, then once more with
    /// those samples.
    ///
    /// # Errors
    /// `Invalid` with fewer than [`SAMPLES_MIN`] samples.
    pub fn finish(self) -> Result<(LinearMap, Quality)> {
        if self.samples < SAMPLES_MIN {
            let message = format!("{} different samples; at least {SAMPLES_MIN} are required", self.samples);
            return Err(Error::invalid(message).in_field("data"));
        }
        let mut best: Option<(f64, f64)> = None;
        let mut refused = None;
        for strength in STRENGTHS {
            match self.fit.ridge(strength) {
                Ok(map) => {
                    let error = self.choose.squared_error(&map);
                    if best.is_none_or(|(_, lowest)| error < lowest) {
                        best = Some((strength, error));
                    }
                }
                Err(error) => refused = Some(error),
            }
        }
        let Some((strength, _)) = best else {
            return Err(refused.unwrap_or_else(|| Error::invalid("no strength to choose from")));
        };
        let known = self.fit.plus(&self.choose);
        let map = known.ridge(strength)?;
        let mean = known.mean();
        let variation = self.held_out.squared_distance(&self.held_out.mean());
        let r2 = |error: f64| if variation > 0.0 { 1.0 - error / variation } else { f64::from(error == 0.0) };
        let (x, y) = &self.held_out_rows;
        let constant: Vec<f32> = mean.iter().map(|&value| value as f32).collect();
        let quality = Quality {
            strength,
            fitted_rows: known.rows(),
            held_out_rows: self.held_out.rows(),
            r2: r2(self.held_out.squared_error(&map)),
            cosine: mean_cosine(map.apply(x).chunks_exact(self.widths.1), y),
            baseline_r2: r2(self.held_out.squared_distance(&mean)),
            baseline_cosine: mean_cosine(std::iter::repeat(&constant[..]), y),
        };
        Ok((map, quality))
    }
}

fn part(sample: usize) -> Part {
    match sample % 10 {
        4 => Part::Choose,
        9 => Part::HeldOut,
        _ => Part::Fit,
    }
}

/// The mean cosine of each row of `rows` and the row of `target` in the same place.
fn mean_cosine<'a>(rows: impl Iterator<Item = &'a [f32]>, target: &[f32]) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    let mut at = 0;
    for row in rows {
        let Some(other) = target.get(at..at + row.len()) else { break };
        at += row.len();
        let row = DVector::from_iterator(row.len(), row.iter().map(|&value| f64::from(value)));
        let other = DVector::from_iterator(other.len(), other.iter().map(|&value| f64::from(value)));
        let norms = row.norm() * other.norm();
        sum += if norms > 0.0 { row.dot(&other) / norms } else { 0.0 };
        count += 1;
    }
    sum / f64::from(count.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers in -1..1 that look random.
    fn numbers(seed: u32) -> impl Iterator<Item = f32> {
        let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
    }

    fn fit(samples: usize, target: impl Fn(&[f32], f32) -> [f32; 2]) -> Result<(LinearMap, Quality)> {
        let mut fitter = Fitter::new(3, 2);
        let mut random = numbers(7);
        for _ in 0..samples {
            let x: Vec<f32> = random.by_ref().take(4 * 3).collect();
            let y: Vec<f32> = x.chunks_exact(3).flat_map(|x| target(x, random.next().unwrap())).collect();
            fitter.add(&x, &y)?;
        }
        fitter.finish()
    }

    #[test]
    fn linear_relation_has_no_held_out_error_and_noise_has_no_r2() {
        let (_, quality) = fit(40, |x, _| [x[0] + 2.0 * x[1], 3.0 - x[2]]).unwrap();
        assert!(quality.r2 > 0.999 && quality.cosine > 0.999, "{quality:?}");
        assert!(quality.baseline_r2 <= 0.0 && quality.baseline_cosine < 0.99, "{quality:?}");
        assert_eq!((quality.fitted_rows, quality.held_out_rows), (36 * 4, 4 * 4));
        let (_, noise) = fit(200, |_, noise| [noise, -noise]).unwrap();
        assert!(noise.r2 < 0.1, "{noise:?}");
    }

    #[test]
    fn noise_on_few_rows_is_fitted_with_more_strength() {
        let strength = |noise: f32| {
            let mut fitter = Fitter::new(24, 1);
            let mut random = numbers(3);
            for _ in 0..60 {
                let x: Vec<f32> = random.by_ref().take(24).collect();
                let y = x[0] + noise * random.next().unwrap();
                fitter.add(&x, &[y]).unwrap();
            }
            fitter.finish().unwrap().1.strength
        };
        assert!(strength(4.0) > 100.0 * strength(0.0), "{} and {}", strength(4.0), strength(0.0));
    }

    #[test]
    fn few_samples_and_wrong_sizes_are_refused() {
        assert!(fit(SAMPLES_MIN - 1, |x, _| [x[0], x[1]]).is_err());
        let mut fitter = Fitter::new(3, 2);
        assert!(fitter.add(&[1.0; 4], &[1.0; 2]).is_err());
        assert!(fitter.add(&[1.0; 3], &[1.0; 4]).is_err());
        assert!(fitter.add(&[], &[]).is_err());
        assert!(fitter.add(&[1.0, f32::NAN, 0.0], &[1.0; 2]).is_err());
    }
}
