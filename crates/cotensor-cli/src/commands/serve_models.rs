//! `serve-models`: offers models as functions, in a separate process, so that a failing engine cannot affect the
//! daemon.

use super::connection::connect;
use super::local::client_cache;
use crate::args::ServeModelsArgs;
use crate::launch::Program;
use crate::output::{print_json, report};
use crate::signals;
use cotensor::LocalOptions;
use cotensor::core::{Error, Result};
use cotensor::memory::process::{allow_heap_growth, return_memory, use_one_heap};
use cotensor::model::engine::{EngineInfo, add_libraries};
use cotensor_client::bind_unix;
use cotensor_functions::{Functions, Limits, Provider};
use cotensor_serving::{LoadedModels, ServingOptions, model_functions, v1};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fs::Permissions;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// The most free memory that stays between two requests. [`return_memory`] returns it once there are no requests.
const GROWTH_MAX_BYTES: u64 = 256 << 20;

/// The JSON object that `--json` prints when the functions are registered.
#[derive(Serialize)]
struct Started {
    pid: u32,
    /// The daemon shows it to its clients.
    engine: EngineInfo,
    functions: Vec<String>,
}

pub(crate) fn serve_models(args: &ServeModelsArgs, program: &Program) -> Result<()> {
    // The memory of a long text returns to the system whole.
    use_one_heap();
    allow_heap_growth(GROWTH_MAX_BYTES);
    let mut stop = signals::bytes(&[SIGTERM, SIGINT])?;
    let store = connect(&args.client, program, "models")?;
    add_libraries(&args.library);
    let options = LocalOptions {
        cache: client_cache(args.cache.as_deref()),
        threads: args.threads.map(usize::from),
        engine: args.engine.engine.clone(),
        ..LocalOptions::default()
    };
    let runtime = options.runtime_over(Arc::clone(&store) as Arc<_>)?;
    runtime.limit_to_free_memory();
    let limits = Limits { workers: usize::from(args.workers), ..Limits::default() };
    let options = ServingOptions {
        model_ttl: Some(args.model_ttl).filter(|ttl| !ttl.is_zero()),
        caches_results: !args.no_result_cache,
        on_idle: Some(return_memory),
    };
    let models = LoadedModels::new(runtime, options)?;
    let engine = models.engine();
    let endpoints = args.v1.as_deref().map(|path| Endpoints::start(path, Arc::clone(&models))).transpose()?;
    // The daemon's own process gives way to one that a user starts.
    let builder = Provider::builder(Arc::clone(&store)).standby(args.v1.is_some());
    let provider = model_functions(builder, models).limits(limits).start()?;
    let offered = Functions::new(store).list("")?;
    let own = offered.into_iter().filter(|found| found.provider.epoch == provider.epoch());
    let functions: Vec<String> = own.map(|found| found.function.name).collect();
    if args.client.json {
        print_json(&Started { pid: std::process::id(), engine, functions })?;
    } else {
        report(&format!(
            "offering {} on {} {}; SIGTERM or Ctrl-C ends it",
            functions.join(", "),
            engine.name,
            engine.version
        ));
    }
    if args.v1.is_some() {
        end_with_standard_input()?;
    }
    // Returns when a signal arrives or the socket fails.
    let _ = stop.read(&mut [0]);
    drop((provider, endpoints));
    Ok(())
}

/// If standard input is a pipe or a socket, ends this process at its end: its daemon has ended.
fn end_with_standard_input() -> Result<()> {
    let found = std::fs::metadata("/dev/stdin");
    if !found.is_ok_and(|found| found.file_type().is_fifo() || found.file_type().is_socket()) {
        return Ok(());
    }
    let wait = || {
        // Bytes have no meaning; an error is an end, too.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        signal_hook::low_level::raise(SIGTERM)
    };
    let waiting = std::thread::Builder::new().name("daemon".to_owned()).spawn(wait);
    waiting.map(drop).map_err(|error| Error::io("waiting for the daemon", &error))
}

/// The HTTP endpoints on threads of their own. Dropping this ends them and removes the socket.
struct Endpoints {
    path: PathBuf,
    /// The inode of the socket's file. Another process may replace it.
    inode: u64,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Endpoints {
    /// Replaces a socket that a former process left. The socket gets its mode before its name, so that other users can never
    /// open it.
    fn start(path: &Path, models: Arc<LoadedModels>) -> Result<Self> {
        let io = |error: std::io::Error| Error::io("serving /v1", &error).in_file(path);
        if std::fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
            return Err(
                Error::invalid("a file that is not a socket is here: remove it, or name another path").in_file(path)
            );
        }
        let new_path = path.with_added_extension(std::process::id().to_string());
        let _ = std::fs::remove_file(&new_path);
        let listener = bind_unix(&new_path).map_err(io)?;
        let named = std::fs::set_permissions(&new_path, Permissions::from_mode(0o600))
            .and_then(|()| std::fs::rename(&new_path, path))
            .and_then(|()| std::fs::symlink_metadata(path));
        let inode = named.inspect_err(|_| drop(std::fs::remove_file(&new_path))).map_err(io)?.ino();
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(io)?;
        let serve = move || runtime.block_on(v1::serve(models, listener, async move { drop(stopped.await) }));
        let thread = std::thread::Builder::new().name("v1".to_owned()).spawn(serve).map_err(io)?;
        Ok(Self { path: path.to_path_buf(), inode, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Endpoints {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
