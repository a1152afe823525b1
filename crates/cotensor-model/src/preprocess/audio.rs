//! Sounds: decoding and resampling.

use cotensor_core::{Error, Result};
use hound::{SampleFormat, WavReader};
use rubato::{FftFixedIn, Resampler};
use std::io::Cursor;

/// The longest sound that is read.
const SECONDS_MAX: u64 = 3600;
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

/// Decodes a WAV file; channels are averaged.
///
/// # Errors
/// `Corrupt` when it is no WAV file or ends early, `Invalid` when it is empty, too long or has samples that are no numbers.
pub fn decode_wav(bytes: &[u8]) -> Result<Audio> {
    decode_wav_start(bytes, SECONDS_MAX as f64)
}

/// As [`decode_wav`], of the first `seconds` alone: an hour of many channels is much to keep for a model that hears half a minute.
///
/// # Errors
/// As [`decode_wav`].
pub fn decode_wav_start(bytes: &[u8], seconds: f64) -> Result<Audio> {
    let corrupt = |error: hound::Error| Error::corrupt(format!("not a WAV file: {error}")).in_field("audio");
    let invalid = |message: String| Error::invalid(message).in_field("audio");
    if bytes.is_empty() {
        return Err(invalid("the audio is empty".into()));
    }
    let mut reader = WavReader::new(Cursor::new(bytes)).map_err(corrupt)?;
    let (spec, frames) = (reader.spec(), u64::from(reader.duration()));
    if !RATES_HZ.contains(&spec.sample_rate) || spec.channels == 0 {
        return Err(invalid(format!("{} channels at {} Hz", spec.channels, spec.sample_rate)));
    }
    if frames == 0 || frames > SECONDS_MAX * u64::from(spec.sample_rate) {
        return Err(invalid(format!("{frames} frames; 1 frame to {SECONDS_MAX} seconds can be read")));
    }
    if !(1..=32).contains(&spec.bits_per_sample) {
        return Err(invalid(format!("{} bits per sample; 1 to 32 can be read", spec.bits_per_sample)));
    }
    // A file that ends early is refused however little is wanted of it.
    reader.seek(frames as u32 - 1).map_err(|error| corrupt(error.into()))?;
    read_frames(&mut reader, 1).map_err(corrupt)?;
    reader.seek(0).map_err(|error| corrupt(error.into()))?;
    let wanted = frames.min((seconds * f64::from(spec.sample_rate)) as u64).max(1);
    let samples = read_frames(&mut reader, wanted as usize).map_err(corrupt)?;
    check_samples(&samples)?;
    let channels = usize::from(spec.channels);
    let mono = samples.chunks_exact(channels).map(|frame| frame.iter().sum::<f32>() / channels as f32).collect();
    Ok(Audio { sample_rate_hz: spec.sample_rate, samples: mono })
}

/// The next `count` frames, channels interleaved, scaled to -1 to 1; fewer at the end of the data.
fn read_frames(reader: &mut WavReader<Cursor<&[u8]>>, count: usize) -> Result<Vec<f32>, hound::Error> {
    let spec = reader.spec();
    let count = count * usize::from(spec.channels);
    match spec.sample_format {
        SampleFormat::Float => reader.samples::<f32>().take(count).collect(),
        SampleFormat::Int => {
            let scale = 1.0 / (1i64 << (spec.bits_per_sample - 1)) as f32;
            let scaled = reader.samples::<i32>().map(|sample| sample.map(|sample| sample as f32 * scale));
            scaled.take(count).collect()
        }
    }
}

/// Only numbers that a transform can add up: its crate panics on those that overflow.
fn check_samples(samples: &[f32]) -> Result<()> {
    let wrong = |sample: &f32| !sample.is_finite() || sample.abs() > SAMPLE_MAX;
    samples.iter().position(wrong).map_or(Ok(()), |index| {
        let message = format!("sample {index} is {}; numbers up to {SAMPLE_MAX} can be read", samples[index]);
        Err(Error::invalid(message).in_field("audio"))
    })
}

/// Sample rate in hertz and length in seconds, as the header says.
///
/// # Errors
/// `Corrupt` when it is no WAV file.
pub fn wav_rate_and_seconds(bytes: &[u8]) -> Result<(u32, f64)> {
    let reader = WavReader::new(Cursor::new(bytes));
    let reader = reader.map_err(|error| Error::corrupt(format!("not a WAV file: {error}")).in_field("audio"))?;
    let rate = reader.spec().sample_rate;
    Ok((rate, f64::from(reader.duration()) / f64::from(rate)))
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
        assert_eq!(decode_wav(&wav(&[1.0, 0.0, 0.5, 0.5])).unwrap().samples, [0.5, 0.5]);
        assert!(decode_wav(&wav(&[0.0, f32::NAN])).unwrap_err().to_string().contains("sample 1"));
        for huge in [f32::INFINITY, f32::MAX, -4.3e9] {
            assert!(decode_wav(&wav(&[0.0, 0.0, huge, 0.0])).unwrap_err().to_string().contains("sample 2"));
            assert!(resample(&Audio { sample_rate_hz: 8000, samples: vec![huge; 5000] }, 16_000).is_err());
        }
        let loudest = Audio { sample_rate_hz: 8000, samples: vec![-SAMPLE_MAX; 5000] };
        assert!(resample(&loudest, 16_000).unwrap().samples.iter().all(|sample| sample.is_finite()));
        assert!(decode_wav(&wav(&[])).unwrap_err().to_string().contains("0 frames"));
        assert!(decode_wav(b"").is_err());
        let good = wav(&[0.25; 64]);
        for len in 0..good.len() {
            assert!(decode_wav(&good[..len]).is_err(), "{len}");
            assert!(decode_wav_start(&good[..len], 1e-3).is_err(), "{len}");
        }
        // 8 frames of the 32.
        let start = decode_wav_start(&good, 1e-3).unwrap();
        assert_eq!(start.samples, decode_wav(&good).unwrap().samples[..8]);
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
