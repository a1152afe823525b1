//! Sounds: decoding and resampling.

use super::compressed;
use super::wav::{self, Wav};
use cotensor_core::{Error, Result};
use rubato::{FftFixedIn, Resampler};

/// The longest sound that is read.
pub(super) const SECONDS_MAX: u64 = 3600;
/// The most frames that are decoded: one GiB of samples, 90 minutes at 48 kHz.
const FRAMES_MAX: u64 = 1 << 28;
/// The loudest sample that is read: float files hold -1 to 1, some of them the integers of another file.
const SAMPLE_MAX: f32 = (1u32 << 31) as f32;
/// The sample rates that make sense.
const RATES_HZ: std::ops::RangeInclusive<u32> = 1000..=768_000;

/// One channel of sound, samples from -1 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Audio {
    /// Samples per second.
    pub sample_rate_hz: u32,
    /// The samples.
    pub samples: Vec<f32>,
}

/// How long a sound is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AudioLength {
    /// Samples per second and channel.
    pub sample_rate_hz: u32,
    /// Samples of each channel.
    pub frames: u64,
}

impl AudioLength {
    /// In seconds.
    pub fn seconds(&self) -> f64 {
        self.frames as f64 / f64::from(self.sample_rate_hz)
    }

    /// # Errors
    /// `Invalid` for a rate or a length that is not read.
    fn check(self) -> Result<Self> {
        if !RATES_HZ.contains(&self.sample_rate_hz) {
            return Err(invalid(format!("{} Hz", self.sample_rate_hz)));
        }
        if self.frames == 0 || self.frames > SECONDS_MAX * u64::from(self.sample_rate_hz) {
            return Err(invalid(format!("{} frames; 1 frame to {SECONDS_MAX} seconds can be read", self.frames)));
        }
        Ok(self)
    }
}

/// Decodes a WAV, FLAC, MP3 or Ogg Vorbis file; channels are averaged.
///
/// # Errors
/// `Corrupt` when it is no such file or ends early, `Invalid` when it is empty, too long or has samples that are no numbers,
/// `Unsupported` for another codec.
pub fn decode_audio(bytes: &[u8]) -> Result<Audio> {
    decode_audio_start(bytes, SECONDS_MAX as f64)
}

/// As [`decode_audio`], of the first `seconds` alone: an hour of many channels is much to keep for a model that reads half a
/// minute. A WAV file that ends early is refused all the same.
///
/// # Errors
/// As [`decode_audio`].
pub fn decode_audio_start(bytes: &[u8], seconds: f64) -> Result<Audio> {
    if bytes.is_empty() {
        return Err(invalid("the audio is empty".into()));
    }
    let frames = |length: AudioLength| {
        let frames = length.frames.min((seconds * f64::from(length.sample_rate_hz)) as u64).max(1);
        let few = frames <= FRAMES_MAX;
        few.then_some(frames as usize)
            .ok_or_else(|| invalid(format!("{frames} frames; at most {FRAMES_MAX} are decoded")))
    };
    let (sample_rate_hz, samples) = if wav::is_wav(bytes) {
        let file = Wav::read(bytes)?;
        let length = file.length().check()?;
        (length.sample_rate_hz, file.decode(frames(length)?))
    } else {
        let length = compressed::length(bytes)?.check()?;
        (length.sample_rate_hz, compressed::decode(bytes, frames(length)?)?)
    };
    if samples.is_empty() {
        return Err(invalid("0 frames".into()));
    }
    check_samples(&samples)?;
    Ok(Audio { sample_rate_hz, samples })
}

/// Sample rate and length, without decoding.
///
/// # Errors
/// As [`decode_audio`].
pub fn audio_length(bytes: &[u8]) -> Result<AudioLength> {
    if wav::is_wav(bytes) { Ok(Wav::read(bytes)?.length()) } else { compressed::length(bytes) }
}

pub(super) fn corrupt(message: &str) -> Error {
    Error::corrupt(message).in_field("audio")
}

pub(super) fn invalid(message: String) -> Error {
    Error::invalid(message).in_field("audio")
}

/// Only numbers that a transform can add up: its crate panics on those that overflow.
fn check_samples(samples: &[f32]) -> Result<()> {
    let wrong = |sample: &f32| !sample.is_finite() || sample.abs() > SAMPLE_MAX;
    samples.iter().position(wrong).map_or(Ok(()), |index| {
        let message = format!("sample {index} is {}; numbers up to {SAMPLE_MAX} can be read", samples[index]);
        Err(Error::invalid(message).in_field("audio"))
    })
}

/// The same sound at another rate; as it is when the rate is right already.
///
/// # Errors
/// `Invalid` for rates that make no sense, a sound without samples or samples that are no numbers.
pub fn resample(audio: &Audio, sample_rate_hz: u32) -> Result<Audio> {
    if audio.sample_rate_hz == sample_rate_hz {
        return Ok(audio.clone());
    }
    let failed = |error: &dyn std::fmt::Display| {
        Error::invalid(format!("cannot resample from {} to {sample_rate_hz} Hz: {error}", audio.sample_rate_hz))
            .in_field("audio")
    };
    if audio.samples.is_empty() || !RATES_HZ.contains(&audio.sample_rate_hz) || !RATES_HZ.contains(&sample_rate_hz) {
        return Err(failed(&"no samples or an impossible rate"));
    }
    check_samples(&audio.samples)?;
    let (from, to) = (audio.sample_rate_hz as usize, sample_rate_hz as usize);
    let mut resampler = FftFixedIn::<f32>::new(from, to, 4096, 2, 1).map_err(|error| failed(&error))?;
    let wanted = (audio.samples.len() as u64 * to as u64).div_ceil(from as u64) as usize;
    let delay = resampler.output_delay();
    let mut samples = Vec::with_capacity(wanted + delay);
    let mut rest = audio.samples.as_slice();
    while samples.len() < wanted + delay {
        let next = resampler.input_frames_next();
        let out = if rest.len() >= next {
            let (chunk, after) = rest.split_at(next);
            rest = after;
            resampler.process(&[chunk], None)
        } else {
            // The tail, then silence until the filter's delay has run out.
            let tail = std::mem::take(&mut rest);
            resampler.process_partial((!tail.is_empty()).then_some(&[tail][..]), None)
        };
        let out = out.map_err(|error| failed(&error))?;
        samples.extend_from_slice(&out[0]);
    }
    samples.drain(..delay);
    samples.truncate(wanted);
    Ok(Audio { sample_rate_hz, samples })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hound::SampleFormat;
    use std::io::Cursor;

    fn wav(samples: &[f32]) -> Vec<u8> {
        let spec =
            hound::WavSpec { channels: 2, sample_rate: 8000, bits_per_sample: 32, sample_format: SampleFormat::Float };
        let mut bytes = Cursor::new(Vec::new());
        let mut writer = hound::WavWriter::new(&mut bytes, spec).unwrap();
        samples.iter().for_each(|&sample| writer.write_sample(sample).unwrap());
        writer.finalize().unwrap();
        bytes.into_inner()
    }

    #[test]
    fn channels_are_averaged_and_bad_files_refused() {
        assert_eq!(decode_audio(&wav(&[1.0, 0.0, 0.5, 0.5])).unwrap().samples, [0.5, 0.5]);
        assert!(decode_audio(&wav(&[0.0, f32::NAN])).unwrap_err().to_string().contains("sample 0"));
        for huge in [f32::INFINITY, f32::MAX, -4.3e9] {
            assert!(decode_audio(&wav(&[0.0, 0.0, huge, 0.0])).unwrap_err().to_string().contains("sample 1"));
            assert!(resample(&Audio { sample_rate_hz: 8000, samples: vec![huge; 5000] }, 16_000).is_err());
        }
        let loudest = Audio { sample_rate_hz: 8000, samples: vec![-SAMPLE_MAX; 5000] };
        assert!(resample(&loudest, 16_000).unwrap().samples.iter().all(|sample| sample.is_finite()));
        assert!(decode_audio(&wav(&[])).unwrap_err().to_string().contains("0 frames"));
        assert!(decode_audio(b"").is_err());
        let good = wav(&[0.25; 64]);
        for len in 0..good.len() {
            assert!(decode_audio(&good[..len]).is_err(), "{len}");
            assert!(decode_audio_start(&good[..len], 1e-3).is_err(), "{len}");
        }
        // 8 frames of the 32.
        let start = decode_audio_start(&good, 1e-3).unwrap();
        assert_eq!(start.samples, decode_audio(&good).unwrap().samples[..8]);
    }

    #[test]
    fn resampling_keeps_length_pitch_and_phase() {
        let tone = |rate: f32, len: usize| -> Vec<f32> {
            (0..len).map(|i| (i as f32 / rate * 440.0 * std::f32::consts::TAU).sin() * 0.5).collect()
        };
        let audio = Audio { sample_rate_hz: 8000, samples: tone(8000.0, 8000) };
        let resampled = resample(&audio, 16000).unwrap();
        assert_eq!(resampled.samples.len(), 16000);
        let expected = tone(16000.0, 16000);
        let worst = (1000..15000).map(|i| (resampled.samples[i] - expected[i]).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-3, "{worst}");
        assert_eq!(resample(&resampled, 16000).unwrap(), resampled);
        assert_eq!(resample(&audio, 44100).unwrap().samples.len(), 44100);
    }
}
