//! Mel spectrograms: powers of the Fourier transforms of overlapping windows, summed by triangular filters.

use cotensor_core::{Error, Result};
use realfft::RealFftPlanner;

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

    /// The powers of `frames` windows from window `first` on, at least [`POWER_FLOOR`]: row-major `[bins, frames]`. Windows
    /// are centred on multiples of the hop; the samples are reflected by half a window at both ends.
    ///
    /// # Errors
    /// `Invalid` when the Fourier transform refuses the window.
    pub(super) fn powers(&self, samples: &[f32], first: usize, frames: usize) -> Result<Vec<f64>> {
        let filters = self.filters();
        let mut features = vec![0f64; self.bins * frames];
        let fft = RealFftPlanner::<f64>::new().plan_fft_forward(self.window);
        let hann = |i: usize| 0.5 - 0.5 * (std::f64::consts::TAU * i as f64 / self.window as f64).cos();
        let hann: Vec<f64> = (0..self.window).map(hann).collect();
        let (mut frame, mut spectrum, mut scratch) =
            (fft.make_input_vec(), fft.make_output_vec(), fft.make_scratch_vec());
        let mut powers = vec![0f64; spectrum.len()];
        let half = self.window / 2;
        for at in 0..frames {
            let start = (first + at) * self.hop;
            for (offset, (value, weight)) in frame.iter_mut().zip(&hann).enumerate() {
                *value = f64::from(reflected(samples, start + offset, half)) * weight;
            }
            fft.process_with_scratch(&mut frame, &mut spectrum, &mut scratch)
                .map_err(|error| Error::invalid(error.to_string()).in_field("n_fft"))?;
            powers.iter_mut().zip(&spectrum).for_each(|(power, bin)| *power = bin.norm_sqr());
            for (mel, filter) in filters.iter().enumerate() {
                let power: f64 =
                    filter.weights.iter().zip(&powers[filter.start..]).map(|(weight, power)| weight * power).sum();
                features[mel * frames + at] = power.max(POWER_FLOOR);
            }
        }
        Ok(features)
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

/// The sample at `index` of the sequence that begins `half` samples before the first one and reflects both ends.
fn reflected(samples: &[f32], index: usize, half: usize) -> f32 {
    let last = samples.len().saturating_sub(1);
    let at = index.abs_diff(half);
    let at = if at > last { (2 * last).saturating_sub(at) } else { at };
    samples.get(at).copied().unwrap_or(0.0)
}

struct Filter {
    /// The first bin with a weight above zero.
    start: usize,
    weights: Vec<f64>,
}
