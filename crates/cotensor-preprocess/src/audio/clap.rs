//! The mel spectrograms of CLAP, in decibels.

use super::fields::{RATE_HZ_MAX, WINDOW, number, sample_rate_hz};
use super::mel::{MelScale, MelSpectrogram};
use crate::array::Array;
use cotensor_core::{Error, Result};
use serde_json::Value;
use std::borrow::Cow;

/// The longest sound of which a fused input shows the whole, in seconds.
const FUSED_SECONDS_MAX: usize = 600;

/// `ClapFeatureExtractor` of transformers.
///
/// It draws the positions of its windows in long sounds at random. Here, each is the first position that it can draw,
/// so that equal sounds have equal features: a single window is the beginning of the sound, and of three windows for
/// fusion, each is the first in its third.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Clap {
    mel: MelSpectrogram,
    /// Samples of a window.
    samples: usize,
    /// Whether the input has four channels: the whole sound shrunk to a window, and three windows. Otherwise one
    /// window.
    fused: bool,
    padding: Padding,
}

/// What fills the window of a shorter sound.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Padding {
    /// Silence.
    Silence,
    /// The sound again and again, the last time in part.
    Repeat,
    /// The whole sound as often as it fits, then silence.
    RepeatThenSilence,
}

impl Clap {
    /// # Errors
    /// `Invalid` for a field out of bounds, `Unsupported` for an unknown truncation or padding.
    pub(super) fn parse(config: &Value) -> Result<Self> {
        let sample_rate = sample_rate_hz(config, 48_000)?;
        let window = number(config, "fft_window_size", 1024, WINDOW)?;
        let text = |field: &str, missing| config.get(field).and_then(Value::as_str).unwrap_or(missing).to_owned();
        let unknown = |field: &str, found: &str, known: &str| {
            Error::unsupported(format!("{found:?} is not known; known: {known}")).in_field(field)
        };
        let fused = match text("truncation", "fusion").as_str() {
            "fusion" => true,
            "rand_trunc" => false,
            other => return Err(unknown("truncation", other, "fusion, rand_trunc")),
        };
        let padding = match text("padding", "repeatpad").as_str() {
            "repeatpad" => Padding::RepeatThenSilence,
            "repeat" => Padding::Repeat,
            "pad" => Padding::Silence,
            other => return Err(unknown("padding", other, "repeatpad, repeat, pad")),
        };
        let nyquist = sample_rate as u64 / 2;
        let low = number(config, "frequency_min", 0, 0..=nyquist)?;
        let mel = MelSpectrogram {
            bins: number(config, "feature_size", 64, 1..=1024)?,
            sample_rate_hz: sample_rate as u32,
            hop: number(config, "hop_length", 480, 1..=window as u64)?,
            window,
            scale: if fused { MelScale::Htk } else { MelScale::Slaney },
            frequencies_hz: (low as f64, number(config, "frequency_max", 14_000, low as u64 + 1..=RATE_HZ_MAX)? as f64),
        };
        let samples = number(config, "max_length_s", 10, 1..=FUSED_SECONDS_MAX as u64)? * sample_rate;
        let this = Self { mel, samples, fused, padding };
        this.mel.check(this.samples_max(), "max_length_s", "fft_window_size")?;
        Ok(this)
    }

    pub(super) fn sample_rate_hz(&self) -> u32 {
        self.mel.sample_rate_hz
    }

    /// The most samples that are read.
    pub(super) fn samples_max(&self) -> usize {
        if self.fused { self.mel.sample_rate_hz as usize * FUSED_SECONDS_MAX } else { self.samples }
    }

    /// The model's input `is_longer` for a sound of `samples` samples. transformers also sets it for a single shorter
    /// sound in a model with fusion.
    pub(super) fn is_longer(&self, samples: u64) -> bool {
        self.fused || samples > self.samples as u64
    }

    /// `[1, channels, frames, mel bins]`, in decibels.
    pub(super) fn features(&self, samples: &[f32]) -> Result<Array> {
        let frames = self.samples / self.mel.hop + 1;
        let channels = if self.fused { 4 } else { 1 };
        let samples = &samples[..samples.len().min(self.samples_max())];
        let mut features = Vec::with_capacity(channels * frames * self.mel.bins);
        if self.fused && samples.len() / self.mel.hop + 1 > frames {
            let total = samples.len() / self.mel.hop + 1;
            let whole = self.decibels(samples, total)?;
            features.extend(shrunk(&whole, self.mel.bins, total, frames));
            for start in thirds(total - frames + 1) {
                features.extend_from_slice(&whole[start * self.mel.bins..(start + frames) * self.mel.bins]);
            }
        } else {
            // Up to a hop longer than a window, a sound for fusion is still one window.
            let longest = if self.fused { samples.len() } else { self.samples };
            let window = self.window(&samples[..samples.len().min(longest)]);
            let once = self.decibels(&window, frames)?;
            (0..channels).for_each(|_| features.extend_from_slice(&once));
        }
        Array::f32([1, channels, frames, self.mel.bins], features)
    }

    /// Fills a shorter sound to a window.
    fn window<'s>(&self, samples: &'s [f32]) -> Cow<'s, [f32]> {
        if samples.len() >= self.samples {
            return samples.into();
        }
        let times = match self.padding {
            Padding::Silence => 1,
            Padding::RepeatThenSilence => self.samples / samples.len(),
            Padding::Repeat => self.samples / samples.len() + 1,
        };
        let mut window = samples.repeat(times);
        window.resize(self.samples, 0.0);
        window.into()
    }

    /// `[frames, mel bins]`.
    fn decibels(&self, samples: &[f32], frames: usize) -> Result<Vec<f32>> {
        let powers = self.mel.powers(samples, frames)?;
        let at = |frame: usize, mel: usize| (10.0 * powers[mel * frames + frame].log10()) as f32;
        Ok((0..frames).flat_map(|frame| (0..self.mel.bins).map(move |mel| at(frame, mel))).collect())
    }
}

/// The first of each third of `count` positions; 0 for an empty third.
fn thirds(count: usize) -> [usize; 3] {
    // The first thirds are the longer ones.
    let third = |index: usize| count / 3 * index + index.min(count % 3);
    [0, 1, 2].map(|index| if third(index) < third(index + 1) { third(index) } else { 0 })
}

/// Interpolates `total` rows of `bins` elements linearly to `frames` rows, as torch's `interpolate` does without
/// aligned corners; torch computes the positions in single precision, too.
fn shrunk(rows: &[f32], bins: usize, total: usize, frames: usize) -> impl Iterator<Item = f32> + '_ {
    let scale = total as f32 / frames as f32;
    (0..frames).flat_map(move |frame| {
        let position = (scale * (frame as f32 + 0.5) - 0.5).max(0.0);
        let first = (position as usize).min(total - 1);
        let second = (first + 1).min(total - 1);
        let weight = position - first as f32;
        let row = move |at: usize| &rows[at * bins..(at + 1) * bins];
        row(first).iter().zip(row(second)).map(move |(a, b)| (1.0 - weight) * a + weight * b)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_begin_at_each_third() {
        assert_eq!(thirds(9), [0, 3, 6]);
        assert_eq!(thirds(8), [0, 3, 6]);
        assert_eq!(thirds(7), [0, 3, 5]);
        assert_eq!(thirds(2), [0, 1, 0]);
        assert_eq!(thirds(1), [0, 0, 0]);
    }
}
