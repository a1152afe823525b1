//! `call`: calls functions of other processes.

mod arguments;
mod result;

pub(super) use result::{plain_json, show};

use super::connection::connect;
use crate::args::CallArgs;
use crate::launch::Program;
use crate::output::{print, print_json};
use crate::table::{Table, plain};
use arguments::Reader;
use cotensor::core::waiting::{WaitClock, WaitReport};
use cotensor::core::{Error, ErrorKind, Result};
use cotensor::store::TensorStore;
use cotensor_client::protocol::FoundFunction;
use cotensor_functions::{CallError, Functions, Task};
use cotensor_rpc::kind_named;
use serde::Serialize;
use serde_json::{Map, json};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Poll interval of `--wait`.
const OFFER_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of suggested names in an error.
const SUGGESTED_MAX: usize = 3;
/// Minimum similarity of a suggested name, from 0 to 1.
const SIMILARITY_MIN: f64 = 0.75;

#[derive(Serialize)]
struct Listing {
    functions: Vec<FoundFunction>,
}

pub(crate) fn call(args: &CallArgs, program: &Program) -> Result<()> {
    let store = connect(&args.client, program, "cotensor call")?;
    let functions = Functions::new(Arc::clone(&store));
    let name = args.name.as_deref().unwrap_or_default();
    if args.list {
        return list(functions.list(name)?, args.client.json);
    }
    // Checked before arguments are published.
    offered(&functions, name, args.wait.unwrap_or_default())?;
    let arguments = Reader { holder: store.holder(""), store }.read(&args.arguments)?;
    if args.task {
        let task = functions.submit_within(name, &arguments, args.timeout).map_err(|error| call_error(error, name))?;
        return submitted(&task, name, args.client.json);
    }
    let value = functions.call_within(name, &arguments, args.timeout).map_err(|error| call_error(error, name))?;
    let about = Map::from_iter([("function".to_owned(), json!(name))]);
    show(&value, about, args.client.json, args.output.as_deref())
}

/// Prints the name of a submitted task.
fn submitted(task: &Task, function: &str, as_json: bool) -> Result<()> {
    let name = task_name(task.epoch(), task.number());
    if as_json { print_json(&json!({"task": name, "function": function})) } else { print(&format!("{name}\n")) }
}

/// The name of a task: the epoch of its provider, and its number.
pub(super) fn task_name(epoch: u64, number: u64) -> String {
    format!("{epoch:x}-{number}")
}

/// Waits until a process offers the function, for `timeout` at most.
fn offered(functions: &Functions, name: &str, timeout: Duration) -> Result<()> {
    // `None`, no time-out, when the sum overflows.
    let end = Instant::now().checked_add(timeout);
    let mut clock = WaitClock::default();
    loop {
        match functions.describe(name) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound && end.is_none_or(|end| Instant::now() < end) => {
                clock.check(|| WaitReport {
                    text: format!("waiting for a process that offers the function {name:?}: none does"),
                    is_expected: false,
                });
                sleep(OFFER_INTERVAL);
            }
            Err(error) => return Err(with_similar_names(error, name, functions)),
        }
    }
}

fn list(functions: Vec<FoundFunction>, as_json: bool) -> Result<()> {
    if as_json {
        return print_json(&Listing { functions });
    }
    let mut table = Table::new(&[], &["function", "type", "provider", "summary"]);
    for FoundFunction { function, provider } in &functions {
        let kind = match (function.task, function.managed) {
            (true, _) => "task",
            (false, true) => "constructor",
            (false, false) => "call",
        };
        table.row([plain(&function.name), kind.to_owned(), plain(&provider.client), plain(&function.summary)]);
    }
    print(&table.text())
}

/// Converts the error of a call. The kind is the function's, if it is one of Cotensor's kinds.
pub(super) fn call_error(error: CallError, what: &str) -> Error {
    let kind = error.kind();
    match error {
        CallError::NotCalled(error) => error,
        CallError::Failed(failure) => {
            let trace =
                if failure.trace.is_empty() { String::new() } else { format!("\n{}", failure.trace.trim_end()) };
            let kind = kind_named(&failure.kind).unwrap_or(kind);
            Error::new(kind, format!("{what}: {}: {}{trace}", failure.kind, failure.message))
        }
    }
}

/// As [`call_error`], for a function of the model process, whose messages name the file and the field themselves.
pub(super) fn model_error(error: CallError, function: &str) -> Error {
    match error.failure().and_then(|failure| Some((kind_named(&failure.kind)?, failure))) {
        Some((kind, failure)) => Error::new(kind, failure.message.as_str()),
        None => call_error(error, function),
    }
}

/// Adds similar names to a `NotFound` error.
fn with_similar_names(error: Error, name: &str, functions: &Functions) -> Error {
    let Some(all) = functions.list("").ok().filter(|_| error.kind() == ErrorKind::NotFound) else { return error };
    let mut near: Vec<_> = all
        .iter()
        .map(|found| (strsim::jaro_winkler(name, &found.function.name), found.function.name.as_str()))
        .filter(|(similarity, known)| *similarity >= SIMILARITY_MIN || known.contains(name))
        .collect();
    near.sort_by(|(left, _), (right, _)| right.total_cmp(left));
    let near: Vec<&str> = near.into_iter().take(SUGGESTED_MAX).map(|(_, name)| name).collect();
    let hint = match (all.is_empty(), near.is_empty()) {
        (true, _) => "no process offers functions".to_owned(),
        (false, true) => "`cotensor call --list` lists all functions".to_owned(),
        (false, false) => format!("did you mean {}?", near.join(", ")),
    };
    Error::not_found(format!("function {name:?} not found: {hint}"))
}
