//! Integers that JSON readers would change silently.

use cotensor_core::{Error, Result};

/// Refuses JSON with an integer of more than 64 bits, which `serde_json` would read as a float with fewer digits.
///
/// Other faults of `json` are left to its reader.
///
/// # Errors
/// `Invalid` naming the number.
pub fn check_integers(json: &str) -> Result<()> {
    let bytes = json.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        at += 1;
        match byte {
            b'"' => {
                while let Some(&byte) = bytes.get(at) {
                    at += if byte == b'\\' { 2 } else { 1 };
                    if byte == b'"' {
                        break;
                    }
                }
            }
            b'-' | b'0'..=b'9' => {
                while bytes.get(at).is_some_and(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-')) {
                    at += 1;
                }
                check(&json[start..at])?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn check(number: &str) -> Result<()> {
    // Shorter integers always fit.
    if number.len() < 19 || number.contains(['.', 'e', 'E']) {
        return Ok(());
    }
    let fits = number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok();
    if fits {
        return Ok(());
    }
    let start: String = number.chars().take(40).collect();
    Err(Error::invalid(format!("the integer {start} has more than 64 bits: send it as a string or a float")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_beyond_64_bits_are_refused_at_any_depth() {
        for good in [
            "",
            "0",
            "-9223372036854775808",
            "18446744073709551615",
            "[1.8446744073709551616e19, 18446744073709551616.0, 1E400]",
            r#"{"18446744073709551616": "-99999999999999999999\"18446744073709551616", "a\\": 5}"#,
            "\"\\",
            "\"18446744073709551616",
        ] {
            check_integers(good).unwrap();
        }
        let long = "9".repeat(100_000);
        for wrong in [
            "18446744073709551616",
            "-9223372036854775809",
            r#"{"a": [1, {"\"b\\": [-99999999999999999999]}]}"#,
            r#"["18446744073709551616",18446744073709551616]"#,
            &long,
        ] {
            let error = check_integers(wrong).unwrap_err();
            assert!(error.message().contains("64 bits") && error.message().len() < 200, "{error}");
        }
    }
}
