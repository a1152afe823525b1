//! Sounds that are longer than the window of a model.

use cotensor_core::Result;
use cotensor_preprocess::{AudioLength, AudioProcessor, AudioWindows, SoundReader};

/// A sound that is longer than one window of the model. Reading it takes the memory of one window.
pub struct LongSound<'a> {
    reader: SoundReader<'a>,
    windows: AudioWindows,
    /// Samples behind the window.
    rest: Vec<f32>,
    /// Samples per second of the file.
    rate_hz: u32,
    ended: bool,
    /// The same sound, which is read for its loudest part; `None` after its end.
    scanned: Option<Box<Self>>,
}

impl<'a> LongSound<'a> {
    /// `None` for a sound of one window, and for a model without windows. `open` opens the sound at the model's sample rate. The sound is
    /// read twice: [`scan`](Self::scan) reads it for its loudest part.
    ///
    /// # Errors
    /// Those of `open` and of the reader.
    pub fn open(
        length: AudioLength,
        processor: &AudioProcessor,
        open: impl Fn() -> Result<SoundReader<'a>>,
    ) -> Result<Option<Self>> {
        let (rate_hz, to_hz) = (length.sample_rate_hz, processor.sample_rate_hz());
        let read = || {
            let Some(windows) = processor.windows() else { return Ok(None) };
            let samples = length.frames.saturating_mul(to_hz.into()) / u64::from(rate_hz.max(1));
            if !windows.is_longer(usize::try_from(samples).unwrap_or(usize::MAX)) {
                return Ok(None);
            }
            open().map(|reader| Some(Self { reader, windows, rest: Vec::new(), rate_hz, ended: false, scanned: None }))
        };
        let (Some(first), Some(sound)) = (read()?, read()?) else { return Ok(None) };
        Ok(Some(Self { scanned: Some(Box::new(first)), ..sound }))
    }

    /// Reads one window for the loudest part of the sound, which scales the features of all windows. Returns whether more of the sound is
    /// left to read. [`window`](Self::window) reads that first.
    ///
    /// # Errors
    /// `Corrupt` when the sound cannot be decoded.
    pub fn scan(&mut self) -> Result<bool> {
        let Some(first) = &mut self.scanned else { return Ok(false) };
        if let Some(windows) = first.window()? {
            windows.advance(windows.frames())?;
            return Ok(true);
        }
        self.windows.set_loudest(first.windows.loudest());
        self.scanned = None;
        Ok(false)
    }

    /// The sound at its next window; `None` at its end. The caller advances.
    ///
    /// # Errors
    /// `Corrupt` when the sound cannot be decoded.
    pub fn window(&mut self) -> Result<Option<&mut AudioWindows>> {
        while self.scan()? {}
        self.fill()?;
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

/// A notice about the change of a sample rate.
pub(crate) fn resampled(from_hz: u32, to_hz: u32) -> Option<String> {
    (from_hz != to_hz).then(|| format!("the audio was resampled from {from_hz} to {to_hz} Hz"))
}
