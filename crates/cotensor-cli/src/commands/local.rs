//! The store and the engine inside this process, from the common options.

use super::connection::connect_at;
use crate::args::{Common, EngineArgs, RuntimeArgs};
use crate::launch::Program;
use crate::output::Steps;
use cotensor::core::sync::lock;
use cotensor::core::{Error, Result};
use cotensor::hub::Hub;
use cotensor::{LocalOptions, Runtime, SharingConfig, memory};
use cotensor_demo::Progress;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

pub(super) fn cache_folder(common: &Common) -> Result<PathBuf> {
    match &common.cache {
        Some(folder) => Ok(folder.clone()),
        None => memory::PackCache::default_dir(),
    }
}

/// The cache folder of a client of the daemon, which can do without a default folder.
pub(super) fn client_cache(given: Option<&Path>) -> Option<PathBuf> {
    given.map(Path::to_path_buf).or_else(memory::PackCache::usable_default_dir)
}

pub(super) fn runtime(common: &Common, engine: &EngineArgs, sharing: SharingConfig) -> Result<Arc<Runtime>> {
    let cache = Some(cache_folder(common)?);
    let options = LocalOptions { cache, max_memory_bytes: common.max_memory, sharing, ..options(common, engine) };
    let runtime = options.runtime()?;
    show_downloads(runtime.hub());
    Ok(runtime)
}

fn options(common: &Common, engine: &EngineArgs) -> LocalOptions {
    LocalOptions { threads: common.threads.map(usize::from), engine: engine.engine.clone(), ..LocalOptions::default() }
}

/// The store of the daemon with `--daemon`, else one of this process. `client` names this process to the daemon.
pub(super) fn runtime_in(args: &RuntimeArgs, program: &Program, client: &str) -> Result<Arc<Runtime>> {
    let RuntimeArgs { common, engine, place, sharing } = args;
    if !place.daemon {
        return runtime(common, engine, sharing.config());
    }
    if sharing.is_given() {
        let message = "the daemon sets the sharing options: `cotensor serve --allowed-types …`";
        return Err(Error::invalid(message).in_field("--daemon"));
    }
    let store = connect_at(place.socket.as_deref(), program, client)?;
    let options = LocalOptions { cache: client_cache(common.cache.as_deref()), ..options(common, engine) };
    let runtime = options.runtime_over(store)?;
    show_downloads(runtime.hub());
    Ok(runtime)
}

/// Shows the progress of downloads on standard error.
pub(super) fn show_downloads(hub: &Hub) {
    let shown = Mutex::new(None);
    hub.observe(move |done, total, what| {
        let mut steps = lock(&shown);
        if done < total {
            steps.get_or_insert_with(Steps::new).step(done, total, what);
        } else if let Some(ended) = steps.take() {
            // Dropped, which removes the bar. The next download has another.
            ended.step(done, total, what);
        }
    });
}
