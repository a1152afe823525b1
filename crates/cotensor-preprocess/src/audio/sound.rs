use cotensor_core::{Error, Result};

/// The longest sound that is read, in seconds.
pub(super) const SECONDS_MAX: u64 = 3600;
/// The largest magnitude of a sample. Float files hold -1 to 1, but some hold the integers of another file.
pub(super) const SAMPLE_MAX: f32 = (1u32 << 31) as f32;
/// The supported sample rates.
pub(super) const RATES_HZ: std::ops::RangeInclusive<u32> = 1000..=768_000;

/// One channel of sound.
#[derive(Clone, Debug, PartialEq)]
pub struct Audio {
    /// Samples per second.
    pub sample_rate_hz: u32,
    /// The samples, from -1 to 1.
    pub samples: Vec<f32>,
}

/// The length of a sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AudioLength {
    /// Samples per second and channel.
    pub sample_rate_hz: u32,
    /// Samples of each channel.
    pub frames: u64,
}

impl AudioLength {
    /// The length in seconds.
    pub fn seconds(&self) -> f64 {
        self.frames as f64 / f64::from(self.sample_rate_hz)
    }

    /// # Errors
    /// `Invalid` for an unsupported rate or length.
    pub(super) fn check(self) -> Result<Self> {
        if !RATES_HZ.contains(&self.sample_rate_hz) {
            return Err(invalid(format!("{} Hz", self.sample_rate_hz)));
        }
        if self.frames == 0 || self.frames > SECONDS_MAX * u64::from(self.sample_rate_hz) {
            return Err(invalid(format!("{} frames; 1 frame to {SECONDS_MAX} seconds can be read", self.frames)));
        }
        Ok(self)
    }
}

pub(super) fn corrupt(message: &str) -> Error {
    Error::corrupt(message).in_field("audio")
}

pub(super) fn invalid(message: String) -> Error {
    Error::invalid(message).in_field("audio")
}

/// Refuses samples whose sums overflow: the crate of the Fourier transform panics on them.
///
/// # Errors
/// `Invalid`, with the index of the first such sample.
pub fn check_samples(samples: &[f32]) -> Result<()> {
    let wrong = |sample: &f32| !sample.is_finite() || sample.abs() > SAMPLE_MAX;
    samples.iter().position(wrong).map_or(Ok(()), |index| {
        let message = format!("sample {index} is {}; numbers up to {SAMPLE_MAX} can be read", samples[index]);
        Err(Error::invalid(message).in_field("audio"))
    })
}
