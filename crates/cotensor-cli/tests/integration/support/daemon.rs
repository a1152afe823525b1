//! A daemon process with its own socket, and commands that connect to it.

use serde_json::Value;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(crate) struct Daemon {
    pub(crate) folder: tempfile::TempDir,
    /// The JSON object that the daemon printed when ready.
    pub(crate) ready: Value,
    child: Option<Child>,
}

impl Daemon {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut daemon = Self::stopped();
        daemon.serve(arguments);
        daemon
    }

    /// A daemon that is not started.
    pub(crate) fn stopped() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), ready: Value::Null, child: None }
    }

    /// Starts a daemon on the same socket, and waits until it is ready.
    pub(crate) fn serve(&mut self, arguments: &[&str]) {
        self.serve_with(arguments, |_| {});
    }

    /// As [`serve`](Self::serve), with a command modified by `change`.
    pub(crate) fn serve_with(&mut self, arguments: &[&str], change: impl FnOnce(&mut Command)) {
        assert!(self.child.is_none(), "one at a time");
        let mut command = self.command(&["serve", "--json"]);
        command.args(arguments).stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let mut answer = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        while !answer.trim_end().ends_with('}') {
            assert!(lines.read_line(&mut answer).unwrap() > 0, "the daemon ended: {answer}");
        }
        self.ready = serde_json::from_str(&answer).unwrap();
        assert_eq!(self.ready["pid"], child.id());
        self.child = Some(child);
    }

    /// The Authorization header with the daemon's token.
    pub(crate) fn authorization(&self) -> String {
        let token = std::fs::read_to_string(self.ready["token_file"].as_str().unwrap()).unwrap();
        format!("Authorization: Bearer {}\r\n", token.trim())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("cotensor.sock")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command, with the daemon's socket in its environment, in the daemon's folder.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cotensor"));
        command
            .current_dir(self.folder.path())
            .env("COTENSOR_SOCKET", self.socket())
            .env("COTENSOR_CACHE", self.path("cache"))
            .env("COTENSOR_AUTOSTART", "0")
            .env_remove("COTENSOR_IDLE_EXIT")
            .env_remove("COTENSOR_MAX_MEMORY")
            .env_remove("COTENSOR_SPILL")
            .env_remove("NOTIFY_SOCKET")
            .env_remove("COTENSOR_LISTEN")
            .env_remove("COTENSOR_ALLOW_HOST")
            .env_remove("COTENSOR_TOKEN_FILE")
            .env_remove("COTENSOR_MODEL_TTL")
            .env_remove("COTENSOR_LOG");
        super::without_network(&mut command, &self.path("hub"));
        command.args(arguments);
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub(crate) fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that refuses its arguments ends without reading its input.
        let fed = child.stdin.take().unwrap().write_all(input);
        assert!(fed.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::BrokenPipe), "{arguments:?}: {fed:?}");
        child.wait_with_output().unwrap()
    }

    /// Standard output of a command that must succeed.
    pub(crate) fn ok(&self, arguments: &[&str]) -> Vec<u8> {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.push("--json");
        serde_json::from_slice(&self.ok(&all)).expect("one JSON object and nothing else")
    }

    /// Runs a command that must fail with `code` and an error that contains all of `words`.
    pub(crate) fn expect_error(&self, arguments: &[&str], code: i32, words: &[&str]) {
        let output = self.run(arguments);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {complaint}");
        for word in words {
            assert!(complaint.contains(word), "{arguments:?} should say {word}: {complaint}");
        }
        assert!(!complaint.contains("panicked"), "{complaint}");
    }

    /// Sends a signal (an argument of `kill`) to the daemon, and waits for its end. Returns its exit code, if any.
    pub(crate) fn signal(&mut self, signal: &str) -> Option<i32> {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        self.ended()
    }

    /// Waits for the end of the daemon. Returns its exit code, if any.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        let mut child = self.child.take().unwrap();
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < Duration::from_secs(60), "the daemon does not stop");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(Command::new("kill").arg(child.id().to_string()).status());
            let _ = child.wait();
        }
        // The server may outlive a killed supervisor.
        if let Ok(pid) = std::fs::read_to_string(self.path("cotensor.sock.lock")) {
            let line = std::fs::read(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
            if line.starts_with(env!("CARGO_BIN_EXE_cotensor").as_bytes()) {
                drop(Command::new("kill").arg(pid.trim()).status());
            }
        }
    }
}
