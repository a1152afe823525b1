//! Arguments of the command for streams of sound.

use super::RuntimeArgs;
use super::units::{TIME, time};
use clap::Args;
use clap::builder::PossibleValuesParser;
use cotensor::model::preprocess::ByteFormat;
use std::path::PathBuf;
use std::time::Duration;

/// Transcribe speech while it plays, and run a text model on each finished piece of the transcript.
///
/// Reads a file, or the bytes of a program on standard input. The memory does not grow with the length of the sound: at most one
/// window of sound is read ahead, and then the program that writes the sound waits. Ctrl-C ends the sound; what was
/// read is transcribed. A second Ctrl-C ends the command at once. With --json, each event is one line.
#[derive(Args)]
pub(crate) struct StreamArgs {
    #[command(flatten)]
    pub(crate) runtime: RuntimeArgs,
    /// Sound: a file (WAV, FLAC, MP3, Ogg Vorbis, or raw samples with --format), or - for standard input.
    #[arg(value_name = "AUDIO|-")]
    pub(crate) audio: PathBuf,
    /// Speech model, such as Whisper: a folder, or a name on the hub.
    #[arg(long, value_name = "MODEL")]
    pub(crate) audio_model: PathBuf,
    /// Text model for the transcript: a folder, or a name on the hub.
    #[arg(long, value_name = "MODEL")]
    pub(crate) text_model: Option<PathBuf>,
    /// Task of the text model [default: the task of the model's class, else the first that reads a text].
    #[arg(long, value_name = "TASK", requires = "text_model")]
    pub(crate) text_task: Option<String>,
    /// Format of the bytes: raw samples of one channel, or wav [default: wav for standard input; a file has its own].
    #[arg(long, value_name = "FORMAT", value_parser = PossibleValuesParser::new(ByteFormat::NAMES))]
    pub(crate) format: Option<String>,
    /// Sample rate of raw samples.
    #[arg(long, value_name = "HZ")]
    pub(crate) rate: Option<u32>,
    /// Length of sound after which a part is transcribed, such as 5s [default: the model's window]. Less gives results sooner
    /// and takes more time.
    #[arg(long, value_name = TIME, value_parser = time)]
    pub(crate) window: Option<Duration>,
}
