//! Fields of the configuration of a feature extractor.

use super::sound::RATES_HZ;
use cotensor_core::{Error, Result};
use serde_json::Value;
use std::ops::RangeInclusive;

/// The sizes of a Fourier transform, in samples.
pub(super) const WINDOW: RangeInclusive<u64> = 2..=65_536;

/// The highest sample rate.
pub(super) const RATE_HZ_MAX: u64 = *RATES_HZ.end() as u64;

/// The sample rate of the configuration, or `missing`.
///
/// # Errors
/// As [`number`].
pub(super) fn sample_rate_hz(config: &Value, missing: u64) -> Result<usize> {
    number(config, "sampling_rate", missing, u64::from(*RATES_HZ.start())..=RATE_HZ_MAX)
}

/// A number of the configuration, or `missing`.
///
/// # Errors
/// `Invalid` for something else than a whole number in `range`.
pub(super) fn number(config: &Value, field: &str, missing: u64, range: RangeInclusive<u64>) -> Result<usize> {
    // Some configurations have 50.0 for 50.
    let whole =
        |value: &Value| value.as_u64().or_else(|| value.as_f64().filter(|n| n.fract() == 0.0).map(|n| n as u64));
    let value = config.get(field).map_or(Some(missing), whole).filter(|value| range.contains(value));
    value.map(|value| value as usize).ok_or_else(|| {
        Error::invalid(format!("a number from {} to {} is required", range.start(), range.end())).in_field(field)
    })
}
