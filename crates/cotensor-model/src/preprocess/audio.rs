//! Sounds: decoding and resampling.

use cotensor_core::{Error, Result};
use hound::{SampleFormat, WavReader};
use rubato::{FftFixedIn, Resampler};
use std::io::Cursor;

/// The longest sound that is read.
const SECONDS_MAX: u64 = 3600;
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
    let corrupt = |error: hound::Error| Error::corrupt(format!("not a WAV file: {error}")).in_field("audio");
    let invalid = |message: String| Error::invalid(message).in_field("audio");
    if bytes.is_empty() {
        return Err(invalid("the audio is empty".into()));
    }
    let reader = WavReader::new(Cursor::new(bytes)).map_err(corrupt)?;
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
    let samples: Vec<f32> = match spec.sample_format {
        SampleFormat::Float => reader.into_samples::<f32>().collect::<Result<_, _>>().map_err(corrupt)?,
        SampleFormat::Int => {
            let scale = 1.0 / (1i64 << (spec.bits_per_sample - 1)) as f32;
            let scaled = reader.into_samples::<i32>().map(|sample| sample.map(|sample| sample as f32 * scale));
            scaled.collect::<Result<_, _>>().map_err(corrupt)?
        }
    };
    if let Some(index) = samples.iter().position(|sample| !sample.is_finite()) {
        return Err(invalid(format!("sample {index} is not a number")));
    }
    let channels = usize::from(spec.channels);
    let mono = samples.chunks_exact(channels).map(|frame| frame.iter().sum::<f32>() / channels as f32).collect();
    Ok(Audio { sample_rate_hz: spec.sample_rate, samples: mono })
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
/// `Invalid` for rates that make no sense or a sound without samples.
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
        assert!(decode_wav(&wav(&[])).unwrap_err().to_string().contains("0 frames"));
        assert!(decode_wav(b"").is_err());
        let good = wav(&[0.25; 64]);
        for len in 0..good.len() {
            assert!(decode_wav(&good[..len]).is_err(), "{len}");
        }
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
