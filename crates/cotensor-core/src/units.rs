//! Sizes, rates and times as texts: for messages and tables, and from command lines, variables and files.

use crate::{Error, Result};
use std::time::Duration;

/// Factors of the prefixes of a byte: decimal ones, and binary ones with an `i`.
const PREFIXES: [(&str, u64); 9] = [
    ("", 1),
    ("k", 1_000),
    ("m", 1_000_000),
    ("g", 1_000_000_000),
    ("t", 1_000_000_000_000),
    ("ki", 1 << 10),
    ("mi", 1 << 20),
    ("gi", 1 << 30),
    ("ti", 1 << 40),
];
/// Seconds of the units of time.
const TIMES: [(&str, f64); 9] = [
    ("", 1.0),
    ("us", 1e-6),
    ("\u{b5}s", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("min", 60.0),
    ("h", 3600.0),
    ("d", 86400.0),
];
/// The largest size.
const SIZE_MAX: f64 = (1u64 << 60) as f64;

/// A number of bytes with three digits and a binary unit: `500 MiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let Some(power) = bytes.checked_ilog2().map(|log| log as usize / 10).filter(|&power| power > 0) else {
        return format!("{bytes} B");
    };
    let value = bytes as f64 / f64::from(1u32 << 10).powi(i32::try_from(power).unwrap_or(0));
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {}", units[power - 1])
}

/// Parses a size above 0, such as `4GiB`, `500 MB` or `1.5g`, as bytes. `K`, `M`, `G` and `T` are powers of 1000, with an `i` powers
/// of 1024; a `B` may follow. A number without a unit is refused, because it would have to be guessed.
///
/// # Errors
/// `Invalid`.
pub fn parse_size(text: &str) -> Result<u64> {
    let wrong = || Error::invalid("expected a size above 0 with a unit, such as 4GiB, 500MB or 4096B");
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    if unit.is_empty() {
        let number = text.trim();
        return Err(Error::invalid(format!(
            "{number} has no unit: write {number}MiB, {number}GB, or {number}B for bytes"
        )));
    }
    let unit = unit.to_ascii_lowercase();
    let prefix = unit.strip_suffix('b').unwrap_or(&unit);
    let (_, factor) = PREFIXES.iter().find(|(name, _)| *name == prefix).ok_or_else(wrong)?;
    let bytes = number * *factor as f64;
    if (1.0..=SIZE_MAX).contains(&bytes) { Ok(bytes.round() as u64) } else { Err(wrong()) }
}

/// Parses a rate above 0, such as `12GB/s`, as bytes per second. The units are those of [`parse_size`]; `/s` may be left out.
///
/// # Errors
/// `Invalid`.
pub fn parse_rate(text: &str) -> Result<u64> {
    let size = text.trim_end().strip_suffix("/s").unwrap_or(text);
    let reason = |error: Error| match number_and_unit(size) {
        Some((_, "")) => error,
        _ => Error::invalid("expected bytes per second with a unit, such as 12GB/s"),
    };
    parse_size(size).map_err(reason)
}

/// Parses a time, such as `500ms`, `30s`, `10min`, `2h` or `7d`. A number without a unit is in seconds.
///
/// # Errors
/// `Invalid`.
pub fn parse_time(text: &str) -> Result<Duration> {
    let wrong =
        || Error::invalid("expected a time such as 500ms, 30s, 10min or 2h; a number without a unit is in seconds");
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    let (_, seconds) = TIMES.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

/// A number without a sign and an exponent, and the text after it.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_decimal_and_binary_units() {
        for (text, expected) in [
            ("4GiB", 4 << 30),
            ("4G", 4_000_000_000),
            ("4 GB", 4_000_000_000),
            ("4gi", 4 << 30),
            (" 1.5kb ", 1500),
            ("7B", 7),
            ("7 b", 7),
            ("2 MB", 2_000_000),
            ("1TiB", 1 << 40),
            (".5MiB", 1 << 19),
        ] {
            assert_eq!(parse_size(text).unwrap(), expected, "{text}");
        }
        for text in
            ["", "0B", "-1B", "GiB", "4XB", "nan", "inf", "1e30B", "4 GiB/s", "4iB", "0.1B", "2000000TiB", "1.2.3MB"]
        {
            let error = parse_size(text).unwrap_err();
            assert!(error.message().contains("4GiB"), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_and_rates_without_units_are_refused() {
        for text in ["4", "0", " 64 ", "1.5"] {
            for error in [parse_size(text).unwrap_err(), parse_rate(text).unwrap_err()] {
                assert!(error.message().contains(&format!("{}MiB", text.trim())), "{text}: {error}");
            }
        }
        assert_eq!(parse_rate("12GB/s").unwrap(), 12_000_000_000);
        assert_eq!(parse_rate("12 G/s").unwrap(), 12_000_000_000);
        assert_eq!(parse_rate("1MiB").unwrap(), 1 << 20);
        for text in ["fast", "12GB/min", "0B/s", "12/s2"] {
            assert!(parse_rate(text).unwrap_err().message().contains("12GB/s"), "{text}");
        }
    }

    #[test]
    fn times_have_units_and_are_in_seconds_without() {
        for (text, millis) in [
            ("10", 10_000),
            ("0", 0),
            ("0.5", 500),
            ("500ms", 500),
            ("1000 us", 1),
            ("2000\u{b5}s", 2),
            ("30 s", 30_000),
            ("10min", 600_000),
            ("1m", 60_000),
            ("1.5h", 5_400_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(parse_time(text).unwrap().as_millis(), millis, "{text}");
        }
        for text in ["", "s", "-1", "1 week", "nan", "inf", "1e3", "1h30m", "99999999999999999999999"] {
            assert!(parse_time(text).unwrap_err().message().contains("10min"), "{text}");
        }
    }

    #[test]
    fn size_has_three_digits_and_a_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (10 << 10, "10.0 KiB"),
            (500 << 20, "500 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
