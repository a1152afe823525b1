//! A folder with a tiny model, in which commands run.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// A temporary folder with a tiny model, a pipeline of three users, and a cache.
pub(crate) struct Workspace {
    root: tempfile::TempDir,
}

pub(crate) const BERT: &str = r#"
[[user]]
name = "sentiment"
model = "bert"
task = "text-classification"

[[user]]
name = "entities"
model = "bert"
task = "token-classification"
head = "head.entities"

[[user]]
name = "embedding"
model = "bert"
task = "sentence-embedding"
"#;

impl Workspace {
    pub(crate) fn with(family: &str) -> Self {
        let workspace = Self { root: tempfile::tempdir().unwrap() };
        copy(&fixtures().join("tiny").join(family), &workspace.path(family));
        fs::write(workspace.path("pipeline.toml"), BERT).unwrap();
        workspace
    }

    /// Adds the model `other`: a copy of BERT with another weight in its encoder.
    pub(crate) fn add_other_bert(&self) {
        copy(&self.path("bert"), &self.path("other"));
        let weights = self.path("other/onnx/model.onnx_data");
        let mut bytes = fs::read(&weights).unwrap();
        bytes[0] ^= 1;
        fs::write(&weights, bytes).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The command in this folder, which does not use the network.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cotensor"));
        command.current_dir(self.root.path()).env("COTENSOR_CACHE", self.path("cache")).args(arguments);
        without_network(&mut command, &self.path("hub"));
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that must fail with exit code 2 and an error that contains all of `names`.
    pub(crate) fn expect_error(&self, arguments: &[&str], names: &[&str]) {
        let output = self.run(arguments);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaint}");
        assert!(output.stdout.is_empty());
        for name in names {
            assert!(complaint.contains(name), "{arguments:?} should name {name}: {complaint}");
        }
        assert!(!complaint.contains("panicked"), "{complaint}");
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("one JSON object and nothing else")
    }
}

/// Gives a command a hub's cache of its own, no network and no configuration file.
pub(crate) fn without_network(command: &mut Command, cache: &Path) {
    command.env("COTENSOR_CONFIG", "/dev/null");
    command.env("HF_HUB_CACHE", cache).env("HF_HUB_OFFLINE", "1").env_remove("HF_TOKEN").env_remove("HF_ENDPOINT");
}

/// Copies a folder recursively.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
