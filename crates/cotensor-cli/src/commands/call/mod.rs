//! `call`: other processes' functions.

mod arguments;
mod result;

pub(super) use result::show;

use super::{connect, print, print_json, tasks};
use crate::args::CallArgs;
use crate::table::{Table, plain};
use arguments::Reader;
use cotensor::core::{Error, ErrorKind, Result};
use cotensor::store::TensorStore;
use cotensor_client::protocol::FoundFunction;
use cotensor_functions::{CallError, Functions};
use cotensor_rpc::kind_named;
use serde::Serialize;
use serde_json::{Map, json};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two looks for a function that is waited for.
const OFFER_INTERVAL: Duration = Duration::from_millis(50);
/// The most names that an error proposes.
const PROPOSED_MAX: usize = 3;
/// How alike a name has to be to be proposed, from 0 to 1.
const ALIKE_MIN: f64 = 0.75;

#[derive(Serialize)]
struct Listing {
    functions: Vec<FoundFunction>,
}

pub(crate) fn call(args: &CallArgs) -> Result<()> {
    let store = connect(&args.client, "cotensor call")?;
    let functions = Functions::new(Arc::clone(&store));
    let name = args.name.as_deref().unwrap_or_default();
    if args.list {
        return list(functions.list(name)?, args.client.json);
    }
    // Before anything is published for it.
    offered(&functions, name, args.wait.unwrap_or_default())?;
    let arguments = Reader { holder: store.holder(""), store }.read(&args.arguments)?;
    if args.task {
        let task = functions.submit_within(name, &arguments, args.timeout).map_err(|error| mended(error, name))?;
        return tasks::submitted(&task, name, args.client.json);
    }
    let value = functions.call_within(name, &arguments, args.timeout).map_err(|error| mended(error, name))?;
    let about = Map::from_iter([("function".to_owned(), json!(name))]);
    show(&value, about, args.client.json, args.output.as_deref())
}

/// Waits until a process offers the function, for `patience` at most.
fn offered(functions: &Functions, name: &str, patience: Duration) -> Result<()> {
    // Without an end where the time is beyond all clocks.
    let end = Instant::now().checked_add(patience);
    loop {
        match functions.describe(name) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound && end.is_none_or(|end| Instant::now() < end) => {
                sleep(OFFER_INTERVAL);
            }
            Err(error) => return Err(with_near_names(error, name, functions)),
        }
    }
}

fn list(functions: Vec<FoundFunction>, as_json: bool) -> Result<()> {
    if as_json {
        return print_json(&Listing { functions });
    }
    let mut table = Table::new(&[], &["function", "is", "provider", "what it does"]);
    for FoundFunction { function, provider } in &functions {
        let is = match (function.task, function.managed) {
            (true, _) => "a task",
            (false, true) => "an object's maker",
            (false, false) => "a call",
        };
        table.row([plain(&function.name), is.to_owned(), plain(&provider.client), plain(&function.summary)]);
    }
    print(&table.text())
}

/// An error of a call as the command's own: of the kind that the function gave it, if that is one of Cotensor's.
pub(super) fn mended(error: CallError, what: &str) -> Error {
    let kind = error.kind();
    match error {
        CallError::NotCalled(error) => error,
        CallError::Failed(failure) => {
            let trace =
                if failure.trace.is_empty() { String::new() } else { format!("\n{}", failure.trace.trim_end()) };
            let kind = kind_named(&failure.kind).unwrap_or(kind);
            Error::new(kind, format!("{}: {}{trace}", failure.kind, failure.message)).in_field(what)
        }
    }
}

/// What might have been meant by a name that nobody provides.
fn with_near_names(error: Error, name: &str, functions: &Functions) -> Error {
    let Some(all) = functions.list("").ok().filter(|_| error.kind() == ErrorKind::NotFound) else { return error };
    let mut near: Vec<_> = all
        .iter()
        .map(|found| (strsim::jaro_winkler(name, &found.function.name), found.function.name.as_str()))
        .filter(|(alike, known)| *alike >= ALIKE_MIN || known.contains(name))
        .collect();
    near.sort_by(|(left, _), (right, _)| right.total_cmp(left));
    let near: Vec<&str> = near.into_iter().take(PROPOSED_MAX).map(|(_, name)| name).collect();
    let hint = match (all.is_empty(), near.is_empty()) {
        (true, _) => "nobody provides any".to_owned(),
        (false, true) => "`cotensor call --list` lists what there is".to_owned(),
        (false, false) => format!("did you mean {}?", near.join(", ")),
    };
    Error::not_found(format!("nobody provides a function {name:?}: {hint}"))
}
