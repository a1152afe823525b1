//! `models ls`: the models in the hub's cache.

use crate::output::{print, print_json};
use crate::table::{Table, plain};
use cotensor::core::{Result, size};
use cotensor::hub::{CachedModel, Hub};
use serde::Serialize;
use std::path::PathBuf;

#[derive(Serialize)]
struct Listing {
    folder: PathBuf,
    models: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    commit: String,
    folder: PathBuf,
    bytes: u64,
    family: Option<&'static str>,
    /// Why this program cannot run it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl From<CachedModel> for Entry {
    fn from(CachedModel { name, commit, folder, bytes, family }: CachedModel) -> Self {
        let reason = family.as_ref().err().map(ToString::to_string);
        Self { name, commit, folder, bytes, family: family.ok().map(|family| family.name.as_str()), reason }
    }
}

pub(super) fn list(json: bool) -> Result<()> {
    let hub = Hub::from_env();
    let folder = hub.settings().cache.clone();
    let models: Vec<Entry> = hub.cached()?.into_iter().map(Entry::from).collect();
    if json {
        return print_json(&Listing { folder, models });
    }
    if models.is_empty() {
        return print(&format!("no models in {}; `cotensor pull OWNER/NAME` downloads one\n", folder.display()));
    }
    let mut table = Table::new(&[false, false, true, false], &["name", "family", "size", ""]);
    for Entry { name, family, bytes, reason, .. } in &models {
        let reason = reason.as_ref().map_or_else(String::new, |reason| format!("cannot run: {}", plain(reason)));
        table.row([plain(name), family.unwrap_or("-").to_owned(), size(*bytes), reason]);
    }
    print(&table.text())
}
