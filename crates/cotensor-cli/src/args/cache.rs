//! The weight cache.

use super::units::{DAY, TIME, YEAR, time_from};
use clap::{Args, Subcommand};
use cotensor_client::settings;
use std::path::PathBuf;
use std::time::Duration;

/// List, verify or prune the weight cache.
///
/// The weight cache keeps weights in packs, so that every process maps the same pages. Each pack is verified when it is
/// first used after the machine started; a damaged pack is removed and made again.
#[derive(Args)]
#[command(after_help = "Examples:\n  cotensor cache verify\n  cotensor cache prune --unused-for 7d\n  \
    cotensor cache prune --all")]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    pub(crate) action: CacheAction,
    /// The folder of the cache [default: the user's cache folder].
    #[arg(long, global = true, env = settings::CACHE.variable, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    /// Print one JSON object on standard output and nothing else.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum CacheAction {
    /// List weights, files in the layout of engines, and the demo's models, the largest first.
    Ls,
    /// Print the folder of the cache.
    Path,
    /// Hash the contents of every pack and remove damaged packs. Exit code 1 when a pack was damaged.
    Verify,
    /// Remove packs and models of the demo that no process has used for some time.
    Prune {
        /// The time without use.
        #[arg(long, value_name = TIME, default_value = "30d", value_parser = time_from(DAY / 24, 100 * YEAR, "from 1h on, such as 7d"))]
        unused_for: Duration,
        /// Remove all of them. Processes that map one keep it until they end.
        #[arg(long, conflicts_with = "unused_for")]
        all: bool,
    },
}
