use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// The meaning of a tensor. Models may share tensors of one kind; they can if the [`Space`](crate::Space) is equal,
/// too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// A text encoder's output.
    TextEmbedding,
    /// An image encoder's output.
    VisionEmbedding,
    /// An audio encoder's output.
    AudioEmbedding,
    /// An embedding in a space that images and texts have in common.
    VisionTextJoint,
    /// An embedding in a space that sounds and texts have in common.
    AudioTextJoint,
    /// A parameter of a model.
    Weight,
    /// Any other tensor: logits, caches, tensors of users.
    Other,
}

impl Kind {
    /// Every kind.
    pub const ALL: &'static [Kind] = &[
        Kind::TextEmbedding,
        Kind::VisionEmbedding,
        Kind::AudioEmbedding,
        Kind::VisionTextJoint,
        Kind::AudioTextJoint,
        Kind::Weight,
        Kind::Other,
    ];

    /// The name used in files and on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::TextEmbedding => "text_embedding",
            Kind::VisionEmbedding => "vision_embedding",
            Kind::AudioEmbedding => "audio_embedding",
            Kind::VisionTextJoint => "vision_text_joint",
            Kind::AudioTextJoint => "audio_text_joint",
            Kind::Weight => "weight",
            Kind::Other => "other",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Kind::ALL
            .iter()
            .copied()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| Error::invalid(format!("unknown tensor kind {name:?}")))
    }
}
