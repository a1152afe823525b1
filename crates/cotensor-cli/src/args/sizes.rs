//! Sizes with units.

/// Units of sizes: decimal and binary.
const UNITS: [(&str, u64); 10] = [
    ("", 1),
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

/// Parses a number of bytes with a unit; without one, it is in bytes.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || "expected a number of bytes above 0, such as 4GiB, 500MB or 1000000".to_owned();
    let end = text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.to_ascii_lowercase();
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let bytes = number.trim().parse::<f64>().map_err(|_| wrong())? * *factor as f64;
    if (1.0..=(1u64 << 60) as f64).contains(&bytes) { Ok(bytes.round() as u64) } else { Err(wrong()) }
}

pub(super) fn bytes_per_second(text: &str) -> Result<u64, String> {
    bytes(text.strip_suffix("/s").unwrap_or(text)).map_err(|_| "expected bytes per second, such as 12GB/s".to_owned())
}

/// Parses a size with a unit; without one, it is in MiB.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let in_mib = text.trim().bytes().all(|byte| byte.is_ascii_digit()) && !text.trim().is_empty();
    let given = if in_mib { format!("{}MiB", text.trim()) } else { text.to_owned() };
    bytes(&given).map_err(|_| "expected a size above 0, such as 4GiB or 500MB; without a unit in MiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_decimal_and_binary_units() {
        for (text, expected) in [
            ("4GiB", 4 << 30),
            ("1.5kb", 1500),
            ("7", 7),
            ("2 MB", 2_000_000),
            ("12GB", 12_000_000_000),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "0", "-1", "GiB", "4XB", "nan", "inf", "1e30", "4 GiB/s"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert_eq!((size("4"), size("4GiB"), size("1.5 MiB")), (Ok(4 << 20), Ok(4 << 30), Ok(3 << 19)));
        assert!(size("0").is_err() && size("").is_err() && size("99999999999999999999").is_err());
        assert_eq!(bytes_per_second("12GB/s"), Ok(12_000_000_000));
        assert_eq!(bytes_per_second("1MiB"), Ok(1 << 20));
    }
}
