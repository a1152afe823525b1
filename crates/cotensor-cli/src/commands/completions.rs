//! `completions`: shell completions.

use crate::completion::script;
use crate::output::write_out;
use cotensor::core::Result;

/// Prints the completion script of a shell.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<()> {
    write_out(&script(&shell.to_string())?)
}
