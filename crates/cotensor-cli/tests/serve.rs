//! How `cotensor serve` is set up: names over HTTP, tokens, logs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/daemon.rs"]
mod daemon;

use daemon::Daemon;
use std::io::{Read, Write};
use std::net::TcpStream;

/// The answer to a request for `/metrics` under the name `host`.
fn ask(daemon: &Daemon, host: &str) -> String {
    let mut stream = TcpStream::connect(daemon.ready["http"].as_str().unwrap()).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn host_names_that_are_allowed_are_answered() {
    let mut daemon = Daemon::start(&["--listen", "127.0.0.1:0"]);
    let answer = ask(&daemon, "tensors.example");
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
        let answer = ask(&daemon, host);
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{host}: {answer}");
    }
    for wrong in ["http://b", "b:80", "", "a..b", "a b", "*"] {
        daemon.refuses(
            &["serve", "--listen", "0", "--allow-host", wrong],
            2,
            &["--allow-host", "without scheme and port"],
        );
    }
}

#[test]
fn what_is_for_http_alone_is_refused_without_it() {
    let daemon = Daemon::start(&[]);
    daemon.refuses(&["serve", "--allow-host", "b"], 2, &["--listen"]);
    daemon.refuses(&["serve", "--token-file", "token"], 2, &["--listen"]);
}

#[test]
fn host_names_come_from_the_environment_too() {
    let daemon = Daemon::start(&[]);
    let socket = daemon.path("other.sock");
    let mut serving = daemon.command(&["serve", "--listen", "127.0.0.1:0", "--socket", socket.to_str().unwrap()]);
    let output = serving.env("COTENSOR_ALLOW_HOST", "b,http://c").output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("http://c") && complaint.contains("--allow-host"), "{complaint}");
}

#[test]
fn a_filter_that_says_nothing_is_refused() {
    let daemon = Daemon::start(&[]);
    let other = daemon.path("other.sock");
    for wrong in ["nonsense", "cotensor_daemon=loud", ""] {
        let serve = ["serve", "--socket", other.to_str().unwrap(), "--log", wrong];
        daemon.refuses(&serve, 2, &["--log", "off, error, warn, info, debug, trace"]);
    }
}
