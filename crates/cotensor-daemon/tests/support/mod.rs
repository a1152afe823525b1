//! A daemon in this process, on a socket of its own.
#![allow(dead_code, reason = "every test file uses a part")]

pub(crate) mod calls;
#[cfg(test)]
pub(crate) mod processes;

use cotensor_client::ClientStore;
use cotensor_core::DType;
use cotensor_daemon::{Config, Daemon, Listening};
use cotensor_store::TensorSpec;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

pub(crate) struct Running {
    pub(crate) daemon: Arc<Daemon>,
    pub(crate) socket: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Running {
    pub(crate) fn start(change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cotensor.sock");
        let mut config = Config { socket: socket.clone(), ..Config::default() };
        change(&mut config);
        let daemon = Daemon::new(config).unwrap();
        let mut listening = Listening::bind(&socket).unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = Arc::clone(&daemon);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(serving.serve(&mut listening, async { drop(stopped.await) })).unwrap();
        });
        Self { daemon, socket, stop: Some(stop), thread: Some(thread), _folder: folder }
    }

    pub(crate) fn connect(&self, client: &str) -> Arc<ClientStore> {
        ClientStore::connect(Some(&self.socket), client).unwrap()
    }

    /// Waits until the daemon holds exactly `bytes`: what clients give back takes its way through the socket.
    pub(crate) fn settles_at(&self, bytes: u64) {
        let start = Instant::now();
        loop {
            let used = cotensor_store::StoreReports::stats(&**self.daemon.store()).memory_usage_bytes;
            if used == bytes {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "{used} bytes in use, {bytes} expected");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

pub(crate) fn spec(name: &str, bytes: usize) -> TensorSpec {
    TensorSpec { producer: "test".to_owned(), ..TensorSpec::new(name, DType::U8, &[bytes]) }
}
