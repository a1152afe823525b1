//! The log-mel features of Whisper.

use super::fields::{WINDOW, number, sample_rate_hz};
use super::mel::{MelScale, MelSpectrogram};
use super::windows::AudioWindows;
use crate::array::Array;
use cotensor_core::{Error, Result};
use serde_json::Value;

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
        if samples < mel.hop {
            let message = format!("{samples} samples are fewer than the hop_length of {}", mel.hop);
            return Err(Error::invalid(message).in_field("chunk_length"));
        }
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

    /// The windows of a sound.
    pub(super) fn windows(&self) -> AudioWindows {
        AudioWindows::new(self.mel.clone(), self.samples / self.mel.hop, self.padding)
    }

    /// `[1, mel bins, frames]` of the model's input for the beginning of a sound.
    pub(super) fn features(&self, samples: &[f32]) -> Result<Array> {
        let mut windows = self.windows();
        windows.push(&samples[..samples.len().min(self.samples)])?;
        windows.finish()?;
        windows.features()
    }
}
