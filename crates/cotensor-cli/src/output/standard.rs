//! Standard output and standard error.

use super::text::bounded;
use super::text::{printable, printable_json};
use cotensor::core::{Error, Result};
use cotensor_rpc::kind_name;
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the lines of standard error are JSON objects: with `--json`.
static IS_JSON: AtomicBool = AtomicBool::new(false);
/// The beginning of notices. With `--json`, it is the key.
const NOTICE: &str = "notice: ";

/// Makes each line of [`report`] a JSON object, and those of [`error_line`] and [`warning_line`], or text.
pub(crate) fn set_json(is_json: bool) {
    IS_JSON.store(is_json, Ordering::Relaxed);
}

pub(crate) fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// Writes a line to standard error. Write errors are ignored.
pub(crate) fn report(line: &str) {
    if is_json() {
        report_exactly(&object(&json!({"notice": line.strip_prefix(NOTICE).unwrap_or(line)})))
    } else {
        report_exactly(line)
    }
}

/// As [`report`], for a line of [`error_line`] or [`warning_line`].
pub(crate) fn report_exactly(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The line of an error: `error: …`, or with `--json` an object with the kind, the message, the file and the field.
pub(crate) fn error_line(error: &Error) -> String {
    let text = error.to_string();
    if !is_json() {
        return format!("error: {}", bounded(&printable(&text)));
    }
    let mut shown = json!({"kind": kind_name(error.kind()), "message": bounded(&text)});
    if let Some(file) = error.file() {
        shown["file"] = file.to_string_lossy().into();
    }
    if let Some(field) = error.field() {
        shown["field"] = field.into();
    }
    object(&json!({"error": shown}))
}

/// The line of a warning.
pub(crate) fn warning_line(text: &str) -> String {
    if is_json() { object(&json!({"warning": text})) } else { format!("warning: {}", bounded(&printable(text))) }
}

fn object(value: &serde_json::Value) -> String {
    printable_json(&value.to_string()).into_owned()
}

/// Writes text to standard output, with control characters escaped.
pub(crate) fn print(text: &str) -> Result<()> {
    write_out(&printable(text))
}

/// Writes text that a program may read: a terminal gets it with control characters escaped, a pipe and a file as it is.
pub(crate) fn print_exactly(text: &str) -> Result<()> {
    if std::io::stdout().is_terminal() { print(text) } else { write_out(text) }
}

/// Writes to standard output; a closed pipe is not an error.
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
