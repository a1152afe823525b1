//! Arguments of `service`.

use clap::{Args, Subcommand};

/// Install the daemon as a service of this user's systemd.
///
/// systemd listens on the daemon's socket and starts the daemon at the first connection. The service keeps all tensors when the
/// daemon's processes die. If the setting `listen` has an address (cotensor config set listen 127.0.0.1:2537), systemd listens there
/// too, and an HTTP request alone starts the daemon.
#[derive(Args)]
pub(crate) struct ServiceArgs {
    #[command(subcommand)]
    pub(crate) action: ServiceAction,
    /// Print one JSON object on standard output and nothing else.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum ServiceAction {
    /// Write the units and enable them. Changed units of an earlier installation are replaced.
    Install {
        /// Only write the units.
        #[arg(long)]
        no_enable: bool,
    },
    /// Stop the service, disable it and remove its units. The daemon and its tensors end.
    Uninstall,
    /// Print the units.
    Print,
}
