//! Options of `cotensor serve`: host names, tokens, logs.

use crate::support::{Daemon, until};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The response to a request for `/metrics` with the Host header `host` and further header lines.
fn ask(daemon: &Daemon, host: &str, head: &str) -> String {
    let mut stream = TcpStream::connect(daemon.ready["http"].as_str().unwrap()).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{head}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn allowed_host_names_are_served() {
    let mut daemon = Daemon::start(&["--listen", "127.0.0.1:0"]);
    let answer = ask(&daemon, "tensors.example", &daemon.authorization());
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("--allow-host"), "{answer}");
    assert_eq!(daemon.signal("-TERM"), Some(0));
    daemon.serve(&["--listen", "127.0.0.1:0", "--allow-host", "tensors.example", "--allow-host", "b,c"]);
    for (host, code) in [
        ("Tensors.Example:80", 200),
        ("b", 200),
        ("c:1", 200),
        ("127.0.0.1", 200),
        ("other.example", 403),
        ("b.c", 403),
    ] {
        let answer = ask(&daemon, host, &daemon.authorization());
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{host}: {answer}");
    }
    for wrong in ["http://b", "b:80", "", "a..b", "a b", "*"] {
        daemon.expect_error(
            &["serve", "--listen", "0", "--allow-host", wrong],
            2,
            &["--allow-host", "without scheme and port"],
        );
    }
}

#[test]
fn http_options_are_refused_without_listen() {
    let daemon = Daemon::start(&[]);
    daemon.expect_error(&["serve", "--allow-host", "b"], 2, &["--listen"]);
    daemon.expect_error(&["serve", "--token-file", "token"], 2, &["--listen"]);
}

#[test]
fn host_names_can_be_set_by_the_environment() {
    let daemon = Daemon::start(&[]);
    let socket = daemon.path("other.sock");
    let mut serving = daemon.command(&["serve", "--listen", "127.0.0.1:0", "--socket", socket.to_str().unwrap()]);
    let output = serving.env("COTENSOR_ALLOW_HOST", "b,http://c").output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("http://c") && complaint.contains("--allow-host"), "{complaint}");
}

#[test]
fn invalid_log_filter_is_refused() {
    let daemon = Daemon::start(&[]);
    let other = daemon.path("other.sock");
    for wrong in ["nonsense", "cotensor_daemon=loud", ""] {
        let serve = ["serve", "--socket", other.to_str().unwrap(), "--log", wrong];
        daemon.expect_error(&serve, 2, &["--log", "off, error, warn, info, debug, trace"]);
    }
}

/// Waits for a command's success with a time-out, to detect a hanging daemon.
fn succeeds(daemon: &Daemon, arguments: &[&str]) {
    let mut command = daemon.command(arguments);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return assert!(status.success(), "{arguments:?}");
        }
        if start.elapsed() > Duration::from_secs(60) {
            let _ = child.kill();
            panic!("the daemon does not answer {arguments:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn full_standard_error_does_not_block_the_daemon() {
    let (unread, errors) = std::io::pipe().unwrap();
    let mut daemon = Daemon::stopped();
    daemon.serve_with(&["--listen", "127.0.0.1:0", "--log", "trace"], |serve| {
        serve.stderr(errors);
    });
    // Fills the pipe, so that the next write would block.
    let mut filler = std::fs::OpenOptions::new()
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(format!("/proc/{}/fd/2", daemon.ready["pid"]))
        .unwrap();
    while filler.write(&[b'.'; 4096]).is_ok() || filler.write(b".").is_ok() {}
    for _ in 0..20 {
        succeeds(&daemon, &["stat"]);
    }
    // The next server and the supervisor log to the same pipe.
    let server = daemon.ready["server"].to_string();
    assert!(Command::new("kill").args(["-KILL", &server]).status().unwrap().success());
    for _ in 0..5 {
        succeeds(&daemon, &["stat"]);
    }
    assert_eq!(daemon.signal("-TERM"), Some(0));
    drop(unread);
}

#[test]
fn token_is_printed_as_text_header_and_json() {
    let mut daemon = Daemon::start(&["--listen", "127.0.0.1:0"]);
    let file = daemon.path("cotensor.sock.token");
    assert_eq!(daemon.ready["token_file"], json!(file));
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).unwrap()) & 0o777, 0o600);
    let secret = std::fs::read_to_string(&file).unwrap();
    assert_eq!(daemon.ok(&["token"]), secret.as_bytes());
    let header = String::from_utf8(daemon.ok(&["token", "--header"])).unwrap();
    assert_eq!(header, format!("Authorization: Bearer {secret}"));
    let shown = daemon.json(&["token"]);
    assert_eq!((&shown["http"], &shown["token"]), (&daemon.ready["http"], &json!(secret.trim())));
    assert!(ask(&daemon, "localhost", "").starts_with("HTTP/1.1 401"));
    assert!(ask(&daemon, "localhost", &header.replace('\n', "\r\n")).starts_with("HTTP/1.1 200"));

    // The token survives a restart of the server.
    assert_eq!(daemon.signal("-TERM"), Some(0));
    daemon.serve(&["--listen", "127.0.0.1:0"]);
    assert_eq!(daemon.ok(&["token"]), secret.as_bytes());
    assert_eq!(daemon.signal("-TERM"), Some(0));
    daemon.serve(&[]);
    daemon.expect_error(&["token"], 2, &["does not serve HTTP", "--listen"]);
    let page = daemon.json(&["dashboard", "--no-open"]);
    assert!(page["http"].as_str().unwrap().starts_with("127.0.0.1:"), "{page}");
    assert_eq!(daemon.ok(&["token"]), secret.as_bytes());
}

#[test]
fn token_file_that_is_a_pipe_is_refused() {
    let daemon = Daemon::stopped();
    let made = Command::new("mkfifo").args(["-m", "600"]).arg(daemon.path("fifo")).status().unwrap();
    assert!(made.success());
    daemon.expect_error(&["serve", "--listen", "127.0.0.1:0", "--token-file", "fifo"], 2, &["fifo", "regular file"]);
}

#[test]
fn dashboard_is_opened_by_a_file_without_a_secret_in_its_name() {
    let daemon = Daemon::start(&["--listen", "127.0.0.1:0"]);
    let secret = std::fs::read_to_string(daemon.path("cotensor.sock.token")).unwrap();
    // A desktop opener that records its argument.
    let opener = daemon.path("xdg-open");
    std::fs::write(
        &opener,
        "#!/bin/sh\ncp \"$1\" opened.html; echo \"$@\" > arguments.new; mv arguments.new arguments\n",
    )
    .unwrap();
    std::fs::set_permissions(&opener, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let path = format!("{}:/usr/bin:/bin", daemon.folder.path().display());
    let output = daemon.command(&["dashboard", "--json"]).env("PATH", &path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&printed["opened"], &printed["http"]), (&json!(true), &daemon.ready["http"]));
    until("a file is opened", || daemon.path("arguments").exists());
    let arguments = std::fs::read_to_string(daemon.path("arguments")).unwrap();
    assert_eq!(arguments.trim(), printed["file"].as_str().unwrap());
    let page = std::fs::read_to_string(daemon.path("opened.html")).unwrap();
    let code = page.split("?code=").nth(1).unwrap().split('"').next().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for secret in [code, secret.trim()] {
        assert!(!arguments.contains(secret) && !text.contains(secret));
    }
    let mut stream = TcpStream::connect(daemon.ready["http"].as_str().unwrap()).unwrap();
    write!(stream, "GET /?code={code} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(secret.trim()));

    // Without a desktop, the path of the file is printed.
    let output = daemon.command(&["dashboard"]).env("PATH", "/nowhere").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("cotensor.sock.dashboard.html"), "{text}");
}

#[test]
fn daemon_ends_with_a_process() {
    let mut node = Command::new("sleep").arg("600").spawn().unwrap();
    let pid = node.id().to_string();
    let mut daemon = Daemon::start(&["--end-with", &pid]);
    // The process that replaces the server gets the option, too, and does not follow it.
    assert!(Command::new("kill").args(["-KILL", &daemon.ready["server"].to_string()]).status().unwrap().success());
    daemon.ok(&["ls"]);
    node.kill().unwrap();
    node.wait().unwrap();
    assert_eq!(daemon.ended(), Some(0));
    assert!(!daemon.socket().exists());
    daemon.expect_error(&["serve", "--end-with", &pid], 2, &["--end-with", "no process"]);
    daemon.expect_error(&["serve", "--end-with", "0"], 2, &["--end-with"]);
}
