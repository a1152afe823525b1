use crate::args::{CacheAction, CacheArgs};
use crate::output::{print, print_json};
use cotensor::core::{Error, ErrorKind, Result, size};
use cotensor::memory::PackCache;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);

#[derive(Serialize)]
struct Verification {
    folder: PathBuf,
    /// Number of contents whose hash is right.
    contents: usize,
    /// Reasons of the removed packs.
    removed: Vec<String>,
}

#[derive(Serialize)]
struct Pruning {
    folder: PathBuf,
    removed_packs: usize,
    removed_bytes: u64,
    packs: usize,
    bytes: u64,
}

pub(crate) fn cache(args: &CacheArgs) -> Result<()> {
    let folder = args.cache.clone().map_or_else(PackCache::default_dir, Ok)?;
    if !folder.is_dir() {
        return Err(Error::not_found("no weight cache in this folder; `--cache DIR` names another").in_file(folder));
    }
    let cache = PackCache::open(&folder)?;
    match args.action {
        CacheAction::Verify => verify(args, folder, &cache),
        CacheAction::Prune { unused_for, all } => {
            let unused_for = if all { Duration::ZERO } else { DAY * unused_for };
            prune(args, folder, &cache, unused_for)
        }
    }
}

fn verify(args: &CacheArgs, folder: PathBuf, cache: &PackCache) -> Result<()> {
    let (contents, wrong) = cache.verify();
    let removed: Vec<String> = wrong.iter().map(ToString::to_string).collect();
    if args.json {
        print_json(&Verification { folder: folder.clone(), contents, removed: removed.clone() })?;
    } else {
        let lines = removed.iter().map(|problem| format!("removed: {problem}\n")).collect::<String>();
        print(&format!("{lines}{contents} weights have the right hash\n"))?;
    }
    match removed.len() {
        0 => Ok(()),
        // Not Corrupt, which means bad input: the disk or another program damaged the pack.
        count => Err(Error::new(ErrorKind::Io, format!("{count} damaged packs were removed")).in_file(folder)),
    }
}

fn prune(args: &CacheArgs, folder: PathBuf, cache: &PackCache, unused_for: Duration) -> Result<()> {
    let (removed_packs, removed_bytes) = cache.prune(unused_for)?;
    let (packs, bytes) = cache.usage();
    if args.json {
        return print_json(&Pruning { folder, removed_packs, removed_bytes, packs, bytes });
    }
    let (removed, left) = (size(removed_bytes), size(bytes));
    print(&format!("removed {removed_packs} packs ({removed}); {packs} remain ({left})\n"))
}
