//! A server of models on a real Unix socket, and its models.

use cotensor_core::{Error, ErrorKind};
use cotensor_hub::{Hub, Limits, Settings};
use cotensor_model::Runtime;
use cotensor_model::engine::RtenEngine;
use cotensor_serving::{LoadedModels, ServingOptions, v1};
use cotensor_store::{LocalStore, Store};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The most bytes that attention may have.
const MEMORY_BYTES: u64 = 1 << 30;

/// The hub's cache in a folder, without the network.
pub(crate) fn offline(cache: &Path) -> Hub {
    let cache = cache.to_path_buf();
    let limits = Limits { attempts: 1, ..Limits::default() };
    Hub::new(Settings { cache, endpoint: None, token: None, offline: true, records: None, verify: false, limits })
}

/// A server on a thread of the test.
pub(crate) struct Server {
    folder: tempfile::TempDir,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(options: ServingOptions) -> Self {
        Self::with_hub(options, Hub::from_env())
    }

    pub(crate) fn with_hub(options: ServingOptions, hub: Hub) -> Self {
        Self::over(LocalStore::builder().build(), options, hub)
    }

    /// A server of models whose results are in `store`.
    pub(crate) fn over(store: Arc<dyn Store>, options: ServingOptions, hub: Hub) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("v1")).unwrap();
        let runtime = Runtime::with_hub(store, Arc::new(RtenEngine::new(Some(1))), hub);
        runtime.limit_memory(|bytes| match bytes {
            0..=MEMORY_BYTES => Ok(()),
            _ => Err(Error::new(ErrorKind::OverBudget, "no such memory")),
        });
        let models = LoadedModels::new(runtime, options).unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(v1::serve(models, listener, async move { drop(stopped.await) })).unwrap();
        });
        Self { folder, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("v1")
    }

    /// The status and the body of an answer.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (head, body) = self.exchange(method, path, body);
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
    }

    /// The head and the body of an answer.
    pub(crate) fn exchange(&self, method: &str, path: &str, body: &str) -> (String, Value) {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (format!("{head}\r\n"), serde_json::from_str(body).unwrap())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.request("POST", path, &body.to_string())
    }

    pub(crate) fn embed(&self, body: &Value) -> Value {
        let (status, answer) = self.post("/v1/embeddings", body);
        assert_eq!(status, 200, "{answer}");
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

pub(crate) fn model(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny").join(name);
    folder.canonicalize().unwrap().to_str().unwrap().to_owned()
}

pub(crate) fn numbers(embedding: &Value) -> Vec<f32> {
    embedding["embedding"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

/// A model of the fixtures with its graphs unpacked.
pub(crate) fn unpacked(name: &str) -> tempfile::TempDir {
    let (from, to) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name), tempfile::tempdir().unwrap());
    for folder in ["", "onnx", "1_Pooling"].into_iter().filter(|folder| from.join(folder).is_dir()) {
        std::fs::create_dir_all(to.path().join(folder)).unwrap();
        for entry in std::fs::read_dir(from.join(folder)).unwrap().flatten().filter(|entry| entry.path().is_file()) {
            let target = to.path().join(folder).join(entry.file_name());
            if target.extension().is_some_and(|extension| extension == "gz") {
                let mut packed = flate2::read::GzDecoder::new(std::fs::File::open(entry.path()).unwrap());
                std::io::copy(&mut packed, &mut std::fs::File::create(target.with_extension("")).unwrap()).unwrap();
            } else {
                std::fs::copy(entry.path(), target).unwrap();
            }
        }
    }
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        if !to.path().join(name).exists() {
            std::fs::copy(Path::new(&model("bert")).join(name), to.path().join(name)).unwrap();
        }
    }
    to
}
