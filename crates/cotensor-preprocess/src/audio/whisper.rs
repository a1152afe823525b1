//! The log-mel features of Whisper.

use super::fields::{WINDOW, number, sample_rate_hz};
use super::mel::{MelScale, MelSpectrogram};
use crate::array::Array;
use cotensor_core::{Error, Result};
use serde_json::Value;
use std::borrow::Cow;

/// The range of the features below the largest one, in powers of ten.
const RANGE: f32 = 8.0;
/// The windows that are transformed at a time; their powers have double precision.
const FRAMES_AT_ONCE: usize = 4096;
/// The most samples of a model's input.
const SAMPLES_MAX: usize = 1 << 26;

/// `WhisperFeatureExtractor` of transformers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Whisper {
    mel: MelSpectrogram,
    /// Samples of the model's input; shorter sounds are padded, longer sounds are cut.
    samples: usize,
    padding: f32,
}

impl Whisper {
    /// # Errors
    /// `Invalid` for a field out of bounds.
    pub(super) fn parse(config: &Value) -> Result<Self> {
        let sample_rate = sample_rate_hz(config, 16_000)?;
        let window = number(config, "n_fft", 400, WINDOW)?;
        let mel = MelSpectrogram {
            bins: number(config, "feature_size", 80, 1..=1024)?,
            sample_rate_hz: sample_rate as u32,
            hop: number(config, "hop_length", 160, 1..=window as u64)?,
            window,
            scale: MelScale::Slaney,
            // Whisper's filters end at 8 kHz for every sample rate.
            frequencies_hz: (0.0, 8000.0),
        };
        let samples = number(config, "chunk_length", 30, 1..=600)? * sample_rate;
        if samples > SAMPLES_MAX {
            return Err(Error::invalid(format!("{samples} samples are too many")).in_field("chunk_length"));
        }
        mel.check(samples, "chunk_length", "n_fft")?;
        let padding = config.get("padding_value").and_then(Value::as_f64).unwrap_or(0.0) as f32;
        Ok(Self { mel, samples, padding })
    }

    pub(super) fn sample_rate_hz(&self) -> u32 {
        self.mel.sample_rate_hz
    }

    /// The length of the model's input, in samples.
    pub(super) fn samples(&self) -> usize {
        self.samples
    }

    /// `[1, mel bins, frames]` of the model's input.
    pub(super) fn features(&self, samples: &[f32]) -> Result<Array> {
        let padded: Cow<'_, [f32]> = match samples.get(..self.samples) {
            Some(cut) => cut.into(),
            None => {
                let mut padded = samples.to_vec();
                padded.resize(self.samples, self.padding);
                padded.into()
            }
        };
        self.whole(&padded)
    }

    /// `[1, mel bins, frames]` of a sound of any length: base-10 logarithm of the powers, clamped and scaled by the
    /// loudest one as in Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision".
    pub(super) fn whole(&self, samples: &[f32]) -> Result<Array> {
        let (bins, frames) = (self.mel.bins, samples.len() / self.mel.hop);
        let mut features = vec![0f32; bins * frames];
        for first in (0..frames).step_by(FRAMES_AT_ONCE) {
            let count = FRAMES_AT_ONCE.min(frames - first);
            let powers = self.mel.powers(samples, first, count)?;
            for (row, powers) in features.chunks_exact_mut(frames).zip(powers.chunks_exact(count)) {
                let row = &mut row[first..first + count];
                row.iter_mut().zip(powers).for_each(|(feature, power)| *feature = power.log10() as f32);
            }
        }
        let loudest = features.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        features.iter_mut().for_each(|feature| *feature = (feature.max(loudest - RANGE) + 4.0) / 4.0);
        Array::f32([1, bins, frames], features)
    }
}
