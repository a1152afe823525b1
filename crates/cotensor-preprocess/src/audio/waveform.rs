//! The samples themselves, as Wav2Vec2 reads them.

use super::fields::{number, sample_rate_hz};
use crate::array::Array;
use cotensor_core::{Error, Result};
use serde_json::Value;

/// The longest sound that is read, in seconds: the memory of a transformer grows with the square of the length.
const SECONDS_MAX: usize = 60;

/// `Wav2Vec2FeatureExtractor` of transformers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Waveform {
    sample_rate_hz: u32,
    /// Whether the samples are scaled to mean 0 and variance 1.
    normalizes: bool,
}

impl Waveform {
    /// # Errors
    /// `Invalid` for a field out of bounds.
    pub(super) fn parse(config: &Value) -> Result<Self> {
        let rate = sample_rate_hz(config, 16_000)?;
        let normalizes = match config.get("do_normalize") {
            None | Some(Value::Null) => true,
            Some(Value::Bool(on)) => *on,
            Some(other) => {
                return Err(Error::invalid(format!("{other} is neither true nor false")).in_field("do_normalize"));
            }
        };
        number(config, "feature_size", 1, 1..=1)?;
        Ok(Self { sample_rate_hz: rate as u32, normalizes })
    }

    pub(super) fn sample_rate_hz(&self) -> u32 {
        self.sample_rate_hz
    }

    /// The most samples that are read.
    pub(super) fn samples_max(&self) -> usize {
        self.sample_rate_hz as usize * SECONDS_MAX
    }

    /// `[1, samples]`.
    pub(super) fn features(&self, samples: &[f32]) -> Result<Array> {
        let samples = &samples[..samples.len().min(self.samples_max())];
        if !self.normalizes {
            return Array::f32([1, samples.len()], samples.to_vec());
        }
        let count = samples.len() as f64;
        let mean = samples.iter().map(|&sample| f64::from(sample)).sum::<f64>() / count;
        let variance = samples.iter().map(|&sample| (f64::from(sample) - mean).powi(2)).sum::<f64>() / count;
        let deviation = (variance + 1e-7).sqrt();
        let scaled = samples.iter().map(|&sample| ((f64::from(sample) - mean) / deviation) as f32);
        Array::f32([1, samples.len()], scaled.collect())
    }
}
