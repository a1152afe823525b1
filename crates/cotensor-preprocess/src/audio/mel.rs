//! Log-mel features, as Whisper reads them.

use super::sound::Audio;
use crate::array::Array;
use crate::files::ModelFiles;
use crate::processor_config;
use cotensor_core::{ContentHash, Error, Hasher, Result};
use realfft::RealFftPlanner;
use serde_json::Value;

/// The smallest power whose logarithm is taken.
const POWER_FLOOR: f64 = 1e-10;
/// The range of the features below the largest one, in powers of ten.
const RANGE: f64 = 8.0;

/// The most samples of a model's input.
const SAMPLES_MAX: usize = 1 << 26;
/// The most features of a model's input.
const FEATURES_MAX: usize = 1 << 24;

/// The most samples that all transforms of one input may read in total: fifty times the number of Whisper.
const TRANSFORMED_MAX: usize = 1 << 26;

/// The supported feature extractor class.
const CLASS: &str = "WhisperFeatureExtractor";

/// The audio preprocessing of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioProcessor {
    mel_bins: usize,
    sample_rate_hz: u32,
    hop: usize,
    window: usize,
    /// Samples of the model's input; shorter sounds are padded, longer sounds are cut.
    samples: usize,
    padding: f32,
}

impl AudioProcessor {
    /// Reads the audio part of processor_config.json, or preprocessor_config.json. A missing field has the default of
    /// `WhisperFeatureExtractor` in transformers.
    ///
    /// # Errors
    /// `NotFound` without either file, `Invalid` for a field out of bounds, `Unsupported` for another extractor class.
    pub fn open(files: &dyn ModelFiles) -> Result<Self> {
        let (config, path) = processor_config::read(files, "feature_extractor")?;
        Self::parse(&config).map_err(|error| error.in_file(&path))
    }

    fn parse(config: &Value) -> Result<Self> {
        let class = config.get("feature_extractor_type").and_then(Value::as_str).unwrap_or(CLASS);
        if class != CLASS {
            let message = format!("{class} is not known; known: {CLASS}");
            return Err(Error::unsupported(message).in_field("feature_extractor_type"));
        }
        let number = |field: &str, missing: u64, range: std::ops::RangeInclusive<u64>| {
            let value = config.get(field).map_or(Some(missing), Value::as_u64).filter(|value| range.contains(value));
            value.map(|value| value as usize).ok_or_else(|| {
                Error::invalid(format!("a number from {} to {} is required", range.start(), range.end()))
                    .in_field(field)
            })
        };
        let sample_rate = number("sampling_rate", 16_000, 1000..=768_000)?;
        let window = number("n_fft", 400, 2..=65_536)?;
        let mel_bins = number("feature_size", 80, 1..=1024)?;
        let hop = number("hop_length", 160, 1..=window as u64)?;
        let samples = number("chunk_length", 30, 1..=600)? * sample_rate;
        // `usize` has 32 bits in a browser.
        let features = mel_bins.checked_mul(samples / hop);
        if samples > SAMPLES_MAX || features.is_none_or(|features| features > FEATURES_MAX) {
            let message = format!("{samples} samples in steps of {hop} by {mel_bins} bins are too many");
            return Err(Error::invalid(message).in_field("chunk_length"));
        }
        if window.checked_mul(samples / hop).is_none_or(|transformed| transformed > TRANSFORMED_MAX) {
            let message = format!("{window} samples every {hop} of {samples} are too much work");
            return Err(Error::invalid(message).in_field("n_fft"));
        }
        Ok(Self {
            mel_bins,
            sample_rate_hz: sample_rate as u32,
            hop,
            window,
            samples,
            padding: config.get("padding_value").and_then(Value::as_f64).unwrap_or(0.0) as f32,
        })
    }

    /// The sample rate of the model's input, in Hz.
    pub fn sample_rate_hz(&self) -> u32 {
        self.sample_rate_hz
    }

    /// The length of the model's input, in seconds.
    pub fn seconds(&self) -> f64 {
        self.samples as f64 / f64::from(self.sample_rate_hz)
    }

    /// Log-mel features `[1, mel bins, frames]`, `float32`: Hann window, power spectrum, Slaney's mel filters, base-10
    /// logarithm; clamped and scaled as in Radford et al., "Robust Speech Recognition via Large-Scale Weak
    /// Supervision".
    ///
    /// # Errors
    /// `Invalid` for a sound with another sample rate or without samples.
    pub fn process(&self, audio: &Audio) -> Result<Array> {
        if audio.sample_rate_hz != self.sample_rate_hz {
            let message = format!("{} Hz; the model reads {} Hz", audio.sample_rate_hz, self.sample_rate_hz);
            return Err(Error::invalid(message).in_field("audio"));
        }
        if audio.samples.is_empty() {
            return Err(Error::invalid("the audio is empty").in_field("audio"));
        }
        let padded = self.padded(&audio.samples);
        let frames = self.samples / self.hop;
        let filters = self.filters();
        let mut features = vec![0f64; self.mel_bins * frames];
        let fft = RealFftPlanner::<f64>::new().plan_fft_forward(self.window);
        let hann = |i: usize| 0.5 - 0.5 * (std::f64::consts::TAU * i as f64 / self.window as f64).cos();
        let hann: Vec<f64> = (0..self.window).map(hann).collect();
        let (mut frame, mut spectrum, mut scratch) =
            (fft.make_input_vec(), fft.make_output_vec(), fft.make_scratch_vec());
        let mut powers = vec![0f64; spectrum.len()];
        for at in 0..frames {
            let samples = &padded[at * self.hop..at * self.hop + self.window];
            for ((value, sample), weight) in frame.iter_mut().zip(samples).zip(&hann) {
                *value = sample * weight;
            }
            fft.process_with_scratch(&mut frame, &mut spectrum, &mut scratch)
                .map_err(|error| Error::invalid(error.to_string()).in_field("n_fft"))?;
            powers.iter_mut().zip(&spectrum).for_each(|(power, bin)| *power = bin.norm_sqr());
            for (mel, filter) in filters.iter().enumerate() {
                let power: f64 =
                    filter.weights.iter().zip(&powers[filter.start..]).map(|(weight, power)| weight * power).sum();
                features[mel * frames + at] = power.max(POWER_FLOOR).log10();
            }
        }
        let loudest = features.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let scaled = features.iter().map(|feature| ((feature.max(loudest - RANGE) + 4.0) / 4.0) as f32).collect();
        Array::f32([1, self.mel_bins, frames], scaled)
    }

    /// The samples, cut or padded to the input length and reflected by half a window at both ends.
    fn padded(&self, samples: &[f32]) -> Vec<f64> {
        let at = |index: usize| f64::from(*samples.get(index).unwrap_or(&self.padding));
        let half = self.window / 2;
        let before = (1..=half).rev().map(at);
        let after = (0..half).map(|i| at(self.samples.saturating_sub(2 + i)));
        before.chain((0..self.samples).map(at)).chain(after).collect()
    }

    /// Triangular filters with Slaney's scale and normalisation, without their zeros.
    fn filters(&self) -> Vec<Filter> {
        let bins = self.window / 2 + 1;
        let nyquist = f64::from(self.sample_rate_hz) / 2.0;
        // Whisper's filters end at 8 kHz for every sample rate.
        let top = to_mel(8000.0);
        let edges: Vec<f64> =
            (0..self.mel_bins + 2).map(|i| from_mel(top * i as f64 / (self.mel_bins + 1) as f64)).collect();
        let frequency = |bin: usize| nyquist * bin as f64 / (bins - 1) as f64;
        let filter = |edge: &[f64]| {
            let weight = |bin: usize| {
                let rising = (frequency(bin) - edge[0]) / (edge[1] - edge[0]);
                let falling = (edge[2] - frequency(bin)) / (edge[2] - edge[1]);
                rising.min(falling).max(0.0) * 2.0 / (edge[2] - edge[0])
            };
            let start = (0..bins).find(|&bin| weight(bin) > 0.0).unwrap_or(0);
            let end = (start..bins).rfind(|&bin| weight(bin) > 0.0).map_or(start, |bin| bin + 1);
            Filter { start, weights: (start..end).map(weight).collect() }
        };
        edges.windows(3).map(filter).collect()
    }

    /// Hash of every parameter that affects the result.
    pub fn fingerprint(&self) -> ContentHash {
        Hasher::new("cotensor log-mel v1").field(format!("{self:?}").as_bytes()).finish()
    }
}

struct Filter {
    /// The first bin with a weight above zero.
    start: usize,
    weights: Vec<f64>,
}

/// Slaney's mel scale: linear to 1 kHz, logarithmic above.
fn to_mel(hz: f64) -> f64 {
    if hz < 1000.0 { hz * 3.0 / 200.0 } else { 15.0 + (hz / 1000.0).ln() * 27.0 / 6.4f64.ln() }
}

fn from_mel(mel: f64) -> f64 {
    if mel < 15.0 { mel * 200.0 / 3.0 } else { 1000.0 * ((mel - 15.0) * 6.4f64.ln() / 27.0).exp() }
}
