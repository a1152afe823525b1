//! The inputs of a task: a text, an image and a sound.

use super::input_file::InputFile;
use super::input_image::InputImage;
use cotensor_core::{ContentHash, Error, Hasher, Result};
use cotensor_preprocess::family::Medium;
use std::sync::Arc;

/// A text, an image and a sound, as far as they are given. Cloning shares the files.
#[derive(Clone, Debug, Default)]
pub struct InputData {
    /// The text.
    pub text: Option<String>,
    /// The image.
    pub image: Option<Arc<InputImage>>,
    /// The sound: WAV, FLAC, MP3 or Ogg Vorbis.
    pub audio: Option<Arc<InputFile>>,
}

impl InputData {
    /// Whether an input of type `medium` is given.
    pub fn has(&self, medium: Medium) -> bool {
        match medium {
            Medium::Text => self.text.is_some(),
            Medium::Image => self.image.is_some(),
            Medium::Audio => self.audio.is_some(),
        }
    }

    /// The text.
    ///
    /// # Errors
    /// `Invalid` without a text.
    pub fn text(&self) -> Result<&str> {
        self.text.as_deref().ok_or_else(|| Error::invalid("this pipeline needs a text (--text)"))
    }

    /// The image.
    ///
    /// # Errors
    /// `Invalid` without an image.
    pub fn image(&self) -> Result<&InputImage> {
        self.image.as_deref().ok_or_else(|| Error::invalid("this pipeline needs an image (--image)"))
    }

    /// The sound.
    ///
    /// # Errors
    /// `Invalid` without a sound.
    pub fn audio(&self) -> Result<&InputFile> {
        self.audio.as_deref().ok_or_else(|| Error::invalid("this pipeline needs an audio file (--audio)"))
    }

    /// The hash of all inputs.
    pub fn identity(&self) -> ContentHash {
        let mut hasher = Hasher::new("cotensor inputs v1");
        hasher.field(self.text.as_deref().unwrap_or_default().as_bytes());
        let hashes = [self.image.as_ref().map(|image| image.hash()), self.audio.as_ref().map(|file| file.hash())];
        for hash in &hashes {
            hasher.field(hash.as_ref().map_or(&[][..], |hash| hash.as_bytes()));
        }
        hasher.finish()
    }
}
