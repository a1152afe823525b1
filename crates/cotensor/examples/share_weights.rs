//! One copy of a model's weights for two processes: the first process imports them into a cache, and both map them from
//! there.
//!
//! `cargo run --example share_weights`

use cotensor::core::ContentHash;
use cotensor::store::CopyReason;
use cotensor::{Error, LocalOptions, Result};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny/bert");

fn main() -> Result<()> {
    match std::env::args().nth(1) {
        Some(cache) => open_and_print("second", Path::new(&cache), || Ok(())),
        None => {
            let cache = std::env::temp_dir().join(format!("cotensor-example-{}", std::process::id()));
            let result = open_and_print("first", &cache, || second_process(&cache));
            std::fs::remove_dir_all(&cache).map_err(|error| Error::io("cannot remove", &error).in_file(&cache))?;
            result
        }
    }
}

/// Runs this program again while the first process has the model open.
fn second_process(cache: &Path) -> Result<()> {
    let io = |error: std::io::Error| Error::io("cannot start this program again", &error);
    let status = Command::new(std::env::current_exe().map_err(io)?).arg(cache).status().map_err(io)?;
    if status.success() { Ok(()) } else { Err(Error::invalid("the second process failed")) }
}

/// Opens the model, prints its copied and mapped bytes, and calls `meanwhile` before the model is closed.
fn open_and_print(process: &str, cache: &Path, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
    let runtime = LocalOptions { cache: Some(cache.to_path_buf()), ..LocalOptions::default() }.runtime()?;
    let model = runtime.open(Path::new(MODEL))?;
    let encoder = model.stage("encoder")?;
    let weights: BTreeSet<(ContentHash, usize)> = encoder.weights().iter().copied().collect();
    let bytes: usize = weights.iter().map(|(_, bytes)| bytes).sum();
    let copies = runtime.store().stats().copies;
    let imported: u64 =
        copies.iter().filter(|copies| copies.reason == CopyReason::FileImport.name()).map(|copies| copies.bytes).sum();
    println!(
        "{process}: {} weights of {bytes} bytes, {imported} bytes copied, mapped from file {:?}",
        weights.len(),
        mapped_files(cache)?
    );
    meanwhile()
}

/// Device and inode of every file below `folder` that this process has mapped, from /proc.
fn mapped_files(folder: &Path) -> Result<BTreeSet<String>> {
    const MAPS: &str = "/proc/self/maps";
    let maps = std::fs::read_to_string(MAPS).map_err(|error| Error::io("cannot read", &error).in_file(MAPS))?;
    let folder = folder.display().to_string();
    let lines = maps.lines().filter(|line| line.contains(&folder));
    Ok(lines.map(|line| line.split_whitespace().skip(3).take(2).collect::<Vec<_>>().join(" ")).collect())
}
