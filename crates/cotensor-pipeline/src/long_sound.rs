//! Sounds that are longer than the window of a model.

use super::input_file::{InputFile, resampled};
use cotensor_core::{Error, Result};
use cotensor_preprocess::{AudioProcessor, AudioWindows, SoundReader, audio_length};

/// A sound that is longer than one window of the model. Reading it takes the memory of one window.
pub struct LongSound<'a> {
    file: &'a InputFile,
    reader: SoundReader<'a>,
    windows: AudioWindows,
    /// Samples behind the window.
    rest: Vec<f32>,
    /// Samples per second of the file.
    rate_hz: u32,
    ended: bool,
}

impl<'a> LongSound<'a> {
    /// `None` for a sound of one window, and for a model without windows. Reads the sound once for its loudest part, which
    /// scales the features of all windows.
    ///
    /// # Errors
    /// `Corrupt` when the sound cannot be decoded.
    pub fn open(file: &'a InputFile, processor: &AudioProcessor) -> Result<Option<Self>> {
        Self::opened(file, processor).map_err(|error| error.in_file(file.path()))
    }

    fn opened(file: &'a InputFile, processor: &AudioProcessor) -> Result<Option<Self>> {
        let length = audio_length(file.bytes())?;
        let (rate_hz, to_hz) = (length.sample_rate_hz, processor.sample_rate_hz());
        let read = || {
            let Some(windows) = processor.windows() else { return Ok(None) };
            let samples = length.frames.saturating_mul(to_hz.into()) / u64::from(rate_hz.max(1));
            if !windows.is_longer(usize::try_from(samples).unwrap_or(usize::MAX)) {
                return Ok(None);
            }
            let reader = SoundReader::open(file.bytes(), to_hz)?;
            Ok::<_, Error>(Some(Self { file, reader, windows, rest: Vec::new(), rate_hz, ended: false }))
        };
        let (Some(mut first), Some(mut sound)) = (read()?, read()?) else { return Ok(None) };
        while let Some(windows) = first.window()? {
            windows.advance(windows.frames())?;
        }
        sound.windows.set_loudest(first.windows.loudest());
        Ok(Some(sound))
    }

    /// The sound at its next window; `None` at its end. The caller advances.
    ///
    /// # Errors
    /// `Corrupt` when the sound cannot be decoded.
    pub fn window(&mut self) -> Result<Option<&mut AudioWindows>> {
        self.fill().map_err(|error| error.in_file(self.file.path()))?;
        Ok((!self.windows.is_done()).then_some(&mut self.windows))
    }

    fn fill(&mut self) -> Result<()> {
        while !self.windows.is_full() && !self.ended {
            if self.rest.is_empty() {
                match self.reader.read()? {
                    Some(samples) => self.rest = samples,
                    None => {
                        self.windows.finish()?;
                        self.ended = true;
                    }
                }
            } else {
                let accepted = self.windows.push(&self.rest)?;
                self.rest.drain(..accepted);
            }
        }
        Ok(())
    }

    /// A notice about the change of the sample rate.
    pub fn notice(&self) -> Option<String> {
        resampled(self.rate_hz, self.windows.sample_rate_hz())
    }
}
