//! The store and the engine inside this process, from the common options.

use crate::args::{Common, EngineArgs};
use cotensor::core::{Error, Result};
use cotensor::{LocalOptions, Runtime, SharingConfig, memory};
use std::path::PathBuf;
use std::sync::Arc;

pub(super) fn cache_folder(common: &Common) -> Result<PathBuf> {
    match &common.cache {
        Some(folder) => Ok(folder.clone()),
        None => memory::PackCache::default_dir(),
    }
}

pub(super) fn runtime(common: &Common, engine: &EngineArgs, sharing: SharingConfig) -> Result<Arc<Runtime>> {
    LocalOptions {
        cache: Some(cache_folder(common)?),
        max_memory_bytes: budget_bytes(common)?,
        threads: common.threads.map(usize::from),
        engine: engine.engine.clone(),
        sharing,
    }
    .runtime()
}

pub(super) fn budget_bytes(common: &Common) -> Result<Option<u64>> {
    common.max_memory.map(|mib| mib_to_bytes(mib, "--max-memory")).transpose()
}

pub(super) fn mib_to_bytes(mib: u64, argument: &str) -> Result<u64> {
    let bytes = mib.checked_mul(1 << 20).filter(|&bytes| bytes > 0);
    bytes.ok_or_else(|| Error::invalid(format!("{mib} MiB cannot be a budget")).in_field(argument))
}
