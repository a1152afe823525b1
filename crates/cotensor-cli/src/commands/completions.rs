//! `completions`: shell completions.

use crate::args::Cli;
use crate::output::write_out;
use clap::CommandFactory;
use cotensor::core::Result;

/// Prints the completion script of a shell.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "cotensor", &mut script);
    write_out(&String::from_utf8_lossy(&script))
}
