//! Arguments of the commands for the models of this machine.

use super::Client;
use super::units::{TIME, YEAR, time_from};
use clap::{Args, Subcommand};
use std::time::Duration;

/// List, load and unload the models of this machine.
///
/// The daemon's model process loads a model at its first request and unloads it after some time without requests.
#[derive(Args)]
#[command(after_help = "Examples:\n  cotensor models ls\n  cotensor models load ./bert --ttl 1h\n  \
    cotensor models ps\n  cotensor models unload ./bert")]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    pub(crate) action: ModelsAction,
}

#[derive(Subcommand)]
pub(crate) enum ModelsAction {
    /// List the models in the hub's cache, which run by name.
    Ls {
        /// Print one JSON object on standard output and nothing else.
        #[arg(long)]
        json: bool,
    },
    /// List the loaded models: memory, requests, and when each is unloaded.
    Ps {
        #[command(flatten)]
        client: Client,
    },
    Load(LoadArgs),
    /// Unload a model. Requests that run continue.
    Unload {
        #[command(flatten)]
        client: Client,
        /// The model, as it was named when it was loaded: its folder, or its name on the hub.
        #[arg(required_unless_present = "all")]
        model: Option<String>,
        /// Unload every model.
        #[arg(long, conflicts_with = "model")]
        all: bool,
    },
    /// List the model families: supported ones and planned ones.
    Families {
        /// Print one JSON object on standard output and nothing else.
        #[arg(long)]
        json: bool,
    },
}

/// Load the graphs of a model before the first request.
#[derive(Args)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) client: Client,
    /// The model: its folder, or its name on the hub (OWNER/NAME or OWNER/NAME@REVISION), which is downloaded if the hub's cache
    /// lacks it.
    pub(crate) model: String,
    /// Variant of the model's graphs, such as fp16, int8 or q4 [default: for each graph, the first that the model has].
    #[arg(long, value_name = "NAME")]
    pub(crate) variant: Option<String>,
    /// Unload the model after this time without requests [default: `cotensor serve --model-ttl`].
    #[arg(long, value_name = TIME, value_parser = time_from(Duration::from_secs(1), 100 * YEAR, "from 1s on, such as 30min"))]
    pub(crate) ttl: Option<Duration>,
    /// Keep the model until it is unloaded by name or the daemon ends.
    #[arg(long, conflicts_with = "ttl")]
    pub(crate) pin: bool,
}
