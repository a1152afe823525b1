//! `pull`: downloads a model from the hub.

use super::local::show_downloads;
use crate::args::PullArgs;
use crate::output::{print, print_json};
use cotensor::core::{Result, size};
use cotensor::hub::{Hub, ModelId, Settings};
use serde::Serialize;
use std::path::PathBuf;

#[derive(Serialize)]
struct Report {
    model: String,
    revision: String,
    commit: String,
    folder: PathBuf,
    files: usize,
    bytes: u64,
    bytes_received: u64,
    /// The files that were damaged in the cache and were replaced.
    repaired: Vec<String>,
}

pub(crate) fn pull(args: &PullArgs) -> Result<()> {
    let mut id = ModelId::parse(&args.model).map_err(|error| error.in_field("MODEL"))?;
    if let Some(revision) = &args.revision {
        id = id.at(revision)?;
    }
    let hub = Hub::new(Settings { verify: args.verify, ..Settings::from_env() });
    show_downloads(&hub);
    let pulled = hub.pull(&id, args.variant.as_deref())?;
    let report = Report {
        model: id.name().to_owned(),
        revision: id.revision().to_owned(),
        commit: pulled.commit,
        folder: pulled.folder,
        files: pulled.files,
        bytes: pulled.bytes,
        bytes_received: pulled.bytes_received,
        repaired: pulled.repaired,
    };
    if args.json {
        return print_json(&report);
    }
    let repaired = report.repaired.iter().map(|file| format!("replaced the damaged file {file}\n")).collect::<String>();
    print(&format!(
        "{repaired}{id}, commit {}: {} files, {} ({} downloaded)\n{}\n",
        report.commit,
        report.files,
        size(report.bytes),
        size(report.bytes_received),
        report.folder.display()
    ))
}
