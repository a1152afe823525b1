use super::sound::{Audio, RATES_HZ, check_samples};
use cotensor_core::{Error, Result};
use rubato::{FftFixedIn, Resampler};

/// The sound at another sample rate; a copy if it has that rate already.
///
/// # Errors
/// `Invalid` for an unsupported rate, or a sound that is empty or not finite.
pub fn resample(audio: &Audio, sample_rate_hz: u32) -> Result<Audio> {
    if audio.sample_rate_hz == sample_rate_hz {
        return Ok(audio.clone());
    }
    let failed = |error: &dyn std::fmt::Display| {
        Error::invalid(format!("cannot resample from {} to {sample_rate_hz} Hz: {error}", audio.sample_rate_hz))
            .in_field("audio")
    };
    if audio.samples.is_empty() || !RATES_HZ.contains(&audio.sample_rate_hz) || !RATES_HZ.contains(&sample_rate_hz) {
        return Err(failed(&"the sound is empty or the rate is unsupported"));
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
            // The tail, then silence for the delay of the filter.
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
