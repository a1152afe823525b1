use super::adapted::{Foreign, Medium};
use super::definition::User;
use crate::graph::key::input_key;
use crate::model::{Model, StageSource};
use crate::stage::{Computation, compute_once};
use crate::tensor::{Array, Value};
use cotensor_core::{ContentHash, Error, Hasher, Kind, Result, size};
use cotensor_preprocess::{
    Audio, AudioProcessor, AudioWindows, SoundReader, audio_length, decode_audio_start, decode_image, image_size,
    resample,
};
use cotensor_store::{Holder, Key};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most bytes of an input file.
const INPUT_BYTES_MAX: u64 = 1 << 30;

/// The most pixels of a mask whose size a graph fixes.
const MASK_PIXELS_MAX: usize = 1 << 24;

/// The inputs of all users of a pipeline. Each file is read once.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    text: Option<String>,
    image: Option<Arc<InputFile>>,
    audio: Option<Arc<InputFile>>,
    features: Option<Value>,
    foreign: Vec<Foreign>,
}

#[derive(Debug)]
struct InputFile {
    path: PathBuf,
    bytes: Vec<u8>,
    hash: ContentHash,
}

impl InputFile {
    fn open(path: &Path) -> Result<Self> {
        let bytes = crate::folder::read_bounded(path, INPUT_BYTES_MAX)?;
        Ok(Self { path: path.to_path_buf(), hash: ContentHash::of(&bytes), bytes })
    }

    fn of(name: &str, bytes: Vec<u8>) -> Result<Self> {
        if bytes.len() as u64 > INPUT_BYTES_MAX {
            let message = format!("{}; at most {} are read", size(bytes.len() as u64), size(INPUT_BYTES_MAX));
            return Err(Error::invalid(message).in_field(name));
        }
        Ok(Self { path: PathBuf::from(name), hash: ContentHash::of(&bytes), bytes })
    }
}

impl Inputs {
    /// Sets the text.
    #[must_use]
    pub fn with_text(mut self, text: impl Into<String>) -> Self {
        self.text = Some(text.into());
        self
    }

    /// Reads the image file (PNG, JPEG, WebP or BMP).
    ///
    /// # Errors
    /// `NotFound`, `Io`, or `Invalid` past the size limit.
    pub fn with_image(mut self, path: &Path) -> Result<Self> {
        self.image = Some(Arc::new(InputFile::open(path)?));
        Ok(self)
    }

    /// As [`with_image`](Self::with_image), with the bytes of the file.
    ///
    /// # Errors
    /// `Invalid` past the size limit.
    pub fn with_image_bytes(mut self, bytes: Vec<u8>) -> Result<Self> {
        self.image = Some(Arc::new(InputFile::of("image", bytes)?));
        Ok(self)
    }

    /// As [`with_audio`](Self::with_audio), with the bytes of the file.
    ///
    /// # Errors
    /// `Invalid` past the size limit.
    pub fn with_audio_bytes(mut self, bytes: Vec<u8>) -> Result<Self> {
        self.audio = Some(Arc::new(InputFile::of("audio", bytes)?));
        Ok(self)
    }

    /// Reads the audio file (WAV, FLAC, MP3 or Ogg Vorbis).
    ///
    /// # Errors
    /// As [`Inputs::with_image`].
    pub fn with_audio(mut self, path: &Path) -> Result<Self> {
        self.audio = Some(Arc::new(InputFile::open(path)?));
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

    /// What the inputs are: types of input (`text`, `image`, `audio`), also of those that an encoder has read.
    pub fn media(&self) -> Vec<&'static str> {
        let is_given = |medium: &Medium| {
            self.foreign.iter().any(|foreign| foreign.medium == *medium)
                || match medium {
                    Medium::Text => self.text.is_some(),
                    Medium::Image => self.image.is_some(),
                    Medium::Audio => self.audio.is_some(),
                }
        };
        Medium::ALL.into_iter().filter(is_given).map(Medium::name).collect()
    }

    /// The text.
    ///
    /// # Errors
    /// `Invalid` without a text.
    pub fn text(&self) -> Result<&str> {
        self.text.as_deref().ok_or_else(|| Error::invalid("this pipeline needs a text (--text)"))
    }

    /// The texts of the user, or the input text if the user has none.
    pub(super) fn texts_of<'a>(&'a self, user: &'a User) -> Result<Vec<&'a str>> {
        match user.texts.as_slice() {
            [] => Ok(vec![self.text()?]),
            texts => Ok(texts.iter().map(String::as_str).collect()),
        }
    }

    /// The hash of all inputs.
    pub(crate) fn identity(&self) -> ContentHash {
        let mut hasher = Hasher::new("cotensor inputs v1");
        hasher.field(self.text.as_deref().unwrap_or_default().as_bytes());
        for file in [&self.image, &self.audio] {
            hasher.field(file.as_ref().map_or(&[][..], |file| file.hash.as_bytes()));
        }
        hasher.finish()
    }

    /// The image, preprocessed for `model`: `[1, 3, height, width]`, and whether this call preprocessed it. Shared like
    /// the result of a stage.
    ///
    /// # Errors
    /// `Invalid` without an image, `Corrupt` when it cannot be decoded.
    pub(crate) fn pixels(&self, model: &Model, holder: &Holder) -> Result<(Value, bool)> {
        let (file, processor) = (self.image_file()?, model.image()?);
        prepared(model, holder, file, "image", processor.fingerprint(), || {
            processor.process(&decode_image(&file.bytes)?)
        })
    }

    fn image_file(&self) -> Result<&InputFile> {
        self.image.as_deref().ok_or_else(|| Error::invalid("this pipeline needs an image (--image)"))
    }

    /// Whether there is an image; an image that an encoder has read may be missing.
    pub(super) fn has_image(&self) -> bool {
        self.image.is_some()
    }

    /// Width and height of the image before preprocessing, in pixels.
    ///
    /// # Errors
    /// As [`Inputs::pixels`].
    pub(crate) fn image_size(&self) -> Result<(u32, u32)> {
        let file = self.image_file()?;
        image_size(&file.bytes).map_err(|error| error.in_file(&file.path))
    }

    /// Which pixels of [`pixels`](Self::pixels) are the image: `[1, height, width]`, or the shape `dims` that the graph
    /// declares. Some exports fix a size for the mask that is not the size of the image.
    ///
    /// # Errors
    /// As [`Inputs::pixels`]; `Unsupported` when the image has padding and the graph reads a mask of another size.
    pub(crate) fn mask(&self, model: &Model, dims: Option<&[Option<usize>]>) -> Result<Value> {
        let mask = model.image()?.mask(self.image_size()?)?;
        let wanted: Vec<usize> = match dims {
            Some(dims) if dims.len() == 3 => {
                dims.iter().zip(mask.shape()).map(|(wanted, &given)| wanted.unwrap_or(given)).collect()
            }
            _ => return Ok(mask.into()),
        };
        if wanted == mask.shape() {
            return Ok(mask.into());
        }
        if wanted[0] != 1 || mask.as_i64()?.contains(&0) || wanted.iter().product::<usize>() > MASK_PIXELS_MAX {
            let message = format!("the graph reads a mask of shape {wanted:?}, the image has {:?}", mask.shape());
            return Err(Error::unsupported(message).in_field("pixel_mask"));
        }
        Ok(Array::i64(wanted.as_slice(), vec![1; wanted.iter().product()])?.into())
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
        let file = self.audio_file()?;
        let processor = model.audio()?;
        let (features, computed) = prepared(model, holder, file, "audio", processor.fingerprint(), || {
            // Only the part that the model reads is resampled. The length of the filter is far below a second.
            let audio =
                resample(&decode_audio_start(&file.bytes, processor.seconds() + 1.0)?, processor.sample_rate_hz())?;
            check_length(model, &audio)?;
            processor.process(&audio)
        })?;
        let length = audio_length(&file.bytes).map_err(|error| error.in_file(&file.path))?;
        let (rate, seconds) = (length.sample_rate_hz, length.seconds());
        let mut notices: Vec<String> = resampled(rate, processor.sample_rate_hz()).into_iter().collect();
        if seconds > processor.seconds() {
            notices.push(format!("of {seconds:.1} s of audio, the model reads the first {} s", processor.seconds()));
        }
        Ok((features, computed, notices))
    }

    /// The audio, if it is longer than the window of a model that reads sounds window by window.
    ///
    /// # Errors
    /// As [`Inputs::pixels`].
    pub(super) fn long_sound(&self, model: &Model) -> Result<Option<LongSound<'_>>> {
        let Some(file) = self.audio.as_deref().filter(|_| self.foreign.is_empty()) else { return Ok(None) };
        LongSound::open(file, model.audio()?).map_err(|error| error.in_file(&file.path))
    }

    /// Whether the audio is longer than a window of `model`, as an input of a graph: `bool` `[1, 1]`.
    ///
    /// # Errors
    /// `Invalid` without an audio file, `Unsupported` for a model without windows.
    pub(crate) fn is_longer(&self, model: &Model) -> Result<Value> {
        let file = self.audio_file()?;
        let length = audio_length(&file.bytes).map_err(|error| error.in_file(&file.path))?;
        let longer = model.audio()?.is_longer(length)?;
        longer
            .map(Value::from)
            .ok_or_else(|| Error::unsupported("the model's audio has no windows").in_field("is_longer"))
    }

    fn audio_file(&self) -> Result<&InputFile> {
        self.audio.as_deref().ok_or_else(|| Error::invalid("this pipeline needs an audio file (--audio)"))
    }
}

/// A sound that is longer than one window of the model. Reading it takes the memory of one window.
pub(super) struct LongSound<'a> {
    file: &'a InputFile,
    reader: SoundReader<'a>,
    windows: AudioWindows,
    /// Samples behind the window.
    rest: Vec<f32>,
    /// Samples per second of the file.
    rate_hz: u32,
    ended: bool,
}

impl<'a> LongSound<'a> {
    /// `None` for a sound of one window. Reads the sound once for its loudest part, which scales the features of all
    /// windows.
    fn open(file: &'a InputFile, processor: &AudioProcessor) -> Result<Option<Self>> {
        let length = audio_length(&file.bytes)?;
        let (rate_hz, to_hz) = (length.sample_rate_hz, processor.sample_rate_hz());
        let read = || {
            let Some(windows) = processor.windows() else { return Ok(None) };
            let samples = length.frames.saturating_mul(to_hz.into()) / u64::from(rate_hz.max(1));
            if !windows.is_longer(usize::try_from(samples).unwrap_or(usize::MAX)) {
                return Ok(None);
            }
            let reader = SoundReader::open(&file.bytes, to_hz)?;
            Ok::<_, Error>(Some(Self { file, reader, windows, rest: Vec::new(), rate_hz, ended: false }))
        };
        let (Some(mut first), Some(mut sound)) = (read()?, read()?) else { return Ok(None) };
        while let Some(windows) = first.window()? {
            windows.advance(windows.frames())?;
        }
        sound.windows.set_loudest(first.windows.loudest());
        Ok(Some(sound))
    }

    /// The sound at its next window; `None` at its end. The caller advances.
    pub(super) fn window(&mut self) -> Result<Option<&mut AudioWindows>> {
        self.fill().map_err(|error| error.in_file(&self.file.path))?;
        Ok((!self.windows.is_done()).then_some(&mut self.windows))
    }

    fn fill(&mut self) -> Result<()> {
        while !self.windows.is_full() && !self.ended {
            if self.rest.is_empty() {
                match self.reader.read()? {
                    Some(samples) => self.rest = samples,
                    None => {
                        self.windows.finish()?;
                        self.ended = true;
                    }
                }
            } else {
                let accepted = self.windows.push(&self.rest)?;
                self.rest.drain(..accepted);
            }
        }
        Ok(())
    }

    /// A notice about the change of the sample rate.
    pub(super) fn notice(&self) -> Option<String> {
        resampled(self.rate_hz, self.windows.sample_rate_hz())
    }
}

/// # Errors
/// `Invalid` for a sound with fewer samples than the convolutions of the model read for one row of features. Their sizes are
/// fields of Wav2Vec2's config.json; models without them fill short sounds up.
fn check_length(model: &Model, audio: &Audio) -> Result<()> {
    let sizes = |field| {
        let list = model.config_at(field).and_then(serde_json::Value::as_array)?;
        list.iter().map(serde_json::Value::as_u64).collect::<Option<Vec<u64>>>()
    };
    let (Some(kernels), Some(strides)) = (sizes("conv_kernel"), sizes("conv_stride")) else { return Ok(()) };
    let layers = kernels.iter().zip(&strides).rev();
    let least = layers
        .fold(1u64, |rows, (kernel, stride)| rows.saturating_sub(1).saturating_mul(*stride).saturating_add(*kernel));
    let samples = audio.samples.len() as u64;
    if samples >= least {
        return Ok(());
    }
    let milliseconds = |samples: u64| 1e3 * samples as f64 / f64::from(audio.sample_rate_hz);
    let message = format!(
        "the sound is too short: {samples} samples ({:.1} ms); the model reads {least} ({:.1} ms) or more",
        milliseconds(samples),
        milliseconds(least)
    );
    Err(Error::invalid(message).in_field("audio"))
}

fn resampled(from_hz: u32, to_hz: u32) -> Option<String> {
    (from_hz != to_hz).then(|| format!("the audio was resampled from {from_hz} to {to_hz} Hz"))
}

/// Preprocesses `file` once per content and preprocessing; a private copy of a model preprocesses each time. Also
/// returns whether this call did.
fn prepared(
    model: &Model,
    holder: &Holder,
    file: &InputFile,
    label: &str,
    preprocessing: ContentHash,
    prepare: impl FnOnce() -> Result<Array>,
) -> Result<(Value, bool)> {
    let prepare = || prepare().map_err(|error| error.in_file(&file.path));
    let StageSource::Shared(loader) = model.source() else {
        return Ok((Value::from(prepare()?), true));
    };
    let key = Key(input_key(label, preprocessing, file.hash));
    let labels = [format!("{label} input")];
    let store = &**loader.store();
    let computation = Computation { store, key, space: None, kind: Kind::Other, labels: &labels, holder };
    let (mut values, computed) = compute_once(&computation, |_| Ok(vec![prepare()?.into()]))?;
    let value = values.pop().ok_or_else(|| Error::not_found("the store lost a preprocessed input"))?;
    Ok((value, computed))
}
