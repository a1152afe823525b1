//! Measured numbers in JSON. It has none that are not finite: these are texts, which `f64`, Python's `float` and JavaScript's `Number`
//! read. What was not measured is `null`.

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};

/// The text of a number that is not finite.
pub fn not_finite(number: f64) -> Option<&'static str> {
    match number {
        number if number.is_finite() => None,
        number if number.is_nan() => Some("NaN"),
        number if number > 0.0 => Some("Infinity"),
        _ => Some("-Infinity"),
    }
}

pub(crate) fn serialize<S: Serializer>(number: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match number.and_then(not_finite) {
        Some(text) => serializer.serialize_str(text),
        None => number.serialize(serializer),
    }
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Number {
    Finite(f64),
    Text(String),
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    Ok(match Option::<Number>::deserialize(deserializer)? {
        None => None,
        Some(Number::Finite(number)) => Some(number),
        Some(Number::Text(text)) => {
            let number = text.parse().ok().filter(|number| not_finite(*number) == Some(&text));
            Some(number.ok_or_else(|| D::Error::custom(format!("{text:?} is not a measured number")))?)
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::quantized::OutputErrors;

    #[test]
    fn numbers_that_are_not_finite_differ_from_what_was_not_measured() {
        for (number, text) in [
            (None, "null"),
            (Some(0.25), "0.25"),
            (Some(f64::NAN), "\"NaN\""),
            (Some(f64::INFINITY), "\"Infinity\""),
            (Some(f64::NEG_INFINITY), "\"-Infinity\""),
        ] {
            let json =
                serde_json::to_string(&OutputErrors { output_error: number, ..OutputErrors::default() }).unwrap();
            assert!(json.contains(&format!("\"output_error\":{text},")), "{json}");
            let read: OutputErrors = serde_json::from_str(&json).unwrap();
            assert_eq!(read.output_error.map(f64::to_bits), number.map(f64::to_bits), "{json}");
            assert_eq!(read.cosine, None);
        }
        assert_eq!(serde_json::from_str::<OutputErrors>("{\"top1\":1}").unwrap().top1, Some(1.0));
        for wrong in ["\"1.5\"", "\"nan\"", "\"\"", "true", "[1]"] {
            assert!(serde_json::from_str::<OutputErrors>(&format!("{{\"cosine\":{wrong}}}")).is_err(), "{wrong}");
        }
    }
}
