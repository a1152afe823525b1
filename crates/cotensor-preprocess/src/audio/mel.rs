//! Mel spectrograms: powers of the Fourier transforms of overlapping windows, summed by triangular filters.

use cotensor_core::{Error, Result};
use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};
use std::sync::Arc;

/// The smallest power whose logarithm is taken.
pub(super) const POWER_FLOOR: f64 = 1e-10;
/// The most samples that all transforms of one input may read in total: fifty times the number of Whisper.
const TRANSFORMED_MAX: usize = 1 << 26;
/// The most features of an input.
const FEATURES_MAX: usize = 1 << 24;

/// A scale of perceived pitch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum MelScale {
    /// Slaney's: linear to 1 kHz, logarithmic above. Each filter has the area 1.
    Slaney,
    /// That of the Hidden Markov Model Toolkit: logarithmic. Each filter has the height 1.
    Htk,
}

impl MelScale {
    fn of(self, hz: f64) -> f64 {
        match self {
            Self::Slaney if hz < 1000.0 => hz * 3.0 / 200.0,
            Self::Slaney => 15.0 + (hz / 1000.0).ln() * 27.0 / 6.4f64.ln(),
            Self::Htk => 2595.0 * (1.0 + hz / 700.0).log10(),
        }
    }

    fn hz(self, mel: f64) -> f64 {
        match self {
            Self::Slaney if mel < 15.0 => mel * 200.0 / 3.0,
            Self::Slaney => 1000.0 * ((mel - 15.0) * 6.4f64.ln() / 27.0).exp(),
            Self::Htk => 700.0 * (10f64.powf(mel / 2595.0) - 1.0),
        }
    }
}

/// The parameters of a mel spectrogram.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MelSpectrogram {
    /// The number of filters.
    pub(super) bins: usize,
    pub(super) sample_rate_hz: u32,
    /// Samples from one window to the next.
    pub(super) hop: usize,
    /// Samples of a window.
    pub(super) window: usize,
    pub(super) scale: MelScale,
    /// The lowest and the highest frequency of the filters, in Hz.
    pub(super) frequencies_hz: (f64, f64),
}

impl MelSpectrogram {
    /// Refuses a spectrogram of `samples` samples that is too large or too much work.
    ///
    /// # Errors
    /// `Invalid`, in `length_field` or `window_field`.
    pub(super) fn check(&self, samples: usize, length_field: &str, window_field: &str) -> Result<()> {
        let Self { bins, hop, window, .. } = self;
        let frames = samples / hop;
        // `usize` has 32 bits in a browser.
        if bins.checked_mul(frames).is_none_or(|features| features > FEATURES_MAX) {
            let message = format!("{samples} samples in steps of {hop} by {bins} bins are too many");
            return Err(Error::invalid(message).in_field(length_field));
        }
        if window.checked_mul(frames).is_none_or(|transformed| transformed > TRANSFORMED_MAX) {
            let message = format!("{window} samples every {hop} of {samples} are too much work");
            return Err(Error::invalid(message).in_field(window_field));
        }
        Ok(())
    }

    /// The powers of `frames` windows, at least [`POWER_FLOOR`]: row-major `[bins, frames]`. Windows are centred on
    /// multiples of the hop; the samples are reflected by half a window at both ends.
    ///
    /// # Errors
    /// As [`MelTransform::powers`].
    pub(super) fn powers(&self, samples: &[f32], frames: usize) -> Result<Vec<f64>> {
        let mut transform = self.transform();
        let mut features = vec![0f64; self.bins * frames];
        let mut powers = vec![0f64; self.bins];
        for at in 0..frames {
            let sample = |offset| reflected(at * self.hop + offset, self.window / 2, samples.len());
            transform.powers(|offset| samples.get(sample(offset)).copied().unwrap_or(0.0), &mut powers)?;
            powers.iter().enumerate().for_each(|(mel, power)| features[mel * frames + at] = *power);
        }
        Ok(features)
    }

    /// The transform of single windows.
    pub(super) fn transform(&self) -> MelTransform {
        let fft = RealFftPlanner::<f64>::new().plan_fft_forward(self.window);
        let hann = |i: usize| 0.5 - 0.5 * (std::f64::consts::TAU * i as f64 / self.window as f64).cos();
        let spectrum = fft.make_output_vec();
        MelTransform {
            filters: self.filters(),
            hann: (0..self.window).map(hann).collect(),
            frame: fft.make_input_vec(),
            powers: vec![0f64; spectrum.len()],
            spectrum,
            scratch: fft.make_scratch_vec(),
            fft,
        }
    }

    /// Triangular filters without their zeros.
    fn filters(&self) -> Vec<Filter> {
        let bins = self.window / 2 + 1;
        let nyquist = f64::from(self.sample_rate_hz / 2);
        let (low, high) = (self.scale.of(self.frequencies_hz.0), self.scale.of(self.frequencies_hz.1));
        let edge = |i: usize| self.scale.hz(low + (high - low) * i as f64 / (self.bins + 1) as f64);
        let edges: Vec<f64> = (0..self.bins + 2).map(edge).collect();
        let frequency = |bin: usize| nyquist * bin as f64 / (bins - 1) as f64;
        let filter = |edge: &[f64]| {
            let height = if self.scale == MelScale::Slaney { 2.0 / (edge[2] - edge[0]) } else { 1.0 };
            let weight = |bin: usize| {
                let rising = (frequency(bin) - edge[0]) / (edge[1] - edge[0]);
                let falling = (edge[2] - frequency(bin)) / (edge[2] - edge[1]);
                rising.min(falling).max(0.0) * height
            };
            let start = (0..bins).find(|&bin| weight(bin) > 0.0).unwrap_or(0);
            let end = (start..bins).rfind(|&bin| weight(bin) > 0.0).map_or(start, |bin| bin + 1);
            Filter { start, weights: (start..end).map(weight).collect() }
        };
        edges.windows(3).map(filter).collect()
    }
}

/// Transforms windows one by one; has the memory for one.
pub(super) struct MelTransform {
    fft: Arc<dyn RealToComplex<f64>>,
    filters: Vec<Filter>,
    hann: Vec<f64>,
    frame: Vec<f64>,
    spectrum: Vec<Complex<f64>>,
    scratch: Vec<Complex<f64>>,
    /// Of each frequency.
    powers: Vec<f64>,
}

impl MelTransform {
    /// The powers of a window, at least [`POWER_FLOOR`], one for each filter. `sample` gives the samples of the window by
    /// their offset.
    ///
    /// # Errors
    /// `Invalid` when the Fourier transform refuses the window.
    pub(super) fn powers(&mut self, sample: impl Fn(usize) -> f32, powers: &mut [f64]) -> Result<()> {
        for (offset, (value, weight)) in self.frame.iter_mut().zip(&self.hann).enumerate() {
            *value = f64::from(sample(offset)) * weight;
        }
        self.fft
            .process_with_scratch(&mut self.frame, &mut self.spectrum, &mut self.scratch)
            .map_err(|error| Error::invalid(error.to_string()).in_field("n_fft"))?;
        self.powers.iter_mut().zip(&self.spectrum).for_each(|(power, bin)| *power = bin.norm_sqr());
        for (power, filter) in powers.iter_mut().zip(&self.filters) {
            let of_bins = &self.powers[filter.start..];
            let sum: f64 = filter.weights.iter().zip(of_bins).map(|(weight, power)| weight * power).sum();
            *power = sum.max(POWER_FLOOR);
        }
        Ok(())
    }
}

/// The index of the sample at `index` of the sequence that begins `half` samples before the first of `count` samples and
/// reflects both ends.
pub(super) fn reflected(index: usize, half: usize, count: usize) -> usize {
    let last = count.saturating_sub(1);
    let at = index.abs_diff(half);
    if at > last { (2 * last).saturating_sub(at) } else { at }
}

struct Filter {
    /// The first bin with a weight above zero.
    start: usize,
    weights: Vec<f64>,
}
