//! Arguments of the command for channels.

use super::Client;
use super::units::{TIME, time};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// List channels; or read the frames of one, and print a line for each.
///
/// Reads until the producer closes the channel, --count frames were read, or Ctrl-C. Exit code 1 when the producer ends without closing
/// the channel.
#[derive(Args)]
#[command(after_help = "Examples:\n  cotensor channel\n  cotensor channel camera --count 100 --queue\n  \
    cotensor channel camera --output frame.npy")]
pub(crate) struct ChannelArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// Name of the channel [default: list all channels].
    pub(crate) name: Option<String>,
    /// Number of frames to read [default: until the channel ends; 1 with --output].
    #[arg(long, requires = "name", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Read each frame in order, instead of the newest one each time.
    #[arg(long, requires = "name")]
    pub(crate) queue: bool,
    /// Write the last frame that is read to a .npy, .safetensors or .raw file.
    #[arg(long, short, requires = "name", value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Longest wait for the channel [default: 0] and for each frame [default: no limit].
    #[arg(long, requires = "name", value_name = TIME, value_parser = time)]
    pub(crate) timeout: Option<Duration>,
}
