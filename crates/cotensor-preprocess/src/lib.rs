//! Preprocessing: texts, images and sounds become the arrays that a model's graphs read, as its configuration says.
//! [`family`] describes the model families as data.
//!
//! The crate reads no file and maps no memory, so it builds for wasm32: a [`ModelFiles`] gives the bytes of the configuration files, and the
//! caller gives the bytes of the inputs. Templates of chats run on a thread with a deep stack, except on wasm32.

mod array;
pub mod audio;
pub mod checkpoint;
pub mod family;
mod files;
pub mod generation;
mod guard;
pub mod image;
mod processor_config;
pub mod text;

pub use array::Array;
pub use audio::{
    Audio, AudioBytes, AudioLength, AudioProcessor, AudioWindows, ByteFormat, ReadPart, Resampling, SoundReader,
    audio_length, audio_length_of, check_samples, decode_audio, decode_audio_start, decode_audio_start_of, resample,
};
pub use files::{JSON_BYTES_MAX, ModelFiles, find_json};
pub use image::{ImageProcessor, decode_image, image_of_pixels, image_size};
pub use text::{
    ChatTemplate, CtcDecoder, LogitScore, ScoreFunction, SentenceProcessor, TextProcessor, TextStream, TokenBatch,
    normalized, position_limit, positions_depend_on_length,
};
