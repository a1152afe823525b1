//! Requests to a daemon's HTTP server.

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The code of an error in the form of OpenAI's API.
    pub(crate) fn code(&self) -> String {
        let error = &self.json()["error"];
        let has = |field: &str| error.as_object().unwrap().contains_key(field);
        assert!(!error["message"].as_str().unwrap().is_empty() && has("type") && has("param"), "{error}");
        error["code"].as_str().unwrap().to_owned()
    }
}

/// A connection on which a request was sent. `headers` are lines.
pub(crate) fn send(address: SocketAddr, request: &str, token: &str, headers: &str, body: &[u8]) -> TcpStream {
    let mut stream = begin(address, request, token, headers, body.len());

    let _ = stream.write_all(body);
    stream
}

/// A connection on which a request was sent, except for its body of `length` bytes.
pub(crate) fn begin(address: SocketAddr, request: &str, token: &str, headers: &str, length: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let host = if headers.contains("Host: ") { String::new() } else { format!("Host: {address}\r\n") };
    let token = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let head =
        format!("{request} HTTP/1.1\r\n{host}{token}{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

pub(crate) fn receive(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // The connection of a refused upload may be reset after the answer.
    drop(stream.read_to_end(&mut bytes));
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("an answer has a head");
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_ascii_lowercase(), body: bytes[end + 4..].to_vec() }
}
