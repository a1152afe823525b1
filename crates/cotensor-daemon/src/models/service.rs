//! The model process of a daemon: none until the first request, then at most one.

use super::attempts::Attempts;
use super::config::ModelsConfig;
use super::engine::add_libraries;
use super::libraries::{Libraries, Library};
use super::orphan::end_orphan;
use super::process::{EXIT_TIMEOUT, ModelProcess, stopping};
use cotensor_client::path_beside;
use cotensor_client::protocol::ModelEngine;
use cotensor_core::sync::lock;
use cotensor_core::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Starts the model process and keeps track of it.
pub(crate) struct Models {
    config: Option<ModelsConfig>,
    /// The path of the daemon's socket.
    daemon: PathBuf,
    current: Mutex<Option<Arc<ModelProcess>>>,
    /// Locked while a process is started.
    attempts: tokio::sync::Mutex<Attempts>,
    stop: watch::Sender<bool>,
    libraries: Mutex<Libraries>,
    requests: AtomicU64,
}

impl Models {
    /// `daemon` is the path of the daemon's socket.
    pub(crate) fn new(config: Option<ModelsConfig>, daemon: &Path) -> Arc<Self> {
        Arc::new(Self {
            config,
            // The process and its clients may have other current folders.
            daemon: std::path::absolute(daemon).unwrap_or_else(|_| daemon.to_path_buf()),
            current: Mutex::default(),
            attempts: tokio::sync::Mutex::default(),
            stop: watch::Sender::new(false),
            libraries: Mutex::default(),
            requests: AtomicU64::new(0),
        })
    }

    /// Whether the daemon has a program that serves models.
    pub(crate) fn is_configured(&self) -> bool {
        self.config.is_some()
    }

    /// The process if it runs.
    pub(crate) fn running(&self) -> Option<Arc<ModelProcess>> {
        lock(&self.current).clone().filter(|process| process.is_running())
    }

    /// The number of requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// The process; starts it if none runs. Concurrent calls start one.
    ///
    /// # Errors
    /// `Unsupported` when the daemon has no program for models; `Unreachable` when the process ends at its start, and for a time
    /// after several such failures; `TimedOut`; those of [`end_orphan`].
    pub(crate) async fn ensure(self: &Arc<Self>) -> Result<Arc<ModelProcess>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(process) = self.running() {
            return Ok(process);
        }
        // The start continues when this request ends: others wait for it.
        let models = Arc::clone(self);
        tokio::spawn(async move { models.start().await }).await.map_err(|_| stopping())?
    }

    /// Adds a [checked](super::checked) library of the fast engine. A process that runs without a fast engine loads it now; the next
    /// processes try it. Returns the engine of the process that runs.
    pub(crate) async fn offer(self: &Arc<Self>, library: Library) -> Option<ModelEngine> {
        let before = {
            let mut libraries = lock(&self.libraries);
            let before = libraries.added;
            libraries.add(library);
            before
        };
        // A process that is being started may not have this library.
        let _starting = self.attempts.lock().await;
        let process = self.running()?;
        let (libraries, added) = {
            let libraries = lock(&self.libraries);
            (libraries.list(), libraries.added)
        };
        let lacks_one = process.engine().is_some_and(|engine| !engine.absent.is_empty());
        if added != before && lacks_one {
            match add_libraries(&process, &libraries).await {
                Ok(engine) => {
                    tracing::info!(
                        "the engine of the model process {} is {} {}",
                        process.pid,
                        engine.name,
                        engine.version
                    );
                    process.set_engine(engine);
                }
                Err(reason) => tracing::warn!("the model process {} loads no library: {reason}", process.pid),
            }
        }
        process.engine()
    }

    async fn start(&self) -> Result<Arc<ModelProcess>> {
        let config = self.config.as_ref().ok_or_else(not_configured)?;
        let mut attempts = self.attempts.lock().await;
        if *self.stop.borrow() {
            return Err(stopping());
        }
        if let Some(process) = self.running() {
            return Ok(process);
        }
        let ended = lock(&self.current).take();
        if let Some(ended) = ended {
            // It is dying or dead.
            let _ = tokio::time::timeout(EXIT_TIMEOUT, ended.ended()).await;
            attempts.ended(ended.uptime(), Instant::now());
        }
        attempts.check(Instant::now())?;
        let path = path_beside(&self.daemon, ".v1");
        end_orphan(&path).await?;
        let libraries = lock(&self.libraries).list();
        match ModelProcess::start(config, &self.daemon, path, &libraries, self.stop.subscribe()).await {
            Ok(process) => {
                let process = Arc::new(process);
                *lock(&self.current) = Some(Arc::clone(&process));
                Ok(process)
            }
            Err(error) => {
                tracing::error!("{error}");
                attempts.ended(Duration::ZERO, Instant::now());
                Err(error)
            }
        }
    }

    /// Ends the process and waits for its end. No other one is started.
    pub(crate) async fn stop(&self) {
        self.stop.send_replace(true);
        // A process that is being started ends first.
        drop(self.attempts.lock().await);
        let current = lock(&self.current).clone();
        if let Some(process) = current {
            process.ended().await;
        }
    }
}

fn not_configured() -> Error {
    Error::unsupported("this daemon serves no models: start it with `cotensor serve`")
}
