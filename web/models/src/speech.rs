//! Speech that is longer than the window of a model.

use crate::audio::{AudioProcessor, opened};
use crate::bytes::{Bytes, Floats, OpenFile};
use crate::errors::Result;
use cotensor_pipeline::LongSound;
use cotensor_preprocess::{AudioLength, SoundReader, audio_length_of};
use wasm_bindgen::prelude::*;

/// The samples that are copied at a time.
const SAMPLES_AT_ONCE: usize = 1 << 14;

/// The windows of a sound. The timestamps that the model writes decide where the next window begins.
#[wasm_bindgen]
pub struct SpeechWindows(pub(crate) LongSound<'static>);

#[wasm_bindgen]
impl SpeechWindows {
    /// The windows of a sound file. Nothing for a sound of one window.
    ///
    /// # Errors
    /// As [`AudioProcessor::process`].
    #[wasm_bindgen(js_name = ofFile)]
    pub fn of_file(audio: &AudioProcessor, file: &Bytes) -> Result<Option<SpeechWindows>> {
        let (len, parts) = opened(file)?;
        let length = audio_length_of(len, |at, target: &mut [u8]| parts.read(at, target))?;
        let open = || {
            let parts = OpenFile::new(file);
            let read = move |at: usize, target: &mut [u8]| parts.read(at, target);
            SoundReader::open_of(len, read, audio.audio.sample_rate_hz())
        };
        Self::open(audio, length, open)
    }

    /// As [`of_file`](Self::of_file), for samples of one channel, from -1 to 1.
    ///
    /// # Errors
    /// As [`AudioProcessor::process_samples`].
    #[wasm_bindgen(js_name = ofSamples)]
    pub fn of_samples(audio: &AudioProcessor, samples: &Floats, sample_rate_hz: u32) -> Result<Option<SpeechWindows>> {
        let open = || {
            let (samples, mut at) = (samples.clone(), 0);
            let next = move || {
                let part = samples.copied(at, SAMPLES_AT_ONCE);
                at += part.len();
                Ok((!part.is_empty()).then_some(part))
            };
            SoundReader::of(sample_rate_hz, audio.audio.sample_rate_hz(), next)
        };
        Self::open(audio, AudioLength { sample_rate_hz, frames: samples.len() as u64 }, open)
    }
}

impl SpeechWindows {
    fn open(
        audio: &AudioProcessor,
        length: AudioLength,
        open: impl Fn() -> cotensor_core::Result<SoundReader<'static>>,
    ) -> Result<Option<SpeechWindows>> {
        Ok(LongSound::open(length, &audio.audio, open)?.map(Self))
    }
}
