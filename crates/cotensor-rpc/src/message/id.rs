//! The fields that all messages have: the protocol's version and a request's id.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The longest id of a request, in bytes of its JSON text, quotes included.
pub const ID_BYTES_MAX: usize = 256;

/// The protocol's version, in every message.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Version {
    #[serde(rename = "2.0")]
    Two,
}

/// The id of a request: any JSON number, a string or null. The answer repeats its text.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct Id(Box<RawValue>);

impl Id {
    /// The id of an answer to a request whose id could not be read.
    pub fn null() -> Self {
        Self(RawValue::NULL.to_owned())
    }

    /// The id as an integer, if it is one that fits.
    pub fn as_u64(&self) -> Option<u64> {
        self.0.get().parse().ok()
    }
}

impl From<u64> for Id {
    fn from(number: u64) -> Self {
        // Digits are JSON.
        RawValue::from_string(number.to_string()).map_or_else(|_| Self::null(), Self)
    }
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let text = raw.get();
        match text == "null" || text.starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit()) {
            true if text.len() <= ID_BYTES_MAX => Ok(Self(raw)),
            true => Err(serde::de::Error::custom(format!("an id has at most {ID_BYTES_MAX} bytes"))),
            false => Err(serde::de::Error::custom("an id is a number, a string or null")),
        }
    }
}

/// Tells an id that is null from a missing one.
pub(super) fn present_id<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Id>, D::Error> {
    Id::deserialize(deserializer).map(Some)
}
