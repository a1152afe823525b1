use super::sound::{Audio, RATES_HZ, check_samples};
use cotensor_core::{Error, Result};
use rubato::{FftFixedIn, Resampler};

/// The samples that are resampled at a time.
const CHUNK: usize = 4096;

/// The sound at another sample rate; a copy if it has that rate already.
///
/// # Errors
/// `Invalid` for an unsupported rate, or a sound that is empty or not finite.
pub fn resample(audio: &Audio, sample_rate_hz: u32) -> Result<Audio> {
    if audio.sample_rate_hz == sample_rate_hz {
        return Ok(audio.clone());
    }
    if audio.samples.is_empty() {
        return Err(failed(audio.sample_rate_hz, sample_rate_hz, &"the sound is empty"));
    }
    let mut resampling = Resampling::new(audio.sample_rate_hz, sample_rate_hz)?;
    let mut samples = resampling.push(&audio.samples)?;
    samples.extend(resampling.finish()?);
    Ok(Audio { sample_rate_hz, samples })
}

/// Changes the sample rate of a sound that arrives in parts. The result does not depend on the parts.
pub struct Resampling {
    resampler: FftFixedIn<f32>,
    rates_hz: (u32, u32),
    /// Samples that wait for a full chunk.
    rest: Vec<f32>,
    received: u64,
    given: u64,
    /// Samples of the filter's delay that are still to be left out.
    delay: usize,
}

impl Resampling {
    /// # Errors
    /// `Invalid` for an unsupported rate.
    pub fn new(from_hz: u32, to_hz: u32) -> Result<Self> {
        if !RATES_HZ.contains(&from_hz) || !RATES_HZ.contains(&to_hz) {
            return Err(failed(from_hz, to_hz, &"the rate is unsupported"));
        }
        let resampler = FftFixedIn::<f32>::new(from_hz as usize, to_hz as usize, CHUNK, 2, 1)
            .map_err(|error| failed(from_hz, to_hz, &error))?;
        let delay = resampler.output_delay();
        Ok(Self { resampler, rates_hz: (from_hz, to_hz), rest: Vec::new(), received: 0, given: 0, delay })
    }

    /// Adds samples and returns those that are complete.
    ///
    /// # Errors
    /// `Invalid` for samples that are not finite.
    pub fn push(&mut self, samples: &[f32]) -> Result<Vec<f32>> {
        check_samples(samples)?;
        self.received += samples.len() as u64;
        self.rest.extend_from_slice(samples);
        let (mut out, mut at) = (Vec::new(), 0);
        while let Some(chunk) = self.rest.get(at..at + self.resampler.input_frames_next()) {
            at += chunk.len();
            let made = self.resampler.process(&[chunk], None);
            let made = made.map_err(|error| failed(self.rates_hz.0, self.rates_hz.1, &error))?;
            out.extend_from_slice(&made[0]);
        }
        self.rest.drain(..at);
        Ok(self.without_delay(out))
    }

    /// Returns the last samples.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn finish(mut self) -> Result<Vec<f32>> {
        let (from, to) = (u64::from(self.rates_hz.0), u64::from(self.rates_hz.1));
        let wanted = (self.received * to).div_ceil(from).saturating_sub(self.given);
        let mut samples = Vec::new();
        let mut rest = std::mem::take(&mut self.rest);
        while (samples.len() as u64) < wanted {
            // The tail, then silence for the delay of the filter.
            let tail = std::mem::take(&mut rest);
            let made = self.resampler.process_partial((!tail.is_empty()).then_some(&[tail][..]), None);
            let made = made.map_err(|error| failed(self.rates_hz.0, self.rates_hz.1, &error))?;
            let made = made.into_iter().next().unwrap_or_default();
            samples.extend(self.without_delay(made));
        }
        samples.truncate(usize::try_from(wanted).unwrap_or(usize::MAX));
        Ok(samples)
    }

    fn without_delay(&mut self, mut samples: Vec<f32>) -> Vec<f32> {
        let delayed = self.delay.min(samples.len());
        samples.drain(..delayed);
        self.delay -= delayed;
        self.given += samples.len() as u64;
        samples
    }
}

fn failed(from_hz: u32, to_hz: u32, error: &dyn std::fmt::Display) -> Error {
    Error::invalid(format!("cannot resample from {from_hz} to {to_hz} Hz: {error}")).in_field("audio")
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
        for part in [1, 777, 5000] {
            let mut resampling = Resampling::new(8000, 16000).unwrap();
            let mut samples: Vec<f32> =
                audio.samples.chunks(part).flat_map(|part| resampling.push(part).unwrap()).collect();
            samples.extend(resampling.finish().unwrap());
            assert!(samples == resampled.samples, "parts of {part}");
        }
        assert!(Resampling::new(0, 16000).is_err() && Resampling::new(16000, 0).is_err());
    }
}
