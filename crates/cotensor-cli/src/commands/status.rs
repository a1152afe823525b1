//! `status`: the daemon itself.

use super::connection::running;
use super::tensors::kept;
use crate::args::{DaemonOptions, StatusArgs};
use crate::output::{count, print, print_json};
use crate::table::{duration, plain};
use cotensor::core::{Error, ErrorKind, Result, size};
use cotensor::store::{KeptTensors, Stats, StoreReports};
use cotensor_client::protocol::{DaemonStatus, Empty, GetStatus, ModelEngine};
use cotensor_client::{ClientStore, default_socket, log_path};
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The JSON object of `status`.
#[derive(Serialize)]
struct Running {
    running: bool,
    socket: PathBuf,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    daemon: Option<Details>,
}

#[derive(Serialize)]
struct Details {
    #[serde(flatten)]
    status: DaemonStatus,
    /// The log, if the daemon was started in the background.
    log: Option<PathBuf>,
    tensors: usize,
    memory_usage_bytes: u64,
    max_memory_bytes: Option<u64>,
    /// Bytes of the copies that sharing avoids now.
    saved_bytes: u64,
    /// Tensors without a lease.
    kept_tensors: usize,
    kept_bytes: u64,
    kept_by: Vec<KeptTensors>,
}

pub(crate) fn status(args: &StatusArgs) -> Result<()> {
    show(&args.daemon)
}

/// Prints the status of the daemon.
///
/// # Errors
/// `Unreachable` when none runs.
pub(super) fn show(options: &DaemonOptions) -> Result<()> {
    let socket = options.socket.clone().unwrap_or_else(default_socket);
    let Some(store) = running(&socket, "cotensor status")? else {
        if options.json {
            print_json(&Running { running: false, socket: socket.clone(), daemon: None })?;
        }
        return Err(Error::new(ErrorKind::Unreachable, "no daemon is running here").in_file(&socket));
    };
    let details = details(&store)?;
    if options.json {
        return print_json(&Running { running: true, socket, daemon: Some(details) });
    }
    print(&text(&socket, &details))
}

fn details(store: &ClientStore) -> Result<Details> {
    let mut status = store.request::<GetStatus>(&Empty {})?;
    // Without this command.
    status.clients = status.clients.saturating_sub(1);
    let stats = store.stats();
    let Stats { total_tensors, spilled_now, memory_usage_bytes, max_memory_bytes, saved_bytes, .. } = stats;
    Ok(Details {
        kept_tensors: stats.kept_tensors,
        kept_bytes: stats.kept_bytes,
        kept_by: stats.kept_by,
        status,
        log: Some(log_path(store.socket())).filter(|log| log.exists()),
        tensors: total_tensors + spilled_now,
        memory_usage_bytes,
        max_memory_bytes,
        saved_bytes,
    })
}

fn text(socket: &Path, details: &Details) -> String {
    let Details { status, log, tensors, memory_usage_bytes, max_memory_bytes, saved_bytes, .. } = details;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<8} {value}");
    };
    let processes = match status.supervisor {
        Some(supervisor) => format!("processes {supervisor} (supervisor) and {} (server)", status.server),
        None => format!("inside process {}", status.server),
    };
    line("daemon", format!("version {}, up {}, {processes}", status.version, duration(status.uptime_s)));
    line("socket", socket.display().to_string());
    if let Some(address) = &status.http {
        line("HTTP", format!("http://{address}"));
    }
    if let Some(pid) = status.models {
        line("models", format!("process {pid}"));
    }
    if let Some(engine) = &status.engine {
        line("engine", engine_text(engine));
    }
    let budget = max_memory_bytes.map_or_else(String::new, |max| format!(" of {}", size(max)));
    line("memory", format!("{}{budget} in {}", size(*memory_usage_bytes), count(*tensors, "tensor")));
    if details.kept_tensors > 0 {
        let kept = kept(details.kept_tensors, details.kept_bytes, &details.kept_by);
        line("kept", format!("{kept}; without a holder, until `cotensor rm`, or evicted for others"));
    }
    line("saved", format!("{} by sharing", size(*saved_bytes)));
    line("clients", status.clients.to_string());
    if let Some(idle) = status.idle_exit_s {
        line("end", format!("after {} without clients and tensors", duration(idle)));
    }
    if let Some(log) = log {
        line("log", log.display().to_string());
    }
    text
}

/// Name, version, library, and why a better engine is not used.
pub(super) fn engine_text(engine: &ModelEngine) -> String {
    let ModelEngine { name, version, library, absent } = engine;
    let library = library.as_ref().map_or_else(|| "part of cotensor".to_owned(), |path| path.display().to_string());
    let mut text = format!("{name} {version} ({library})");
    for reason in absent {
        text += &format!("; not {reason}");
    }
    plain(&text)
}
