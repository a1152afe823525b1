use super::encoded::Foreign;
use crate::graph::key::input_key;
use crate::model::{Model, StageSource};
use crate::stage::{Computation, compute_once};
use crate::tensor::{Array, Value};
use cotensor_core::{ContentHash, Error, Kind, Result};
use cotensor_pipeline::{INPUT_BYTES_MAX, InputData, InputFile, InputImage, LongSound, User};
use cotensor_preprocess::family::Medium;
use cotensor_store::{Holder, Key};
use std::path::Path;
use std::sync::Arc;

/// The inputs of all users of a pipeline. Each file is read once.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    data: InputData,
    features: Option<Value>,
    foreign: Vec<Foreign>,
}

fn open(path: &Path) -> Result<InputFile> {
    InputFile::new(path, crate::folder::read_bounded(path, INPUT_BYTES_MAX)?)
}

impl Inputs {
    /// Sets the text.
    #[must_use]
    pub fn with_text(mut self, text: impl Into<String>) -> Self {
        self.data.text = Some(text.into());
        self
    }

    /// Reads the image file (PNG, JPEG, WebP or BMP).
    ///
    /// # Errors
    /// `NotFound`, `Io`, or `Invalid` past the size limit.
    pub fn with_image(mut self, path: &Path) -> Result<Self> {
        self.data.image = Some(Arc::new(InputImage::from(open(path)?)));
        Ok(self)
    }

    /// As [`with_image`](Self::with_image), with the bytes of the file.
    ///
    /// # Errors
    /// `Invalid` past the size limit.
    pub fn with_image_bytes(mut self, bytes: Vec<u8>) -> Result<Self> {
        self.data.image = Some(Arc::new(InputImage::from(InputFile::new("image", bytes)?)));
        Ok(self)
    }

    /// Sets the image to pixels of three or four bytes, with width and height. Running a task that reads the image checks them.
    #[must_use]
    pub fn with_image_pixels(mut self, pixels: Vec<u8>, size: (u32, u32)) -> Self {
        self.data.image = Some(Arc::new(InputImage::of_pixels(pixels, size)));
        self
    }

    /// As [`with_audio`](Self::with_audio), with the bytes of the file.
    ///
    /// # Errors
    /// `Invalid` past the size limit.
    pub fn with_audio_bytes(mut self, bytes: Vec<u8>) -> Result<Self> {
        self.data.audio = Some(Arc::new(InputFile::new("audio", bytes)?));
        Ok(self)
    }

    /// Reads the audio file (WAV, FLAC, MP3 or Ogg Vorbis).
    ///
    /// # Errors
    /// As [`Inputs::with_image`].
    pub fn with_audio(mut self, path: &Path) -> Result<Self> {
        self.data.audio = Some(Arc::new(open(path)?));
        Ok(self)
    }

    /// Sets the features of a sound, in place of an audio file.
    #[must_use]
    pub(super) fn with_features(mut self, features: Value) -> Self {
        self.features = Some(features);
        self
    }

    /// Adds the output of another model's encoder.
    #[must_use]
    pub(super) fn with_foreign(mut self, foreign: Foreign) -> Self {
        self.foreign.push(foreign);
        self
    }

    pub(super) fn foreign(&self) -> &[Foreign] {
        &self.foreign
    }

    /// The types of the inputs, also of those that an encoder has read.
    pub fn media(&self) -> Vec<Medium> {
        let is_read = |medium: &Medium| self.foreign.iter().any(|foreign| foreign.medium == *medium);
        Medium::ALL.into_iter().filter(|medium| is_read(medium) || self.data.has(*medium)).collect()
    }

    /// The text.
    ///
    /// # Errors
    /// `Invalid` without a text.
    pub fn text(&self) -> Result<&str> {
        self.data.text()
    }

    /// The texts of the user, or the input text if the user has none.
    pub(super) fn texts_of<'a>(&'a self, user: &'a User) -> Result<Vec<&'a str>> {
        user.texts_or(self.data.text())
    }

    /// The hash of all inputs.
    pub(crate) fn identity(&self) -> ContentHash {
        self.data.identity()
    }

    /// The image, preprocessed for `model`: `[1, 3, height, width]`, and whether this call preprocessed it. Shared like
    /// the result of a stage.
    ///
    /// # Errors
    /// `Invalid` without an image, `Corrupt` when it cannot be decoded.
    pub(crate) fn pixels(&self, model: &Model, holder: &Holder) -> Result<(Value, bool)> {
        let (image, processor) = (self.data.image()?, model.image()?);
        prepared(model, holder, image.hash(), "image", processor.fingerprint(), || image.pixels(processor))
    }

    /// Whether there is an image; an image that an encoder has read may be missing.
    pub(super) fn has_image(&self) -> bool {
        self.data.image.is_some()
    }

    /// Width and height of the image before preprocessing, in pixels.
    ///
    /// # Errors
    /// As [`Inputs::pixels`].
    pub(crate) fn image_size(&self) -> Result<(u32, u32)> {
        self.data.image()?.size()
    }

    /// As [`InputImage::mask`].
    ///
    /// # Errors
    /// As [`Inputs::pixels`] and [`InputImage::mask`].
    pub(crate) fn mask(&self, model: &Model, dims: Option<&[Option<usize>]>) -> Result<Value> {
        self.data.image()?.mask(model.image()?, dims).map(Value::from)
    }

    /// The features of the audio for `model`, `[1, mel bins, frames]`, whether this call computed them, and notices
    /// about changes of the audio. Shared like the result of a stage.
    ///
    /// # Errors
    /// As [`Inputs::pixels`].
    pub(crate) fn features(&self, model: &Model, holder: &Holder) -> Result<(Value, bool, Vec<String>)> {
        if let Some(features) = &self.features {
            return Ok((features.clone(), true, Vec::new()));
        }
        let (file, processor) = (self.data.audio()?, model.audio()?);
        let prepare = || file.features(processor, &model.model_config());
        let (features, computed) = prepared(model, holder, file.hash(), "audio", processor.fingerprint(), prepare)?;
        Ok((features, computed, file.audio_notices(processor)?))
    }

    /// The audio, if it is longer than the window of a model that reads sounds window by window.
    ///
    /// # Errors
    /// As [`Inputs::pixels`].
    pub(super) fn long_sound(&self, model: &Model) -> Result<Option<LongSound<'_>>> {
        let Some(file) = self.data.audio.as_deref().filter(|_| self.foreign.is_empty()) else { return Ok(None) };
        file.long_sound(model.audio()?)
    }

    /// As [`InputFile::is_longer`].
    ///
    /// # Errors
    /// `Invalid` without an audio file, or as [`InputFile::is_longer`].
    pub(crate) fn is_longer(&self, model: &Model) -> Result<Value> {
        self.data.audio()?.is_longer(model.audio()?).map(Value::from)
    }
}

/// Preprocesses an input once per content and preprocessing; a private copy of a model preprocesses each time. Also
/// returns whether this call did.
fn prepared(
    model: &Model,
    holder: &Holder,
    content: ContentHash,
    label: &str,
    preprocessing: ContentHash,
    prepare: impl FnOnce() -> Result<Array>,
) -> Result<(Value, bool)> {
    let StageSource::Shared(loader) = model.source() else {
        return Ok((Value::from(prepare()?), true));
    };
    let key = Key(input_key(label, preprocessing, content));
    let labels = [format!("{label} input")];
    let store = &**loader.store();
    let computation = Computation { store, key, space: None, kind: Kind::Other, labels: &labels, holder };
    let (mut values, computed) = compute_once(&computation, |_| Ok(vec![prepare()?.into()]))?;
    let value = values.pop().ok_or_else(|| Error::not_found("the store lost a preprocessed input"))?;
    Ok((value, computed))
}
