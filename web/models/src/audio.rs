//! Audio preprocessing.

use crate::arrays::ArrayHandle;
use crate::bytes::{Bytes, Floats, OpenFile};
use crate::errors::Result;
use crate::family::ModelFamily;
use crate::files::ConfigFiles;
use crate::image::check_file;
use cotensor_core::Error;
use cotensor_pipeline::check_length;
use cotensor_preprocess::{Audio, AudioLength, audio_length_of, check_samples, decode_audio_start_of, resample};
use wasm_bindgen::prelude::*;

/// The most bytes of a sound file.
const SOUND_BYTES_MAX: u64 = 1 << 30;

/// The audio preprocessing of a model.
#[wasm_bindgen]
pub struct AudioProcessor {
    pub(crate) audio: cotensor_preprocess::AudioProcessor,
    family: ModelFamily,
}

#[wasm_bindgen]
impl AudioProcessor {
    /// Reads the audio part of processor_config.json, or preprocessor_config.json.
    ///
    /// # Errors
    /// `NotFound` without either file, `Invalid` for a field out of bounds, `Unsupported` for another extractor class.
    #[wasm_bindgen(constructor)]
    pub fn new(files: &ConfigFiles, family: &ModelFamily) -> Result<AudioProcessor> {
        let class = family.def().audio_processor.as_deref();
        Ok(Self { audio: cotensor_preprocess::AudioProcessor::open(files, class)?, family: family.clone() })
    }

    /// The model's input for the beginning of a sound file (WAV, FLAC, MP3 or Ogg Vorbis): for Whisper, the log-mel features
    /// `[1, mel bins, frames]`, `float32`. The file is copied in parts.
    ///
    /// # Errors
    /// `Corrupt` for another format or a truncated file, `Invalid` for a sound that is empty, too short or too long.
    pub fn process(&self, file: &Bytes) -> Result<ArrayHandle> {
        let (len, file) = opened(file)?;
        let read = |at: usize, target: &mut [u8]| file.read(at, target);
        self.features(&decode_audio_start_of(len, read, self.seconds_read())?)
    }

    /// As [`process`](Self::process), for samples of one channel, from -1 to 1. Only those that the model reads are copied.
    ///
    /// # Errors
    /// `Invalid` for a sound that is empty or not finite, and for an unsupported rate.
    #[wasm_bindgen(js_name = processSamples)]
    pub fn process_samples(&self, samples: &Floats, sample_rate_hz: u32) -> Result<ArrayHandle> {
        let read = self.seconds_read() * f64::from(sample_rate_hz);
        let samples = samples.copied(0, read.ceil() as usize);
        if samples.is_empty() {
            return Err(Error::invalid("the audio is empty").in_field("audio").into());
        }
        check_samples(&samples)?;
        self.features(&Audio { sample_rate_hz, samples })
    }

    /// Whether a sound of `frames` samples in each channel is longer than the model's window, as an input of its graph: `bool`
    /// `[1, 1]`. Nothing for a model without such an input.
    ///
    /// # Errors
    /// As [`process`](Self::process).
    #[wasm_bindgen(js_name = isLonger)]
    pub fn is_longer(&self, sample_rate_hz: u32, frames: f64) -> Result<Option<ArrayHandle>> {
        let length = AudioLength { sample_rate_hz, frames: frames as u64 };
        Ok(self.audio.is_longer(length)?.map(ArrayHandle::from))
    }

    /// The sample rate of the model's input, in hertz.
    #[wasm_bindgen(getter, js_name = sampleRate)]
    pub fn sample_rate_hz(&self) -> u32 {
        self.audio.sample_rate_hz()
    }

    /// The most seconds of a sound that the model reads.
    #[wasm_bindgen(getter)]
    pub fn seconds(&self) -> f64 {
        self.audio.seconds()
    }

    /// The hash of every parameter that affects the result, 64 hexadecimal digits.
    #[wasm_bindgen(getter)]
    pub fn fingerprint(&self) -> String {
        self.audio.fingerprint().to_string()
    }
}

impl AudioProcessor {
    /// Only the part that the model reads is resampled. The length of the filter is far below a second.
    fn seconds_read(&self) -> f64 {
        self.audio.seconds() + 1.0
    }

    fn features(&self, audio: &Audio) -> Result<ArrayHandle> {
        let audio = resample(audio, self.audio.sample_rate_hz())?;
        check_length(&self.family.config(), &audio)?;
        Ok(self.audio.process(&audio)?.into())
    }
}

/// The sample rate in hertz and the samples of each channel of a sound file.
///
/// # Errors
/// As [`AudioProcessor::process`].
#[wasm_bindgen(js_name = soundLength)]
pub fn sound_length(file: &Bytes) -> Result<Vec<f64>> {
    let (len, file) = opened(file)?;
    let length = audio_length_of(len, |at, target: &mut [u8]| file.read(at, target))?;
    Ok(vec![f64::from(length.sample_rate_hz), length.frames as f64])
}

/// A sound file with its length in bytes.
///
/// # Errors
/// `Invalid` for a file of too many bytes.
pub(crate) fn opened(file: &Bytes) -> Result<(usize, OpenFile)> {
    check_file(file.len(), SOUND_BYTES_MAX, "audio")?;
    Ok((file.len() as usize, OpenFile::new(file)))
}
