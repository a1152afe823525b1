//! Numbers for messages and tables.

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

#[cfg(test)]
mod tests {
    use super::*;

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
