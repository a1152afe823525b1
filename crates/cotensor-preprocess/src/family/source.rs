//! The values that the inputs of graphs read, as families.toml names them.
//!
//! `pipeline/run.rs` of cotensor-model binds them to the inputs of a stage, `decode.rs` of cotensor-pipeline to those of a decoder.

use cotensor_core::Error;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A type of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Medium {
    /// A text.
    Text,
    /// An image.
    Image,
    /// Audio.
    Audio,
}

impl Medium {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Text, Self::Image, Self::Audio];

    /// The beginning of the names of its sources in families.toml, and the name of its option on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Medium::Text => "text",
            Medium::Image => "image",
            Medium::Audio => "audio",
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The value that an input of a graph reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum Source {
    /// The ids of a text's tokens.
    TextIds,
    /// Which of them are not padding.
    TextMask,
    /// The segment of each token.
    TextTypes,
    /// The position of each token.
    TextPositions,
    /// The number of the task among `lora_adaptations` in config.json, which the prompt names.
    TextTask,
    /// The number of rows of logits of a reranker, one.
    TextLogits,
    /// The preprocessed image.
    ImagePixels,
    /// Which of its pixels are not padding.
    ImageMask,
    /// The preprocessed sound.
    AudioFeatures,
    /// Whether the sound is longer than the model's window.
    AudioLonger,
    /// Which of its features are not padding.
    AudioMask,
    /// The tokens that a decoder reads now, as ids.
    TokenIds,
    /// The same tokens, as embeddings.
    TokenEmbeds,
    /// The mask of these tokens and of those before.
    TokenMask,
    /// The positions of these tokens, in rows.
    TokenPositions,
    /// The positions of these tokens, as a list.
    TokenCachePositions,
    /// The number of rows of logits of a decoder, one.
    TokenLogits,
    /// Whether the decoder has read the prompt.
    CacheFilled,
    /// A cache without rows.
    CacheEmpty,
    /// An output of another stage.
    Stage {
        /// The role of the stage.
        role: String,
        /// The name of the output.
        output: String,
    },
}

/// The sources that are not outputs of stages, with their names.
static NAMES: [(Source, &str); 19] = [
    (Source::TextIds, "text.ids"),
    (Source::TextMask, "text.mask"),
    (Source::TextTypes, "text.types"),
    (Source::TextPositions, "text.positions"),
    (Source::TextTask, "text.task"),
    (Source::TextLogits, "text.logits"),
    (Source::ImagePixels, "image.pixels"),
    (Source::ImageMask, "image.mask"),
    (Source::AudioFeatures, "audio.features"),
    (Source::AudioLonger, "audio.longer"),
    (Source::AudioMask, "audio.mask"),
    (Source::TokenIds, "tokens.ids"),
    (Source::TokenEmbeds, "tokens.embeds"),
    (Source::TokenMask, "tokens.mask"),
    (Source::TokenPositions, "tokens.positions"),
    (Source::TokenCachePositions, "tokens.cache_positions"),
    (Source::TokenLogits, "tokens.logits"),
    (Source::CacheFilled, "cache.filled"),
    (Source::CacheEmpty, "cache.empty"),
];

impl Source {
    /// The output `output` of the stage `role`.
    pub fn stage(role: &str, output: &str) -> Self {
        Self::Stage { role: role.to_owned(), output: output.to_owned() }
    }

    /// The type of input that the value is made of; `None` for values of stages and of a decoder.
    pub fn medium(&self) -> Option<Medium> {
        match self {
            Self::TextIds
            | Self::TextMask
            | Self::TextTypes
            | Self::TextPositions
            | Self::TextTask
            | Self::TextLogits => Some(Medium::Text),
            Self::ImagePixels | Self::ImageMask => Some(Medium::Image),
            Self::AudioFeatures | Self::AudioLonger | Self::AudioMask => Some(Medium::Audio),
            _ => None,
        }
    }

    /// Whether the decoder itself makes the value: its tokens and its cache.
    pub fn is_of_decoder(&self) -> bool {
        matches!(
            self,
            Self::TokenIds
                | Self::TokenEmbeds
                | Self::TokenMask
                | Self::TokenPositions
                | Self::TokenCachePositions
                | Self::TokenLogits
                | Self::CacheFilled
                | Self::CacheEmpty
        )
    }

    /// Whether the value is a mask.
    pub fn is_mask(&self) -> bool {
        matches!(self, Self::TextMask | Self::ImageMask | Self::AudioMask | Self::TokenMask)
    }

    /// The role of the stage that gives the value.
    pub fn role(&self) -> Option<&str> {
        match self {
            Self::Stage { role, .. } => Some(role),
            _ => None,
        }
    }
}

impl FromStr for Source {
    type Err = Error;

    /// # Errors
    /// `Invalid` for an unknown name and for a name without an output.
    fn from_str(name: &str) -> Result<Self, Error> {
        if let Some((source, _)) = NAMES.iter().find(|(_, known)| *known == name) {
            return Ok(source.clone());
        }
        let unknown = || Error::invalid(format!("{name:?} is not a source: ROLE.OUTPUT, or one of {}", known_names()));
        let (role, output) = name.split_once('.').ok_or_else(unknown)?;
        // The beginnings of known names are not roles.
        let is_taken = NAMES.iter().any(|(_, known)| known.split('.').next() == Some(role));
        if is_taken || role.is_empty() || output.is_empty() { Err(unknown()) } else { Ok(Self::stage(role, output)) }
    }
}

fn known_names() -> String {
    NAMES.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stage { role, output } => write!(f, "{role}.{output}"),
            other => f.write_str(NAMES.iter().find(|(source, _)| source == other).map_or("", |(_, name)| name)),
        }
    }
}

impl TryFrom<String> for Source {
    type Error = Error;

    fn try_from(name: String) -> Result<Self, Error> {
        name.parse()
    }
}

impl From<Source> for String {
    fn from(source: Source) -> Self {
        source.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sources_survive_a_round_trip_and_unknown_ones_are_refused() {
        for (source, name) in &NAMES {
            assert_eq!((name.parse::<Source>().unwrap(), source.to_string().as_str()), (source.clone(), *name));
        }
        let encoded: Source = "encoder.last_hidden_state".parse().unwrap();
        assert_eq!(encoded, Source::stage("encoder", "last_hidden_state"));
        assert_eq!(encoded.to_string(), "encoder.last_hidden_state");
        for unknown in ["text.idz", "text", "", ".ids", "encoder.", "cache."] {
            let error = unknown.parse::<Source>().unwrap_err();
            assert!(error.message().contains("text.ids"), "{error}");
        }
    }
}
