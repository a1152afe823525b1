//! Rewrites the values of arguments for the provider, from text to text: a number as a `serde_json::Value` occupies up to
//! 40 times its text.

use cotensor_client::protocol::provider::TensorRef;
use cotensor_core::{Error, Result};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::Serialize;
use serde_json::value::RawValue;
use std::fmt;

/// The most bytes of a caller's name in an error.
const NAME_SHOWN_BYTES_MAX: usize = 64;

/// The least magnitude of an integer that no type of 64 bits has.
const WIDE: f64 = 9_223_372_036_854_775_808.0;

/// The numbers of a JSON text, as they are written, in their order.
struct Numbers<'t>(&'t str);

impl<'t> Iterator for Numbers<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        let (bytes, mut start) = (self.0.as_bytes(), 0);
        loop {
            match bytes.get(start)? {
                b'"' => start = end_of_string(bytes, start),
                b'-' | b'0'..=b'9' => break,
                _ => start += 1,
            }
        }
        let rest = &self.0[start..];
        let is_after = |letter: char| !letter.is_ascii_digit() && !"+-.eE".contains(letter);
        let (number, rest) = rest.split_at(rest.find(is_after).unwrap_or(rest.len()));
        self.0 = rest;
        Some(number)
    }
}

/// The position behind the JSON string that begins at `start`.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Reads a tensor as the caller wrote it: a text or an object.
type ReadTensor<'a> = dyn FnMut(&RawValue) -> Result<TensorRef> + 'a;

/// Rewrites a value. `read_tensor` reads each tensor and returns the provider's reference to it.
///
/// # Errors
/// `Invalid` with the place of a value as the field; those of `read_tensor`.
pub(super) fn rewrite(value: &RawValue, read_tensor: &mut ReadTensor<'_>) -> Result<Box<RawValue>> {
    let mut rewriting = Rewriting {
        numbers: Numbers(value.get()),
        read_tensor,
        text: Vec::with_capacity(value.get().len()),
        error: None,
    };
    let read = Next(&mut rewriting).deserialize(&mut serde_json::Deserializer::from_str(value.get()));
    let invalid = |error: &serde_json::Error| Error::invalid(error.to_string());
    read.map_err(|error| rewriting.error.take().unwrap_or_else(|| invalid(&error)))?;
    let text = String::from_utf8(rewriting.text).map_err(|error| Error::invalid(error.to_string()))?;
    RawValue::from_string(text).map_err(|error| invalid(&error))
}

/// The error with a place before its field.
pub(super) fn within(error: &Error, place: &str) -> Error {
    let place = shortened(place);
    let place = error.field().map_or_else(|| place.to_owned(), |field| format!("{place}.{field}"));
    Error::new(error.kind(), error.message()).in_field(place)
}

/// The start of a name of the caller's, which may be long.
fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_SHOWN_BYTES_MAX)]
}

struct Rewriting<'a> {
    /// The numbers that are not rewritten yet. The parser gives a number's value, but not whether it was written as an integer.
    numbers: Numbers<'a>,
    read_tensor: &'a mut ReadTensor<'a>,
    text: Vec<u8>,
    /// The error of a value.
    error: Option<Error>,
}

impl Rewriting<'_> {
    fn write<E: serde::de::Error>(&mut self, value: impl Serialize) -> Result<(), E> {
        serde_json::to_writer(&mut self.text, &value).map_err(E::custom)
    }

    /// Writes a number, the next one of the text.
    fn write_number<E: serde::de::Error>(&mut self, value: impl Serialize) -> Result<(), E> {
        self.numbers.next();
        self.write(value)
    }

    /// Keeps an error until the end: the parser's own errors have no kind.
    fn fail<T, E: serde::de::Error>(&mut self, error: Error) -> Result<T, E> {
        self.error.get_or_insert(error);
        Err(E::custom("a value is wrong"))
    }

    /// Adds the place of a value to its error.
    fn in_place<T, E>(&mut self, read: Result<T, E>, place: impl FnOnce() -> String) -> Result<T, E> {
        if read.is_err() {
            self.error = self.error.take().map(|error| within(&error, &place()));
        }
        read
    }

    /// Ends a list or an object: replaces the comma after the last element.
    fn end(&mut self, count: usize, bracket: u8) {
        if count > 0 {
            self.text.pop();
        }
        self.text.push(bracket);
    }

    /// The value of an object that has only a key with `$`, after that key.
    fn special<'de, A: MapAccess<'de>>(&mut self, form: &str, map: &mut A) -> Result<(), A::Error> {
        if form == "$tensor" {
            let written: &RawValue = map.next_value()?;
            for _ in Numbers(written.get()) {
                self.numbers.next();
            }
            return match (self.read_tensor)(written) {
                Ok(tensor) => self.write(tensor),
                Err(error) => self.fail(error),
            };
        }
        let start = self.text.len();
        map.next_value_seed(Next(self))?;
        let value = &self.text[start..];
        let is_right = match form {
            "$tuple" | "$map" => value.starts_with(b"["),
            "$bytes" => value.starts_with(b"\"") || value.starts_with(br#"{"$tensor":"#),
            "$float" => value.starts_with(b"\""),
            _ => false,
        };
        if is_right {
            return Ok(());
        }
        let form = shortened(form);
        self.fail(Error::invalid(format!("{form:?} is not a form of $tensor, $tuple, $map, $bytes or $float")))
    }
}

/// The next value.
struct Next<'r, 'a>(&'r mut Rewriting<'a>);

impl<'de> DeserializeSeed<'de> for Next<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        // The parser bounds the depth.
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Next<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.0.write(())
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        self.0.write(value)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.0.write_number(value)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.0.write_number(value)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        // The parser reads an integer that is too wide as a float.
        let is_integer = self.0.numbers.next().is_some_and(|number| !number.contains(['.', 'e', 'E']));
        if is_integer && value.abs() >= WIDE {
            let message = "an integer of more than 64 bits: write a float with a point or an exponent, or a text";
            return self.0.fail(Error::invalid(message));
        }
        self.0.write(value)
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        self.0.write(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.0.text.push(b'[');
        let mut count = 0;
        loop {
            let read = list.next_element_seed(Next(self.0));
            if self.0.in_place(read, || count.to_string())?.is_none() {
                break;
            }
            self.0.text.push(b',');
            count += 1;
        }
        self.0.end(count, b']');
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.0.text.push(b'{');
        let mut count = 0;
        while let Some(key) = map.next_key::<String>()? {
            self.0.write(&key)?;
            self.0.text.push(b':');
            if key.starts_with('$') {
                if count == 0 {
                    self.0.special(&key, &mut map)?;
                }
                if count > 0 || map.next_key::<IgnoredAny>()?.is_some() {
                    let key = shortened(&key);
                    let message =
                        format!("the key {key:?} begins with $: write the map as {{\"$map\": [[key, value], …]}}");
                    return self.0.fail(Error::invalid(message));
                }
                self.0.text.push(b',');
            } else {
                let read = map.next_value_seed(Next(self.0));
                self.0.in_place(read, || key)?;
                self.0.text.push(b',');
            }
            count += 1;
        }
        self.0.end(count, b'}');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_client::protocol::Id;

    #[test]
    fn integers_beyond_64_bits_are_refused_and_floats_are_kept() {
        let rewritten = |text: &str| {
            let value: Box<RawValue> = serde_json::from_str(text).unwrap();
            let id = Id { name_id: 1, version: 2 };
            let mut tensor = |_: &RawValue| Ok(TensorRef { id, dtype: "uint8".to_owned(), shape: Vec::new() });
            rewrite(&value, &mut tensor).map(|value| value.get().to_owned())
        };
        for wide in [
            "18446744073709551616",
            "-9223372036854775809",
            r#"{"x":[1,100000000000000000000000]}"#,
            r#"["\"1.5",true,18446744073709551616]"#,
            r#"[{"$tensor":{"data":[1.5,2.5]}},18446744073709551616]"#,
        ] {
            let error = rewritten(wide).unwrap_err();
            assert!(error.message().contains("64 bits"), "{wide}: {error}");
        }
        assert!(rewritten("[1,1e400]").is_err(), "no float either");
        for (text, kept) in [
            ("18446744073709551615", "18446744073709551615"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("1e30", "1e+30"),
            ("18446744073709551616.0", "1.8446744073709552e+19"),
            // Digits in a text and in a tensor are no number of the list.
            (
                r#"["18446744073709551616",18446744073709551616.0]"#,
                r#"["18446744073709551616",1.8446744073709552e+19]"#,
            ),
            (
                r#"{"18446744073709551616":["\"\\",1.8446744073709552e19]}"#,
                r#"{"18446744073709551616":["\"\\",1.8446744073709552e+19]}"#,
            ),
        ] {
            assert_eq!(rewritten(text).unwrap(), kept);
        }
        let beside = rewritten(r#"[{"$tensor":{"data":[18446744073709551616]}},18446744073709551616.0]"#).unwrap();
        assert!(beside.ends_with("},1.8446744073709552e+19]"), "{beside}");
    }

    /// One look at the whole text for each number would take hours.
    #[test]
    fn large_floats_are_rewritten_in_linear_time() {
        let text = format!("[{}-3.4e38]", "-3.4e38,".repeat(500_000));
        let value = RawValue::from_string(text).unwrap();
        let rewritten = rewrite(&value, &mut |_| Err(Error::invalid("no tensor"))).unwrap();
        assert_eq!(rewritten.get().matches("-3.4e+38").count(), 500_001);
    }
}
