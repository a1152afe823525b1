//! Arguments of the commands for adapters.

use super::RuntimeArgs;
use clap::Args;
use std::path::PathBuf;

/// Fit a linear map between the outputs of two encoders.
///
/// Runs both encoders on your samples and fits a map from the rows of one to the rows of the other by ridge regression.
/// Prints its error on samples that were held out. A pipeline that names the adapter neither loads nor runs the second
/// encoder.
#[derive(Args)]
pub(crate) struct FitAdapterArgs {
    #[command(flatten)]
    pub(crate) runtime: RuntimeArgs,
    /// Model whose tensors the adapter reads: a folder, or a name on the hub.
    #[arg(long, value_name = "MODEL")]
    pub(crate) from: PathBuf,
    /// Model whose encoder the adapter replaces.
    #[arg(long, value_name = "MODEL")]
    pub(crate) to: PathBuf,
    /// Samples: a folder of text, image or audio files; a .txt file with a text on each line; or a .jsonl file with the
    /// text in the field "text".
    #[arg(long, value_name = "DIR|FILE")]
    pub(crate) data: PathBuf,
    /// Write the adapter to this .safetensors file. With --daemon, the daemon has the adapter as a tensor, too.
    #[arg(long, short, value_name = "FILE", required_unless_present = "daemon")]
    pub(crate) output: Option<PathBuf>,
}
