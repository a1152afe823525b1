//! Limits: clients that send too much, too slowly, or not at all.

use super::{Answer, Running};
use crate::testing::{settles_at, until};
use cotensor_store::StoreReports;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const SHORT_TIMEOUT: Duration = Duration::from_millis(200);

/// Whether the daemon ends the connection, with or without an answer.
fn is_ended(mut stream: &TcpStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn messages_and_headers_are_limited() {
    let running = Running::start(|_, http| http.call_bytes_max = 1000);
    assert_eq!(running.rpc(&[], &" ".repeat(1001)).status, 413);
    assert_eq!(running.rpc(&[], &" ".repeat(1000)).status, 200);

    let mut stream = running.connect();
    let token = running.authorization();
    let head = format!(
        "POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\n{token}Content-Type: application/json\r\nConnection: close\r\n"
    );
    let chunk = format!("200\r\n{}\r\n", " ".repeat(0x200));
    drop(
        stream.write_all(format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunk}{chunk}{chunk}0\r\n\r\n").as_bytes()),
    );
    assert_eq!(Answer::read(&mut BufReader::new(&stream), "POST").status, 413);

    for bytes in [100 << 10, 40 << 10, 33 << 10] {
        let long = "x".repeat(bytes);
        assert_eq!(running.request("GET", "/health", &[("X-Long", &long)], b"").status, 431, "{bytes}");
    }
    assert_eq!(running.request("GET", "/health", &[("X-Long", &"x".repeat(31 << 10))], b"").status, 200);
    let mut stream = running.connect();
    let many: String = (0..100).map(|number| format!("X-{number}: y\r\n")).collect();
    stream.write_all(format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{many}\r\n").as_bytes()).unwrap();
    assert_eq!(Answer::read(&mut BufReader::new(&stream), "GET").status, 431);
    // Nesting is limited too.
    let running = Running::start(|_, _| {});
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(running.rpc(&[], &deep).json()[0]["error"]["code"], -32600);
    let deep = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tensor.list\",\"params\":{deep}}}");
    assert_eq!(running.rpc(&[], &deep).json()["error"]["code"], -32602);
}

/// Many clients read no answer before they have sent their whole request.
#[test]
fn refusal_is_read_after_the_whole_request() {
    let running = Running::start(|_, http| http.v1_bytes_max = 1000);
    let large = vec![b'x'; 20 << 20];
    for (path, token, status) in
        [("/jsonrpc", true, 413), ("/v1/embeddings", true, 404), ("/jsonrpc", false, 401), ("/none", true, 404)]
    {
        let mut stream = running.connect();
        let token = if token { running.authorization() } else { String::new() };
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\n{token}Connection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            large.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&large).unwrap();
        assert_eq!(Answer::read(&mut BufReader::new(&stream), "POST").status, status, "{path}");
    }
    // A client that waits for a word before it sends the body gets the answer at once.
    let stream = &mut running.connect();
    let token = running.authorization();
    let head = format!(
        "POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\n{token}Connection: close\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n\
         Content-Length: {}\r\n\r\n",
        large.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(Answer::read(&mut BufReader::new(&*stream), "POST").status, 413);
}

#[test]
fn messages_that_wait_or_run_are_limited_together() {
    let running = Running::start(|_, http| http.call_total_bytes_max = 1000);
    for _ in 0..3 {
        assert_eq!(running.rpc(&[], &" ".repeat(600)).status, 200);
    }
    let mut half = running.connect();
    let token = running.authorization();
    let head = format!("Host: localhost\r\n{token}Content-Type: application/json\r\nContent-Length: 900\r\n\r\n");
    half.write_all(format!("POST /jsonrpc HTTP/1.1\r\n{head}{}", " ".repeat(600)).as_bytes()).unwrap();
    until("a second message is refused", || running.rpc(&[], &" ".repeat(600)).status == 503);
    assert_eq!(running.rpc(&[], &" ".repeat(300)).status, 200);
    drop(half);
    until("a second message is read", || running.rpc(&[], &" ".repeat(600)).status == 200);
}

#[test]
fn silent_clients_are_disconnected() {
    let running = Running::start(|_, http| http.message_timeout = SHORT_TIMEOUT);
    let silent = running.connect();
    let mut half = running.connect();
    half.write_all(b"GET /health HTT").unwrap();
    let mut bodyless = running.connect();
    let token = running.authorization();
    let head = format!("Host: localhost\r\n{token}Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n");
    bodyless.write_all(format!("POST /jsonrpc HTTP/1.1\r\n{head}[").as_bytes()).unwrap();
    let mut upload = running.connect();
    upload.write_all(format!("PUT /tensors/x?dtype=uint8&shape=1000000 HTTP/1.1\r\n{head}abc").as_bytes()).unwrap();
    for stream in [&silent, &half, &bodyless, &upload] {
        assert!(is_ended(stream));
    }
    settles_at(&running.daemon, 0);
}

#[test]
fn reader_that_does_not_receive_loses_its_lease() {
    let running = Running::start(|_, http| http.message_timeout = SHORT_TIMEOUT);
    running.request("PUT", "/tensors/x?dtype=uint8&shape=64000000", &[], &vec![1; 64_000_000]);
    let mut stream = running.connect();
    let token = running.authorization();
    stream.write_all(format!("GET /tensors/x HTTP/1.1\r\nHost: localhost\r\n{token}\r\n").as_bytes()).unwrap();
    let store = running.daemon.store();
    let is_leased = || store.records("x").iter().any(|record| !record.holders().is_empty());
    until("the tensor is leased", is_leased);
    until("the lease is released", || !is_leased());
}

#[test]
fn interrupted_upload_leaves_nothing() {
    let running = Running::start(|_, _| {});
    let mut stream = running.connect();
    let token = running.authorization();
    let head = format!(
        "PUT /tensors/x?dtype=uint8&shape=1000000 HTTP/1.1\r\nHost: localhost\r\n{token}Content-Length: 1000000\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&[1; 500_000]).unwrap();
    until("the upload is charged", || running.daemon.store().stats().memory_usage_bytes > 0);
    drop(stream);
    settles_at(&running.daemon, 0);
    assert_eq!(running.get("/tensors/x").status, 404);
}

#[test]
fn connections_are_limited_until_one_ends() {
    let running = Running::start(|_, http| http.connections_max = 2);
    let kept: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = running.connect();
            let token = running.authorization();
            stream.write_all(format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{token}\r\n").as_bytes()).unwrap();
            assert_eq!(stream.read(&mut [0; 1]).unwrap(), 1);
            stream
        })
        .collect();
    let ask = || {
        let mut stream = running.connect();
        let body = "x".repeat(100_000);
        let head = "POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n";
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    for _ in 0..100 {
        let answer = ask();
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\r\nRetry-After: 1\r\n"), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{answer}");
    }
    drop(kept);
    until("a connection is accepted", || ask().starts_with("HTTP/1.1 401 "));
}

#[test]
fn announced_length_evicts_nothing() {
    const OLD: usize = 6 << 20;
    let running = Running::start(|config, _| config.max_memory_bytes = 8 << 20);
    running.request("PUT", "/tensors/old?dtype=uint8&shape=6291456", &[], &vec![1; OLD]);
    let mut stream = running.connect();
    let token = running.authorization();
    let head = "PUT /tensors/new?dtype=uint8&shape=6291456 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    stream.write_all(format!("{head}{token}Content-Length: {OLD}\r\n\r\n").as_bytes()).unwrap();
    stream.write_all(&[2; 1000]).unwrap();
    let stats = || running.daemon.store().stats();
    until("the received bytes are charged", || {
        assert_eq!(stats().evictions, 0, "the announced length evicted a tensor");
        stats().memory_usage_bytes > OLD as u64
    });
    assert_eq!((stats().evictions, stats().memory_usage_bytes), (0, (OLD + (1 << 20)) as u64));
    stream.write_all(&vec![2; OLD - 1000]).unwrap();
    assert_eq!(Answer::read(&mut BufReader::new(stream), "PUT").status, 201);
    assert_eq!((stats().evictions, stats().memory_usage_bytes), (1, OLD as u64));
    assert_eq!(running.get("/tensors/new").body, vec![2; OLD]);
}
