//! A file with an image or a sound, as an input of a task.

use super::long_sound::{LongSound, resampled};
use cotensor_core::{ContentHash, Error, Result, size};
use cotensor_preprocess::family::ModelConfig;
use cotensor_preprocess::{
    Array, Audio, AudioLength, AudioProcessor, SoundReader, audio_length, decode_audio_start, resample,
};
use std::path::{Path, PathBuf};

/// The most bytes of an input file.
pub const INPUT_BYTES_MAX: u64 = 1 << 30;

/// The content of a file with an image or a sound.
#[derive(Debug)]
pub struct InputFile {
    path: PathBuf,
    bytes: Vec<u8>,
    hash: ContentHash,
}

impl InputFile {
    /// The content of the file `path`, which names it in errors.
    ///
    /// # Errors
    /// `Invalid` past the size limit.
    pub fn new(path: impl Into<PathBuf>, bytes: Vec<u8>) -> Result<Self> {
        let path = path.into();
        if bytes.len() as u64 > INPUT_BYTES_MAX {
            let message = format!("{}; at most {} are read", size(bytes.len() as u64), size(INPUT_BYTES_MAX));
            return Err(Error::invalid(message).in_field(path.display().to_string()));
        }
        Ok(Self { path, hash: ContentHash::of(&bytes), bytes })
    }

    /// The path, for error messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The content.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The hash of the content.
    pub fn hash(&self) -> ContentHash {
        self.hash
    }

    /// The length of a sound.
    ///
    /// # Errors
    /// `Corrupt` when it cannot be decoded.
    pub fn audio_length(&self) -> Result<AudioLength> {
        audio_length(&self.bytes).map_err(|error| error.in_file(&self.path))
    }

    /// The features of a sound, `[1, mel bins, frames]` or `[1, samples]`.
    ///
    /// # Errors
    /// `Corrupt` when it cannot be decoded, `Invalid` for a sound that is too short for the model.
    pub fn features(&self, processor: &AudioProcessor, config: &ModelConfig<'_>) -> Result<Array> {
        let features = || {
            // Only the part that the model reads is resampled. The length of the filter is far below a second.
            let start = decode_audio_start(&self.bytes, processor.seconds() + 1.0)?;
            let audio = resample(&start, processor.sample_rate_hz())?;
            check_length(config, &audio)?;
            processor.process(&audio)
        };
        features().map_err(|error: Error| error.in_file(&self.path))
    }

    /// Notices about what [`features`](Self::features) changes: the sample rate and the length.
    ///
    /// # Errors
    /// As [`audio_length`](Self::audio_length).
    pub fn audio_notices(&self, processor: &AudioProcessor) -> Result<Vec<String>> {
        let length = self.audio_length()?;
        let seconds = length.seconds();
        let mut notices: Vec<String> =
            resampled(length.sample_rate_hz, processor.sample_rate_hz()).into_iter().collect();
        if seconds > processor.seconds() {
            notices.push(format!("of {seconds:.1} s of audio, the model reads the first {} s", processor.seconds()));
        }
        Ok(notices)
    }

    /// A sound that is longer than the window of a model, window by window. `None` for another sound, and for a model without windows.
    ///
    /// # Errors
    /// `Corrupt` when it cannot be decoded.
    pub fn long_sound(&self, processor: &AudioProcessor) -> Result<Option<LongSound<'_>>> {
        let open = || SoundReader::open(&self.bytes, processor.sample_rate_hz());
        let scanned = || {
            let mut sound = LongSound::open(self.audio_length()?, processor, open)?;
            if let Some(sound) = &mut sound {
                while sound.scan()? {}
            }
            Ok(sound)
        };
        scanned().map_err(|error: Error| error.in_file(&self.path))
    }

    /// Whether a sound is longer than the window of a model, as an input of a graph: `bool` `[1, 1]`.
    ///
    /// # Errors
    /// As [`audio_length`](Self::audio_length); `Unsupported` for a model without windows.
    pub fn is_longer(&self, processor: &AudioProcessor) -> Result<Array> {
        let longer = processor.is_longer(self.audio_length()?)?;
        longer.ok_or_else(|| Error::unsupported("the model's audio has no windows").in_field("is_longer"))
    }
}

/// Refuses a sound that is too short for a model.
///
/// # Errors
/// `Invalid` for a sound with fewer samples than the convolutions of the model read for one row of features. Their sizes are
/// fields of Wav2Vec2's config.json; models without them fill short sounds up.
pub fn check_length(config: &ModelConfig<'_>, audio: &Audio) -> Result<()> {
    let sizes = |field| {
        let list = config.at(field).and_then(serde_json::Value::as_array)?;
        list.iter().map(serde_json::Value::as_u64).collect::<Option<Vec<u64>>>()
    };
    let (Some(kernels), Some(strides)) = (sizes("conv_kernel"), sizes("conv_stride")) else { return Ok(()) };
    let layers = kernels.iter().zip(&strides).rev();
    let least = layers
        .fold(1u64, |rows, (kernel, stride)| rows.saturating_sub(1).saturating_mul(*stride).saturating_add(*kernel));
    let samples = audio.samples.len() as u64;
    if samples >= least {
        return Ok(());
    }
    let milliseconds = |samples: u64| 1e3 * samples as f64 / f64::from(audio.sample_rate_hz);
    let message = format!(
        "the sound is too short: {samples} samples ({:.1} ms); the model reads {least} ({:.1} ms) or more",
        milliseconds(samples),
        milliseconds(least)
    );
    Err(Error::invalid(message).in_field("audio"))
}
