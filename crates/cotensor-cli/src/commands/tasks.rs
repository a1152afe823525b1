//! `tasks`: lists, waits for and cancels tasks of providers.

use super::call::{call_error, show, task_name};
use super::connection::connect;
use crate::args::TasksArgs;
use crate::launch::Program;
use crate::output::{print, print_json, report};
use crate::table::{Table, duration, plain};
use cotensor::core::{Error, ErrorKind, Result};
use cotensor_client::ClientStore;
use cotensor_client::protocol::provider::{TaskInfo, TaskState};
use cotensor_client::protocol::{AllTasksParams, ListAllTasks};
use cotensor_functions::{CallError, Functions, Task};
use serde::Serialize;
use serde_json::{Map, Value as Json, json};
use std::fmt::Write;

/// A task in the JSON output.
#[derive(Serialize)]
struct Shown {
    task: String,
    function: String,
    state: TaskState,
    /// The provider of the function; only in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<String>,
    /// The client that submitted the task.
    client: String,
    age_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Shown {
    fn new(epoch: u64, info: TaskInfo, provider: Option<String>) -> Self {
        let TaskInfo { task, function, state, client, age_ms, error } = info;
        Self { task: task_name(epoch, task), function, state, provider, client, age_s: age_ms as f64 / 1000.0, error }
    }

    fn cells(&self) -> [String; 7] {
        [
            self.task.clone(),
            plain(&self.function),
            self.state.name().to_owned(),
            self.provider.as_deref().map(plain).unwrap_or_default(),
            plain(&self.client),
            duration(self.age_s),
            self.error.as_deref().map(plain).unwrap_or_default(),
        ]
    }
}

#[derive(Serialize)]
struct Listing {
    tasks: Vec<Shown>,
    left_off: usize,
}

fn parse(task: &str) -> Result<(u64, u64)> {
    let parts = task
        .split_once('-')
        .and_then(|(epoch, number)| Some((u64::from_str_radix(epoch, 16).ok()?, number.parse().ok()?)));
    parts.ok_or_else(|| Error::invalid(format!("{task:?} is not a task name such as 1a2b3c-7")).in_field("TASK"))
}

pub(crate) fn tasks(args: &TasksArgs, program: &Program) -> Result<()> {
    let store = connect(&args.client, program, "cotensor tasks")?;
    let Some(named) = &args.task else { return list(args, &store) };
    let (epoch, number) = parse(named)?;
    let task = Functions::new(store).task(epoch, number).map_err(|error| missing(error, named))?;
    let info = match (args.cancel, args.wait) {
        (true, _) => cancel(&task, named),
        (false, true) => task.wait(args.timeout),
        (false, false) => task.status(),
    };
    let info = info.map_err(|error| call_error(error, named))?;
    let state = info.state;
    if args.wait && !state.is_final() {
        return Err(Error::new(ErrorKind::TimedOut, format!("the task {named} is still {}", state.name())));
    }
    if args.result {
        let value = task.result().map_err(|error| call_error(error, named))?;
        let about = json!({"task": named, "function": info.function});
        let about = match about {
            Json::Object(about) => about,
            _ => Map::new(),
        };
        return show(&value, about, args.client.json, args.output.as_deref());
    }
    let mut shown = Shown::new(epoch, info, None);
    let failed = shown.error.clone();
    if args.client.json {
        print_json(&shown)?;
    } else {
        if args.wait {
            // Reported as the command's error instead.
            shown.error = None;
        }
        let mut table = Table::new(&[], &["task", named]);
        let titles = ["function", "state", "provider", "submitted by", "age", "error"];
        for (title, cell) in titles.iter().zip(shown.cells().into_iter().skip(1)).filter(|(_, cell)| !cell.is_empty()) {
            table.row([(*title).to_owned(), cell]);
        }
        print(&table.text())?;
    }
    if args.wait && state != TaskState::Completed {
        let why = failed.unwrap_or_else(|| state.name().to_owned());
        return Err(Error::new(ErrorKind::Engine, why).in_field(named));
    }
    Ok(())
}

/// The error of a task that its provider does not have, or no longer.
fn missing(error: CallError, named: &str) -> Error {
    let error = call_error(error, named);
    match error.kind() {
        ErrorKind::NotFound => error.prefixed(format_args!("task {named} not found")),
        _ => error,
    }
}

/// Cancels a task; prints a notice when it had already ended.
fn cancel(task: &Task, named: &str) -> Result<TaskInfo, CallError> {
    let before = task.status()?;
    let info = task.cancel()?;
    if before.state.is_final() {
        report(&format!("notice: task {named} was already {}; nothing was cancelled", before.state.name()));
    }
    Ok(info)
}

fn list(args: &TasksArgs, store: &ClientStore) -> Result<()> {
    let mut listing = Listing { tasks: Vec::new(), left_off: 0 };
    let wanted = AllTasksParams { state: args.state, limit: args.limit as usize };
    for found in store.request::<ListAllTasks>(&wanted)?.providers {
        let (epoch, client) = (found.provider.epoch, found.provider.client);
        if let Some(error) = found.error {
            report(&format!("notice: {}: {}", plain(&client), plain(&error)));
        }
        let shown = found.tasks.into_iter().map(|info| Shown::new(epoch, info, Some(client.clone())));
        listing.tasks.extend(shown);
        listing.left_off += found.left_off;
    }
    if args.client.json {
        return print_json(&listing);
    }
    let titles = ["task", "function", "state", "provider", "submitted by", "age", "error"];
    let mut table = Table::new(&[false, false, false, false, false, true], &titles);
    listing.tasks.iter().for_each(|task| table.row(task.cells()));
    let mut text = table.text();
    if listing.left_off > 0 {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "and {} more; use --state or a higher --limit", listing.left_off);
    }
    print(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_names_round_trip() {
        assert_eq!(parse(&task_name((1 << 53) - 1, 7)).unwrap(), ((1 << 53) - 1, 7));
        for wrong in ["", "7", "-", "x-7", "1a-", "1a-b", "1a-7-7"] {
            assert_eq!(parse(wrong).unwrap_err().field(), Some("TASK"), "{wrong}");
        }
    }
}
