//! Two processes with the same weights: both map one file of the cache, nobody holds a copy of its own.
//!
//! `cargo run --example share_weights [MODEL_FOLDER]`

use cotensor::core::{Error, MemoryKind};
use cotensor::{LocalOptions, Runtime};
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> cotensor::Result<()> {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/bert");
    let mut arguments = std::env::args_os().skip(1);
    let folder = arguments.next().map_or(tiny, PathBuf::from);
    let io = |error: std::io::Error| Error::io("cannot start the second process", &error);
    let cache = match arguments.next() {
        Some(cache) => PathBuf::from(cache),
        None => std::env::temp_dir().join(format!("cotensor-example-{}", std::process::id())),
    };
    let runtime = Runtime::local(&LocalOptions { cache: Some(cache.clone()), ..LocalOptions::default() })?;
    let stage = runtime.open(&folder)?.stage("encoder")?;
    let tensors = runtime.store().diagnostics().tensors;
    let mapped = tensors.iter().filter(|tensor| tensor.memory == MemoryKind::MappedFile.to_string()).count();
    let read: u64 = runtime.store().stats().copies.iter().map(|copies| copies.bytes).sum();
    println!(
        "process {}: {mapped} of {} weights mapped, {read} bytes copied",
        std::process::id(),
        stage.weights().len()
    );
    if std::env::args_os().nth(2).is_none() {
        // The same program again: it finds every weight in the cache and copies nothing.
        let program = std::env::current_exe().map_err(io)?;
        let status = Command::new(program).arg(&folder).arg(&cache).status().map_err(io)?;
        std::fs::remove_dir_all(&cache).map_err(io)?;
        if !status.success() {
            return Err(Error::invalid("the second process failed"));
        }
    }
    Ok(())
}
