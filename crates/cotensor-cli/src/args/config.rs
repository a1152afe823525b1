//! Arguments of `config`.

use clap::{Args, Subcommand};

/// List all settings with their values and where the values come from, or change the configuration file.
///
/// An argument takes precedence over its COTENSOR_* variable, the variable over the configuration file, and the file over the
/// default. The file is cotensor/config.toml in $XDG_CONFIG_HOME or ~/.config, or the file that COTENSOR_CONFIG names. It is TOML,
/// with one key for each setting and no tables. Commands, daemons and the Python package read it when they start.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  cotensor config\n  cotensor config set max_memory 8GiB\n  cotensor config get max_memory\n  \
        cotensor config unset max_memory"
)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ConfigCommand>,
    /// Print one JSON object on standard output and nothing else.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the path of the configuration file.
    Path,
    /// Print the value of a setting. Nothing is printed for a default.
    Get {
        /// Key of the setting, such as max_memory.
        key: String,
    },
    /// Set a setting in the configuration file. The rest of the file stays.
    Set {
        /// Key of the setting, such as max_memory.
        key: String,
        /// Value, as the argument of commands takes it.
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
    /// Remove a setting from the configuration file.
    Unset {
        /// Key of the setting, such as max_memory.
        key: String,
    },
}
