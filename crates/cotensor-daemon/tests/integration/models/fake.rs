//! A program in the place of `cotensor serve-models --v1`: this test binary, started by a script.

use cotensor_client::ClientStore;
use serde_json::json;
use std::fs::{OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The program, its controls and its record, in a folder.
pub(super) struct Fake(PathBuf);

impl Fake {
    pub(super) fn in_folder(folder: &Path) -> Self {
        let fake = Self(folder.to_path_buf());
        let program = std::env::current_exe().unwrap();
        // The test harness prints to standard output, which means that the process is ready.
        let script = format!(
            "#!/bin/sh\nexec 3>&1 >/dev/null\n\
             exec {} --ignored --exact models::fake::model_process --nocapture -- \"$@\"\n",
            program.display()
        );
        std::fs::write(fake.program(), script).unwrap();
        std::fs::set_permissions(fake.program(), Permissions::from_mode(0o755)).unwrap();
        fake
    }

    pub(super) fn program(&self) -> PathBuf {
        self.0.join("models.sh")
    }

    /// Whether processes started from now on end before they are ready.
    pub(super) fn fail(&self, fail: bool) {
        self.set("fail", fail);
    }

    /// Whether processes started from now on stay when their standard input ends.
    pub(super) fn stay(&self, stay: bool) {
        self.set("stay", stay);
    }

    fn set(&self, control: &str, on: bool) {
        if on {
            std::fs::write(self.0.join(control), "").unwrap()
        } else {
            std::fs::remove_file(self.0.join(control)).unwrap()
        }
    }

    fn has(&self, control: &str) -> bool {
        self.0.join(control).exists()
    }

    /// Adds an event to the record.
    fn note(&self, event: &str) {
        let file = OpenOptions::new().create(true).append(true).open(self.0.join("events"));
        file.unwrap().write_all(format!("{event}\n").as_bytes()).unwrap();
    }

    /// How often an event happened.
    pub(super) fn count(&self, event: &str) -> usize {
        let events = std::fs::read_to_string(self.0.join("events")).unwrap_or_default();
        events.lines().filter(|line| *line == event).count()
    }
}

#[test]
#[ignore = "the process that daemons of the other tests start"]
fn model_process() {
    let arguments: Vec<_> = std::env::args().collect();
    let value = |flag: &str| {
        let at = arguments.iter().position(|argument| argument == flag).expect("a daemon starts this test");
        PathBuf::from(&arguments[at + 1])
    };
    let (socket, path) = (value("--socket"), value("--v1"));
    let fake = Fake(socket.parent().unwrap().to_path_buf());
    fake.note("start");
    if fake.has("fail") {
        std::process::exit(3);
    }
    let _session = ClientStore::connect(Some(&socket), "models").unwrap();
    let stays = fake.has("stay").then(|| fake.0.clone());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        // Not longer than the test.
        while stays.as_ref().is_some_and(|folder| folder.exists()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::process::exit(0);
    });
    let listener = UnixListener::bind(&path).unwrap();
    OpenOptions::new().write(true).open("/proc/self/fd/3").unwrap().write_all(b"{}\n").unwrap();
    std::thread::scope(|scope| {
        for (number, connection) in listener.incoming().map_while(Result::ok).enumerate() {
            let fake = &fake;
            scope.spawn(move || while answer(fake, &connection, number).is_some() {});
        }
    });
}

/// Answers one request; none at the end of the connection.
fn answer(fake: &Fake, mut connection: &UnixStream, number: usize) -> Option<()> {
    let mut reader = BufReader::new(connection);
    let (mut line, mut headers, mut length) = (String::new(), Vec::new(), 0);
    reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        headers.push(name.to_ascii_lowercase());
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let mut send = |status: &str, headers: &str, body: &str| {
        let head = format!("HTTP/1.1 {status}\r\n{headers}content-type: application/json\r\n");
        connection.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).ok()
    };
    match path {
        "/v1/die" => std::process::exit(9),
        "/v1/die-first" if fake.count("start") == 1 => std::process::exit(9),
        "/v1/hang" => {
            fake.note("hang");
            while reader.read(&mut [0]).is_ok_and(|bytes| bytes > 0) {}
            fake.note("gone");
            None
        }
        "/v1/refuse" => send("429 Too Many Requests", "retry-after: 7\r\n", "{\"error\":{}}"),
        "/v1/stream" => {
            connection.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").ok()?;
            for _ in 0..64 {
                connection.write_all(format!("4000\r\n{}\r\n", "x".repeat(0x4000)).as_bytes()).ok()?;
            }
            connection.write_all(b"0\r\n\r\n").ok()
        }
        _ => {
            let pid = std::process::id();
            let seen = json!({"pid": pid, "connection": number, "method": method, "path": path, "headers": headers, "bytes": length});
            send("200 OK", "", &seen.to_string())
        }
    }
}
