//! Sounds: decoding, resampling, and the features that models read.

mod clap;
mod compressed;
mod decode;
mod fields;
mod mel;
mod processor;
mod resample;
mod sound;
mod wav;
mod waveform;
mod whisper;

pub use decode::{audio_length, decode_audio, decode_audio_start};
pub use processor::AudioProcessor;
pub use resample::resample;
pub use sound::{Audio, AudioLength};
