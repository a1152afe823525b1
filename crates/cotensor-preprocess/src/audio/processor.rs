use super::clap::Clap;
use super::sound::{Audio, AudioLength};
use super::waveform::Waveform;
use super::whisper::Whisper;
use super::windows::AudioWindows;
use crate::array::Array;
use crate::files::ModelFiles;
use crate::processor_config;
use cotensor_core::{ContentHash, DType, Error, Hasher, Result};
use serde_json::Value;

/// The audio preprocessing of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioProcessor(Extractor);

/// A feature extractor class of transformers.
#[derive(Clone, Debug, PartialEq)]
enum Extractor {
    Clap(Clap),
    Waveform(Waveform),
    Whisper(Whisper),
}

impl AudioProcessor {
    /// Reads the audio part of processor_config.json, or preprocessor_config.json. A configuration that names no class
    /// is one of `class`. A missing field has the default of its class in transformers.
    ///
    /// # Errors
    /// `NotFound` without either file, `Invalid` for a field out of bounds, `Unsupported` for another extractor class.
    pub fn open(files: &dyn ModelFiles, class: Option<&str>) -> Result<Self> {
        let (config, path) = processor_config::read(files, "feature_extractor")?;
        Self::parse(&config, class).map_err(|error| error.in_file(&path))
    }

    fn parse(config: &Value, class: Option<&str>) -> Result<Self> {
        const FIELD: &str = "feature_extractor_type";
        let named = config.get(FIELD).and_then(Value::as_str).or(class);
        Ok(Self(match named {
            Some("ClapFeatureExtractor") => Extractor::Clap(Clap::parse(config)?),
            Some("Wav2Vec2FeatureExtractor") => Extractor::Waveform(Waveform::parse(config)?),
            Some("WhisperFeatureExtractor") => Extractor::Whisper(Whisper::parse(config)?),
            Some(other) => {
                let known = "ClapFeatureExtractor, Wav2Vec2FeatureExtractor, WhisperFeatureExtractor";
                return Err(Error::unsupported(format!("{other} is not known; known: {known}")).in_field(FIELD));
            }
            None => return Err(Error::invalid("the name of a class is required").in_field(FIELD)),
        }))
    }

    /// The sample rate of the model's input, in Hz.
    pub fn sample_rate_hz(&self) -> u32 {
        match &self.0 {
            Extractor::Clap(clap) => clap.sample_rate_hz(),
            Extractor::Waveform(waveform) => waveform.sample_rate_hz(),
            Extractor::Whisper(whisper) => whisper.sample_rate_hz(),
        }
    }

    /// The most seconds of a sound that the model reads.
    pub fn seconds(&self) -> f64 {
        let samples = match &self.0 {
            Extractor::Clap(clap) => clap.samples_max(),
            Extractor::Waveform(waveform) => waveform.samples_max(),
            Extractor::Whisper(whisper) => whisper.samples(),
        };
        samples as f64 / f64::from(self.sample_rate_hz())
    }

    /// The model's input for the beginning of a sound, `float32`: the log-mel features of Whisper, `[1, mel bins,
    /// frames]`; the mel spectrograms of CLAP in decibels, `[1, channels, frames, mel bins]`; the samples for Wav2Vec2,
    /// `[1, samples]`.
    ///
    /// # Errors
    /// `Invalid` for a sound with another sample rate or without samples.
    pub fn process(&self, audio: &Audio) -> Result<Array> {
        self.check(audio)?;
        match &self.0 {
            Extractor::Clap(clap) => clap.features(&audio.samples),
            Extractor::Waveform(waveform) => waveform.features(&audio.samples),
            Extractor::Whisper(whisper) => whisper.features(&audio.samples),
        }
    }

    /// The windows of a sound of any length, for a model that transcribes long sounds window by window. `None` for other
    /// models.
    pub fn windows(&self) -> Option<AudioWindows> {
        match &self.0 {
            Extractor::Whisper(whisper) => Some(whisper.windows()),
            Extractor::Clap(_) | Extractor::Waveform(_) => None,
        }
    }

    /// The model's input that tells whether a sound of this length is longer than its window, `bool` `[1, 1]`; `None`
    /// for models without such an input.
    ///
    /// # Errors
    /// As [`Array::new`].
    pub fn is_longer(&self, length: AudioLength) -> Result<Option<Array>> {
        let Extractor::Clap(clap) = &self.0 else { return Ok(None) };
        let scaled = length.frames.saturating_mul(self.sample_rate_hz().into());
        let resampled = scaled.div_ceil(length.sample_rate_hz.max(1).into());
        Array::new(DType::Bool, [1, 1], vec![u8::from(clap.is_longer(resampled))]).map(Some)
    }

    fn check(&self, audio: &Audio) -> Result<()> {
        if audio.sample_rate_hz != self.sample_rate_hz() {
            let message = format!("{} Hz; the model reads {} Hz", audio.sample_rate_hz, self.sample_rate_hz());
            return Err(Error::invalid(message).in_field("audio"));
        }
        if audio.samples.is_empty() { Err(Error::invalid("the audio is empty").in_field("audio")) } else { Ok(()) }
    }

    /// Hash of every parameter that affects the result.
    pub fn fingerprint(&self) -> ContentHash {
        Hasher::new("cotensor audio v2").field(format!("{self:?}").as_bytes()).finish()
    }
}
