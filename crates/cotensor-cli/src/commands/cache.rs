//! `cache`: the folder with weights, files in the layout of engines, and the demo's models.

use crate::args::{CacheAction, CacheArgs};
use crate::output::{print, print_json};
use crate::table::{Table, duration, plain};
use cotensor::core::{Error, ErrorKind, Result, size};
use cotensor::hub::RECORDS_FOLDER;
use cotensor::memory::{CacheEntry, PackCache};
use cotensor::model::quantize::REPORT_FILE;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The folder of the demo's models, which have seeded weights.
const MODELS: &str = "models";

#[derive(Serialize)]
struct Listing {
    folder: PathBuf,
    bytes: u64,
    entries: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    /// `weights`, `derived`, `quantized model` or `demo model`.
    kind: &'static str,
    path: PathBuf,
    bytes: u64,
    /// Seconds since the last use, as far as the file system records it.
    unused_s: Option<f64>,
}

#[derive(Serialize)]
struct Verification {
    folder: PathBuf,
    /// The number of weights whose hash is right.
    contents: usize,
    /// The number of derived files whose hash is right.
    derived_files: usize,
    /// The number of notes whose hash is right.
    notes: usize,
    /// The reason for each removed file or folder.
    removed: Vec<String>,
}

#[derive(Serialize)]
struct Pruning {
    folder: PathBuf,
    removed_packs: usize,
    removed_models: usize,
    removed_bytes: u64,
    packs: usize,
    bytes: u64,
}

pub(crate) fn cache(args: &CacheArgs) -> Result<()> {
    let folder = args.cache.clone().map_or_else(PackCache::default_dir, Ok)?;
    if matches!(args.action, CacheAction::Path) {
        return if args.json {
            print_json(&serde_json::json!({"folder": folder}))
        } else {
            print(&format!("{}\n", folder.display()))
        };
    }
    if !folder.is_dir() {
        return Err(Error::not_found("no weight cache in this folder; `--cache DIR` names another").in_file(folder));
    }
    let cache = PackCache::open(&folder)?;
    match args.action {
        CacheAction::Ls => list(args, folder, &cache),
        CacheAction::Verify => verify(args, folder, &cache),
        CacheAction::Prune { unused_for, all } => {
            let unused_for = if all { Duration::ZERO } else { unused_for };
            prune(args, folder, &cache, unused_for)
        }
        CacheAction::Path => Ok(()),
    }
}

/// Everything in the cache, the largest first.
fn entries(folder: &Path, cache: &PackCache) -> Vec<Entry> {
    let kept = cache.entries().into_iter().map(|CacheEntry { is_pack, path, bytes, used }| {
        let quantized = if is_pack { None } else { quantized_model(&path) };
        let kind = match (is_pack, &quantized) {
            (true, _) => "weights",
            (false, Some(_)) => "quantized model",
            (false, None) => "derived",
        };
        Entry { kind, path: quantized.unwrap_or(path), bytes, unused_s: used.and_then(since) }
    });
    let models = models(folder).map(|(path, bytes, used)| Entry {
        kind: "demo model",
        path,
        bytes,
        unused_s: used.and_then(since),
    });
    let mut entries: Vec<Entry> = kept.chain(models).collect();
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.bytes));
    entries
}

/// The folder of the model in a folder of derived files, if it is one with weights of few bits.
fn quantized_model(derived: &Path) -> Option<PathBuf> {
    let mut inner = std::fs::read_dir(derived).ok()?.flatten().map(|entry| entry.path());
    inner.find(|path| path.join(REPORT_FILE).is_file())
}

fn since(time: SystemTime) -> Option<f64> {
    SystemTime::now().duration_since(time).ok().map(|since| since.as_secs_f64())
}

/// The demo's models, each with the bytes and the last use of its files.
fn models(folder: &Path) -> impl Iterator<Item = (PathBuf, u64, Option<SystemTime>)> + use<> {
    let folders = std::fs::read_dir(folder.join(MODELS)).into_iter().flatten().flatten();
    folders.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| {
        let (bytes, used) = contents(&entry.path());
        (entry.path(), bytes, used)
    })
}

/// The bytes of the files below a folder, and their last use.
fn contents(folder: &Path) -> (u64, Option<SystemTime>) {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?))).fold(
        (0, None),
        |(bytes, used), (path, found)| {
            let (more, inner) = if found.is_dir() {
                contents(&path)
            } else {
                (found.len(), found.accessed().ok().max(found.modified().ok()))
            };
            (bytes + more, used.max(inner))
        },
    )
}

fn list(args: &CacheArgs, folder: PathBuf, cache: &PackCache) -> Result<()> {
    let entries = entries(&folder, cache);
    let bytes = entries.iter().map(|entry| entry.bytes).sum();
    if args.json {
        return print_json(&Listing { folder, bytes, entries });
    }
    let mut table = Table::new(&[false, true, true, false], &["kind", "size", "unused for", "path"]);
    for Entry { kind, path, bytes, unused_s } in &entries {
        let path = path.strip_prefix(&folder).unwrap_or(path).display().to_string();
        let unused = unused_s.map_or_else(String::new, duration);
        table.row([(*kind).to_owned(), size(*bytes), unused, plain(&path)]);
    }
    print(&format!(
        "{}{} in {}; `cotensor cache prune` removes what is unused\n",
        table.text(),
        size(bytes),
        folder.display()
    ))
}

fn verify(args: &CacheArgs, folder: PathBuf, cache: &PackCache) -> Result<()> {
    let found = cache.verify();
    let removed: Vec<String> = found.removed.iter().map(ToString::to_string).collect();
    let (contents, derived_files, notes, damaged) = (found.blobs, found.files, found.notes, removed.len());
    if args.json {
        print_json(&Verification { folder: folder.clone(), contents, derived_files, notes, removed })?;
    } else {
        let lines = removed.iter().map(|problem| format!("removed: {problem}\n")).collect::<String>();
        print(&format!(
            "{lines}{contents} weights, {derived_files} derived files and {notes} notes have the right hash\n"
        ))?;
    }
    match damaged {
        0 => Ok(()),
        // Not Corrupt, which means bad input: the disk or another program damaged the files.
        _ => {
            let message = format!("{damaged} damaged entries were removed; the next use makes them again");
            Err(Error::new(ErrorKind::Io, message).in_file(folder))
        }
    }
}

fn prune(args: &CacheArgs, folder: PathBuf, cache: &PackCache, unused_for: Duration) -> Result<()> {
    let (removed_packs, mut removed_bytes) = cache.prune(unused_for)?;
    let mut removed_models = 0;
    let is_unused = |used: Option<SystemTime>| used.and_then(since).unwrap_or_default() >= unused_for.as_secs_f64();
    for (model, bytes, _) in models(&folder).filter(|(.., used)| is_unused(*used)) {
        std::fs::remove_dir_all(&model).map_err(|error| Error::io("cannot remove", &error).in_file(&model))?;
        removed_models += 1;
        removed_bytes += bytes;
    }
    for record in std::fs::read_dir(folder.join(RECORDS_FOLDER)).into_iter().flatten().flatten() {
        let used = record.metadata().ok().and_then(|found| found.accessed().ok().max(found.modified().ok()));
        if is_unused(used) {
            // Without a record the file of the hub is verified again.
            let _ = std::fs::remove_file(record.path());
        }
    }
    let (packs, bytes) = cache.usage();
    if args.json {
        return print_json(&Pruning { folder, removed_packs, removed_models, removed_bytes, packs, bytes });
    }
    let (removed, left) = (size(removed_bytes), size(bytes));
    let models = if removed_models > 0 { format!(" and {removed_models} models of the demo") } else { String::new() };
    print(&format!("removed {removed_packs} packs{models} ({removed}); {packs} remain ({left})\n"))
}
