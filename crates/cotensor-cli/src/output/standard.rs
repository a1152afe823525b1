//! Standard output and standard error.

use super::text::{printable, printable_json};
use cotensor::core::{Error, Result};
use std::io::{IsTerminal, Write};

/// Writes a line to standard error. Write errors are ignored.
pub(crate) fn report(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Writes text to standard output, with control characters escaped.
pub(crate) fn print(text: &str) -> Result<()> {
    write_out(&printable(text))
}

/// Writes text that a program may read: a terminal gets it with control characters escaped, a pipe and a file as it is.
pub(crate) fn print_exactly(text: &str) -> Result<()> {
    match std::io::stdout().is_terminal() {
        true => print(text),
        false => write_out(text),
    }
}

/// Writes to standard output; a closed pipe is no error.
pub(crate) fn write_out(text: &str) -> Result<()> {
    write_if_open(text).map(drop)
}

/// Writes to standard output. Returns whether it is open: false for a closed pipe.
pub(crate) fn write_if_open(text: &str) -> Result<bool> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::io("cannot write", &error)),
    }
}

/// A value as JSON on one line.
pub(crate) fn json_line(value: &impl serde::Serialize) -> Result<String> {
    let text = serde_json::to_string(value).map_err(|error| Error::invalid(error.to_string()))?;
    Ok(format!("{}\n", printable_json(&text)))
}

pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Error::invalid(error.to_string()))?;
    write_out(&format!("{}\n", printable_json(&text)))
}
