//! Sounds: decoding, resampling, and the features that models read.

mod bytes;
mod clap;
mod compressed;
mod decode;
mod fields;
mod mel;
mod parts;
mod processor;
mod reader;
mod resample;
mod sound;
mod wav;
mod waveform;
mod whisper;
mod windows;

pub use bytes::{AudioBytes, ByteFormat};
pub use decode::{audio_length, audio_length_of, decode_audio, decode_audio_start, decode_audio_start_of};
pub use parts::ReadPart;
pub use processor::AudioProcessor;
pub use reader::SoundReader;
pub use resample::{Resampling, resample};
pub use sound::{Audio, AudioLength, check_samples};
pub use windows::AudioWindows;
