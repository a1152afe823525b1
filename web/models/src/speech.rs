//! Speech that is longer than the window of a model.

use crate::arrays::ArrayHandle;
use crate::audio::{AudioProcessor, opened};
use crate::bytes::{Bytes, Floats, OpenFile};
use crate::errors::Result;
use crate::text::TextProcessor;
use crate::writing::{Generation, tokens};
use cotensor_core::Error;
use cotensor_pipeline::{LongSound, TextPieces, segments_of};
use cotensor_preprocess::generation::{Timestamps, is_text};
use cotensor_preprocess::{AudioLength, SoundReader, audio_length_of};
use serde::Serialize;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// The samples that are copied at a time.
const SAMPLES_AT_ONCE: usize = 1 << 14;

/// The windows of a sound. The timestamps that the model writes decide where the next window begins.
#[wasm_bindgen]
pub struct SpeechWindows {
    sound: LongSound<'static>,
    timestamps: Timestamps,
    /// `None` after the end of the text.
    pieces: Option<TextPieces<Rc<cotensor_preprocess::TextProcessor>>>,
}

/// The tokens of the segments of a window, and the pieces of their text: `WrittenWindow` of `web/src/models/core.ts`.
#[derive(Serialize)]
struct WrittenWindow {
    tokens: Vec<u32>,
    pieces: Vec<String>,
}

#[wasm_bindgen]
impl SpeechWindows {
    /// The windows of a sound file. Nothing for a sound of one window, and for a model without timestamps.
    ///
    /// # Errors
    /// As [`AudioProcessor::process`].
    #[wasm_bindgen(js_name = ofFile)]
    pub fn of_file(
        audio: &AudioProcessor,
        generation: &Generation,
        text: &TextProcessor,
        file: &Bytes,
    ) -> Result<Option<SpeechWindows>> {
        let (len, parts) = opened(file)?;
        let length = audio_length_of(len, |at, target: &mut [u8]| parts.read(at, target))?;
        let open = || {
            let parts = OpenFile::new(file);
            let read = move |at: usize, target: &mut [u8]| parts.read(at, target);
            SoundReader::open_of(len, read, audio.audio.sample_rate_hz())
        };
        Self::open(audio, generation, text, length, open)
    }

    /// As [`of_file`](Self::of_file), for samples of one channel, from -1 to 1.
    ///
    /// # Errors
    /// As [`AudioProcessor::process_samples`].
    #[wasm_bindgen(js_name = ofSamples)]
    pub fn of_samples(
        audio: &AudioProcessor,
        generation: &Generation,
        text: &TextProcessor,
        samples: &Floats,
        sample_rate_hz: u32,
    ) -> Result<Option<SpeechWindows>> {
        let open = || {
            let (samples, mut at) = (samples.clone(), 0);
            let next = move || {
                let part = samples.copied(at, SAMPLES_AT_ONCE);
                at += part.len();
                Ok((!part.is_empty()).then_some(part))
            };
            SoundReader::of(sample_rate_hz, audio.audio.sample_rate_hz(), next)
        };
        Self::open(audio, generation, text, AudioLength { sample_rate_hz, frames: samples.len() as u64 }, open)
    }

    /// Reads one window for the loudest part of the sound, which scales the features. Returns whether more of the sound is left to read;
    /// [`features`](Self::features) reads that first. A page does other work between the calls.
    ///
    /// # Errors
    /// As [`features`](Self::features).
    pub fn scan(&mut self) -> Result<bool> {
        Ok(self.sound.scan()?)
    }

    /// The features of the next window; nothing at the end of the sound.
    ///
    /// # Errors
    /// `Corrupt` when the sound cannot be decoded.
    pub fn features(&mut self) -> Result<Option<ArrayHandle>> {
        let Some(windows) = self.sound.window()? else { return Ok(None) };
        Ok(Some(windows.features()?.into()))
    }

    /// Whether the whole sound fits one window, although its header states more. Its text has no timestamps. Known after
    /// [`features`](Self::features).
    #[wasm_bindgen(getter, js_name = isShort)]
    pub fn is_short(&self) -> bool {
        self.sound.is_short()
    }

    /// Goes to the next window. `tokens` are those of this window's transcript, and `encoded` is the shape of the encoder's output.
    /// The result is `WrittenWindow` of `web/src/models/core.ts`, as JSON.
    ///
    /// # Errors
    /// `Invalid` when the features and the encoder's output do not match, and for tokens that the tokenizer cannot decode.
    pub fn advance(&mut self, encoded: &[u32], written: &[u32]) -> Result<String> {
        let end = || Error::invalid("the sound has ended").in_field("audio");
        let windows = self.sound.window()?.ok_or_else(end)?;
        let encoded: Vec<usize> = encoded.iter().map(|&dim| dim as usize).collect();
        let written = written.iter().map(|&token| token.into()).collect();
        let (segments, frames) = segments_of(windows, &self.timestamps, &encoded, written)?;
        windows.advance(frames)?;
        let ids: Vec<i64> = segments.into_iter().flat_map(|segment| segment.tokens).collect();
        let pieces = self.pieces.as_mut().map_or(Ok(Vec::new()), |pieces| {
            ids.iter().filter_map(|&token| pieces.piece(token).transpose()).collect::<cotensor_core::Result<_>>()
        });
        let written = WrittenWindow { tokens: tokens(ids)?, pieces: pieces? };
        Ok(serde_json::to_string(&written).unwrap_or_default())
    }

    /// The end of the text.
    ///
    /// # Errors
    /// As [`advance`](Self::advance).
    pub fn rest(&mut self) -> Result<Option<String>> {
        Ok(self.pieces.take().map_or(Ok(None), TextPieces::finish)?)
    }
}

impl SpeechWindows {
    fn open(
        audio: &AudioProcessor,
        generation: &Generation,
        text: &TextProcessor,
        length: AudioLength,
        open: impl Fn() -> cotensor_core::Result<SoundReader<'static>>,
    ) -> Result<Option<SpeechWindows>> {
        let Some(timestamps) = generation.timestamps() else { return Ok(None) };
        let sound = LongSound::open(length, &audio.audio, open)?;
        let pieces = || Some(TextPieces::new(Rc::clone(&text.text), &[], is_text));
        Ok(sound.map(|sound| Self { sound, timestamps, pieces: pieces() }))
    }
}
