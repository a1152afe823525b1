//! The log-mel features of a sound of any length, window by window.

use super::mel::{MelSpectrogram, MelTransform, reflected};
use crate::array::Array;
use cotensor_core::{Error, Result};

/// The range of the features below the largest one, in powers of ten.
const RANGE: f32 = 8.0;

/// The features of a sound that arrives in parts, in windows of the length that a model reads. The reader decides how far
/// it advances. The memory is that of one window of features and of the samples of one transform.
///
/// The features are the base-10 logarithms of the powers, clamped and scaled by the loudest one as in Radford et al.,
/// "Robust Speech Recognition via Large-Scale Weak Supervision". Without [`set_loudest`](Self::set_loudest), the
/// loudest one is that of all samples so far.
pub struct AudioWindows {
    mel: MelSpectrogram,
    transform: MelTransform,
    /// Frames of a window.
    window: usize,
    /// Frames with which a window is complete; the rest of it is empty.
    limit: usize,
    padding: f32,
    /// The features of the frames from `passed` on, before they are clamped: row-major `[frames, bins]`.
    features: Vec<f32>,
    /// The samples from sample `first` on, which later frames read.
    samples: Vec<f32>,
    first: usize,
    /// Samples that arrived.
    sound: usize,
    /// The same, with the silence behind a short sound.
    received: usize,
    /// Frames before the window.
    passed: usize,
    loudest: f32,
    end: End,
}

/// Whether all samples arrived.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Open,
    /// The whole sound fits one window, which is filled with silence.
    Short,
    Long,
}

impl AudioWindows {
    pub(super) fn new(mel: MelSpectrogram, window: usize, padding: f32) -> Self {
        Self {
            transform: mel.transform(),
            mel,
            window,
            limit: window,
            padding,
            features: Vec::new(),
            samples: Vec::new(),
            first: 0,
            sound: 0,
            received: 0,
            passed: 0,
            loudest: f32::NEG_INFINITY,
            end: End::Open,
        }
    }

    /// The sample rate, in Hz.
    pub fn sample_rate_hz(&self) -> u32 {
        self.mel.sample_rate_hz
    }

    /// Samples from one frame to the next.
    pub fn hop(&self) -> usize {
        self.mel.hop
    }

    /// Frames of a window.
    pub fn window(&self) -> usize {
        self.window
    }

    /// The length of the sound so far, in seconds.
    pub fn seconds(&self) -> f64 {
        self.sound as f64 / f64::from(self.mel.sample_rate_hz)
    }

    /// Frames before the window: the position in the sound.
    pub fn passed(&self) -> usize {
        self.passed
    }

    /// Frames of the sound in the window: fewer than a window has only at the end of the sound.
    pub fn frames(&self) -> usize {
        self.features.len() / self.mel.bins
    }

    /// Whether a sound of `samples` samples is longer than one window.
    pub fn is_longer(&self, samples: usize) -> bool {
        samples / self.mel.hop > self.limit
    }

    /// Whether the window is complete, so that no sample is accepted before [`advance`](Self::advance).
    pub fn is_full(&self) -> bool {
        self.end == End::Open && self.received >= self.needed()
    }

    /// Whether the whole sound fits one window.
    pub fn is_short(&self) -> bool {
        self.end == End::Short
    }

    /// Whether the sound ended and no frame is left.
    pub fn is_done(&self) -> bool {
        self.end != End::Open && self.features.is_empty()
    }

    /// The highest feature so far, before scaling.
    pub fn loudest(&self) -> f32 {
        self.loudest
    }

    /// Scales by the loudest part of the whole sound, if it is known.
    pub fn set_loudest(&mut self, loudest: f32) {
        self.loudest = loudest;
    }

    /// Completes a window already with this length, in seconds: results come sooner, and the model reads more windows.
    ///
    /// # Errors
    /// `Invalid` for a length below a tenth of a second or above that of a window.
    pub fn set_length(&mut self, seconds: f64) -> Result<()> {
        let frames = f64::from(self.mel.sample_rate_hz) / self.mel.hop as f64;
        let whole = self.window as f64 / frames;
        if !(0.1..=whole).contains(&seconds) {
            return Err(Error::invalid(format!("{seconds} s; 0.1 to {whole} s are possible")).in_field("window"));
        }
        self.limit = ((seconds * frames) as usize).clamp(1, self.window);
        Ok(())
    }

    /// Adds samples, up to the end of the window. Returns how many were accepted.
    ///
    /// # Errors
    /// `Invalid` after [`finish`](Self::finish), or when the Fourier transform refuses its window.
    pub fn push(&mut self, samples: &[f32]) -> Result<usize> {
        if self.end != End::Open {
            return Err(Error::invalid("the sound has ended").in_field("audio"));
        }
        let accepted = samples.len().min(self.needed().saturating_sub(self.received));
        self.samples.extend_from_slice(&samples[..accepted]);
        self.sound += accepted;
        self.received = self.sound;
        self.transform()?;
        Ok(accepted)
    }

    /// Ends the sound. If it is not longer than one window, silence fills the window.
    ///
    /// # Errors
    /// `Invalid` without a sample, or as [`push`](Self::push).
    pub fn finish(&mut self) -> Result<()> {
        if self.received == 0 {
            return Err(Error::invalid("the audio is empty").in_field("audio"));
        }
        if self.passed == 0 && !self.is_longer(self.received) {
            let samples = self.window * self.mel.hop;
            self.samples.resize(samples.saturating_sub(self.first), self.padding);
            (self.received, self.end, self.limit) = (samples, End::Short, self.window);
        } else {
            self.end = End::Long;
        }
        self.transform()
    }

    /// Moves the window by `frames` frames, or to the end of the frames that it has.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn advance(&mut self, frames: usize) -> Result<()> {
        let frames = frames.min(self.frames());
        self.features.drain(..frames * self.mel.bins);
        self.passed += frames;
        self.transform()
    }

    /// The features of the window, `[1, mel bins, frames]`. Behind the end of a long sound they are 0.
    ///
    /// # Errors
    /// As [`Array::f32`].
    pub fn features(&self) -> Result<Array> {
        let (bins, window) = (self.mel.bins, self.window);
        let mut features = vec![0f32; bins * window];
        for (at, frame) in self.features.chunks_exact(bins).enumerate() {
            for (mel, feature) in frame.iter().enumerate() {
                features[mel * window + at] = (feature.max(self.loudest - RANGE) + 4.0) / 4.0;
            }
        }
        Array::f32([1, bins, window], features)
    }

    /// The samples behind the centre of a frame that its transform reads.
    fn reach(&self) -> usize {
        self.mel.window - self.mel.window / 2
    }

    /// The number of samples that complete the window. The first window also needs the next frame: only a sound that has
    /// it is longer than one window.
    fn needed(&self) -> usize {
        let end = self.passed + self.limit;
        let complete = ((end - 1) * self.mel.hop + self.reach()).max(end * self.mel.hop);
        if self.passed == 0 { complete.max((end + 1) * self.mel.hop) } else { complete }
    }

    /// Transforms the frames of the window whose samples arrived.
    fn transform(&mut self) -> Result<()> {
        let (hop, half) = (self.mel.hop, self.mel.window / 2);
        let ended = self.end != End::Open;
        // A sound of one window is cut at the end of the window.
        let is_cut = !ended && self.passed == 0 && self.received < self.needed();
        let known = if is_cut { self.received.min(self.window * hop) } else { self.received };
        let count = if ended { self.received / hop } else { (known + hop).saturating_sub(self.reach()) / hop };
        let mut next = self.passed + self.frames();
        let mut powers = vec![0f64; self.mel.bins];
        while next < count.min(self.passed + self.limit) {
            let sample = |offset| {
                let at = reflected(next * hop + offset, half, self.received);
                at.checked_sub(self.first).and_then(|at| self.samples.get(at)).copied().unwrap_or(0.0)
            };
            self.transform.powers(sample, &mut powers)?;
            let first = self.features.len();
            self.features.extend(powers.iter().map(|power| power.log10() as f32));
            self.loudest = self.features[first..].iter().copied().fold(self.loudest, f32::max);
            next += 1;
        }
        let unread = (next * hop).saturating_sub(half).min(self.first + self.samples.len());
        self.samples.drain(..unread - self.first);
        self.first = unread;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::mel::{MelScale, MelSpectrogram};
    use super::*;

    fn windows() -> AudioWindows {
        let scale = MelScale::Slaney;
        let mel =
            MelSpectrogram { bins: 8, sample_rate_hz: 8000, hop: 10, window: 24, scale, frequencies_hz: (0.0, 4000.0) };
        AudioWindows::new(mel, 20, 0.0)
    }

    fn sound(samples: usize) -> Vec<f32> {
        (0..samples).map(|at| ((at * at) as f32 * 0.01).sin() * (1.0 + at as f32 / 300.0)).collect()
    }

    /// The features of every window with this step, for samples that arrive in parts of `part`.
    fn features(sound: &[f32], part: usize, step: usize, loudest: Option<f32>) -> (Vec<Array>, f32) {
        let mut windows = windows();
        if let Some(loudest) = loudest {
            windows.set_loudest(loudest);
        }
        let mut all = Vec::new();
        for mut part in sound.chunks(part) {
            while !part.is_empty() {
                part = &part[windows.push(part).unwrap()..];
                if windows.is_full() {
                    all.push(windows.features().unwrap());
                    windows.advance(step).unwrap();
                }
                assert!(windows.features.len() <= 20 * 8 && windows.samples.len() < 64, "memory is bounded");
            }
        }
        windows.finish().unwrap();
        while !windows.is_done() {
            all.push(windows.features().unwrap());
            windows.advance(step).unwrap();
        }
        (all, windows.loudest())
    }

    #[test]
    fn windows_are_cut_from_the_features_of_the_whole_sound() {
        let sound = sound(617);
        let (bins, frames) = (8, 61);
        let powers = windows().mel.powers(&sound, frames).unwrap();
        let whole: Vec<f32> = powers.iter().map(|power| power.log10() as f32).collect();
        let loudest = whole.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for (part, step) in [(1, 20), (7, 13), (1000, 20), (64, 1)] {
            let (windows, found) = features(&sound, part, step, Some(loudest));
            assert_eq!(found, loudest);
            assert_eq!(windows.len(), frames.div_ceil(step), "parts of {part}");
            for (index, window) in windows.iter().enumerate() {
                let window = window.as_f32().unwrap();
                for (mel, at) in (0..bins).flat_map(|mel| (0..20).map(move |at| (mel, at))) {
                    let frame = index * step + at;
                    let expected = |frame: usize| (whole[mel * frames + frame].max(loudest - RANGE) + 4.0) / 4.0;
                    let expected = if frame < frames { expected(frame) } else { 0.0 };
                    assert_eq!(window[mel * 20 + at], expected, "window {index} bin {mel} frame {at}");
                }
            }
        }
    }

    #[test]
    fn sound_of_one_window_is_filled_with_silence() {
        for samples in [1, 50, 199, 200, 205, 209] {
            let sound = sound(samples);
            let mut filled = sound.clone();
            filled.resize(200, 0.0);
            let (expected, _) = features(&filled, 200, 20, None);
            for part in [1, 11, 300] {
                let (given, _) = features(&sound, part, 20, None);
                assert_eq!((given.len(), &given[0]), (1, &expected[0]), "{samples} samples");
            }
        }
        assert_eq!(features(&sound(210), 9, 20, None).0.len(), 2, "one frame more is another window");
        let mut empty = windows();
        assert!(empty.finish().unwrap_err().to_string().contains("empty"));
    }
}
