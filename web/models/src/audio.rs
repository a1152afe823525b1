//! Audio preprocessing.

use crate::arrays::ArrayHandle;
use crate::bytes::{Bytes, Floats};
use crate::errors::Result;
use crate::family::ModelFamily;
use crate::files::ConfigFiles;
use crate::image::check_file;
use cotensor_core::Error;
use cotensor_preprocess::{Audio, AudioLength, audio_length_of, check_samples, decode_audio_start_of, resample};
use wasm_bindgen::prelude::*;

/// The audio preprocessing of a model.
#[wasm_bindgen]
pub struct AudioProcessor(cotensor_preprocess::AudioProcessor);

#[wasm_bindgen]
impl AudioProcessor {
    /// Reads the audio part of processor_config.json, or preprocessor_config.json.
    ///
    /// # Errors
    /// `NotFound` without either file, `Invalid` for a field out of bounds, `Unsupported` for another extractor class.
    #[wasm_bindgen(constructor)]
    pub fn new(files: &ConfigFiles, family: &ModelFamily) -> Result<AudioProcessor> {
        let class = family.def().audio_processor.as_deref();
        Ok(Self(cotensor_preprocess::AudioProcessor::open(files, class)?))
    }

    /// The model's input for the beginning of a sound file (WAV, FLAC, MP3 or Ogg Vorbis): for Whisper, the log-mel features
    /// `[1, mel bins, frames]`, `float32`. Of a WAV file, only that beginning is copied.
    ///
    /// # Errors
    /// `Corrupt` for another format or a truncated file, `Invalid` for a sound that is empty or too long.
    pub fn process(&self, file: &Bytes) -> Result<ArrayHandle> {
        check_file(file.len(), "audio")?;
        let read = |at: usize, target: &mut [u8]| file.read(at as u64, target);
        self.features(&decode_audio_start_of(file.len() as usize, read, self.seconds_read())?)
    }

    /// As [`process`](Self::process), for samples of one channel, from -1 to 1. Only those that the model reads are copied.
    ///
    /// # Errors
    /// `Invalid` for a sound that is empty or not finite, and for an unsupported rate.
    #[wasm_bindgen(js_name = processSamples)]
    pub fn process_samples(&self, samples: &Floats, sample_rate_hz: u32) -> Result<ArrayHandle> {
        let read = self.seconds_read() * f64::from(sample_rate_hz);
        let samples = samples.start(read.ceil() as usize);
        if samples.is_empty() {
            return Err(Error::invalid("the audio is empty").in_field("audio").into());
        }
        check_samples(&samples)?;
        self.features(&Audio { sample_rate_hz, samples })
    }

    /// Whether a sound file is longer than the model's window, as its input `is_longer`: `bool` `[1, 1]`. Nothing for a model
    /// without such an input.
    ///
    /// # Errors
    /// As [`process`](Self::process).
    #[wasm_bindgen(js_name = isLonger)]
    pub fn is_longer(&self, file: &Bytes) -> Result<Option<ArrayHandle>> {
        Ok(self.0.is_longer(length_of(file)?)?.map(ArrayHandle::from))
    }

    /// The sample rate of the model's input, in hertz.
    #[wasm_bindgen(getter, js_name = sampleRate)]
    pub fn sample_rate_hz(&self) -> u32 {
        self.0.sample_rate_hz()
    }

    /// The most seconds of a sound that the model reads.
    #[wasm_bindgen(getter)]
    pub fn seconds(&self) -> f64 {
        self.0.seconds()
    }

    /// The hash of every parameter that affects the result, 64 hexadecimal digits.
    #[wasm_bindgen(getter)]
    pub fn fingerprint(&self) -> String {
        self.0.fingerprint().to_string()
    }
}

impl AudioProcessor {
    /// Only the part that the model reads is resampled. The length of the filter is far below a second.
    fn seconds_read(&self) -> f64 {
        self.0.seconds() + 1.0
    }

    fn features(&self, audio: &Audio) -> Result<ArrayHandle> {
        Ok(self.0.process(&resample(audio, self.0.sample_rate_hz())?)?.into())
    }
}

/// The sample rate in hertz and the length in seconds of a sound file.
///
/// # Errors
/// As [`AudioProcessor::process`].
#[wasm_bindgen(js_name = soundLength)]
pub fn sound_length(file: &Bytes) -> Result<Vec<f64>> {
    let length = length_of(file)?;
    Ok(vec![f64::from(length.sample_rate_hz), length.seconds()])
}

fn length_of(file: &Bytes) -> Result<AudioLength> {
    check_file(file.len(), "audio")?;
    Ok(audio_length_of(file.len() as usize, |at, target| file.read(at as u64, target))?)
}
