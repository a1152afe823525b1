//! A hub with one model, and a cache in a temporary folder.

use cotensor_hub::testing::{HubServer, files_of};
use cotensor_hub::{Hub, Limits, ModelId, Settings};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The name of the model that every server has.
pub(crate) const NAME: &str = "owner/tiny-bert";

pub(crate) struct Cache {
    folder: tempfile::TempDir,
}

impl Cache {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("hub")
    }

    /// The folder of the model in the cache.
    pub(crate) fn repository(&self) -> PathBuf {
        self.path().join("models--owner--tiny-bert")
    }

    pub(crate) fn settings(&self, server: &HubServer) -> Settings {
        Settings {
            cache: self.path(),
            endpoint: Some(server.address().to_owned()),
            token: None,
            offline: false,
            records: Some(self.folder.path().join("records")),
            verify: false,
            limits: Limits { attempts: 2, ..Limits::default() },
        }
    }

    pub(crate) fn hub(&self, server: &HubServer) -> Hub {
        Hub::new(self.settings(server))
    }

    /// A hub whose server gets little time.
    pub(crate) fn impatient(&self, server: &HubServer) -> Hub {
        let short = Duration::from_millis(300);
        let limits = Limits { metadata: short, idle: short, slow: short, slow_bytes: 1000, attempts: 1, lock: short };
        Hub::new(Settings { limits, ..self.settings(server) })
    }

    /// The names of the files in a folder of the model, sorted; empty without the folder.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.repository().join(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

pub(crate) fn id() -> ModelId {
    ModelId::parse(NAME).unwrap()
}

/// The files of the tiny BERT, and some that are not read.
pub(crate) fn files() -> BTreeMap<String, Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/bert");
    let mut files = files_of(&folder);
    files.retain(|path, _| !path.starts_with("reference") && path != "preprocess.json");
    for unread in ["README.md", "model.safetensors", "pytorch_model.bin", "onnx/model_fp16.onnx"] {
        files.insert(unread.to_owned(), vec![7; 10_000]);
    }
    files
}

/// A server with the tiny BERT.
pub(crate) fn server() -> HubServer {
    let server = HubServer::start();
    server.serve(NAME, files());
    server
}

/// The paths of files that were requested from a server.
pub(crate) fn requested(server: &HubServer) -> Vec<String> {
    let requests = server.take_requests().into_iter();
    requests.filter_map(|request| Some(request.path.split_once("/resolve/")?.1.split_once('/')?.1.to_owned())).collect()
}
