//! Structs of options, read from values by name. Programs of all languages give options as JSON.

use cotensor_core::{Error, Result};
use serde::de::value::{MapAccessDeserializer, MapDeserializer};
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, IntoDeserializer, MapAccess};
use serde_json::{Map, Value, map};
use std::fmt;

/// The most characters of a value that an error quotes.
const QUOTED_CHARS_MAX: usize = 40;

/// Names of types in errors of serde, and in those of programs in all languages.
const TYPES: [(&str, &str); 5] = [
    ("usize", "an integer of 0 or more"),
    ("u64", "an integer of 0 or more"),
    ("f32", "a number"),
    ("a boolean", "true or false"),
    ("a sequence", "a list"),
];

/// The struct `T` with the options `given`. `null` is a missing option.
///
/// # Errors
/// `Invalid` for an unknown option and for a value of another type; the error names the option.
pub fn read_options<T: DeserializeOwned>(given: &Map<String, Value>) -> Result<T> {
    let mut entries = Entries { rest: given.iter(), current: None };
    T::deserialize(MapAccessDeserializer::new(&mut entries)).map_err(|error| match entries.current {
        Some((name, value)) => Error::invalid(explained(&error.to_string(), value)).in_field(name),
        None => Error::invalid(error.to_string()),
    })
}

/// The names of the fields of `T`, in their order. `T` refuses unknown fields.
pub fn field_names<T: DeserializeOwned>() -> &'static [&'static str] {
    match T::deserialize(MapDeserializer::<_, Fields>::new([("", ())].into_iter())) {
        Err(Fields(names)) => names,
        Ok(_) => &[],
    }
}

/// The options by name, of which `current` is being read.
struct Entries<'a> {
    rest: map::Iter<'a>,
    current: Option<(&'a String, &'a Value)>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = serde_json::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Self::Error> {
        self.current = self.rest.find(|(_, value)| !value.is_null());
        self.current.map(|(name, _)| seed.deserialize(name.as_str().into_deserializer())).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Self::Error> {
        let (_, value) = self.current.ok_or_else(|| serde_json::Error::custom("a value without a name"))?;
        seed.deserialize(value)
    }
}

/// The message of an error of serde about `value`.
fn explained(message: &str, value: &Value) -> String {
    let expected = message.strip_prefix("invalid ").and_then(|message| message.rsplit_once(", expected "));
    let Some((_, expected)) = expected else { return message.to_owned() };
    let expected = TYPES.iter().find(|(name, _)| *name == expected).map_or(expected, |(_, words)| *words);
    let found = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    format!("{expected} is required, not {}", found.chars().take(QUOTED_CHARS_MAX).collect::<String>())
}

/// The error of a field that a struct does not have, with the fields that it has.
#[derive(Debug)]
struct Fields(&'static [&'static str]);

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the fields are {}", self.0.join(", "))
    }
}

impl std::error::Error for Fields {}

impl serde::de::Error for Fields {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(&[])
    }

    fn unknown_field(_: &str, expected: &'static [&'static str]) -> Self {
        Self(expected)
    }
}
