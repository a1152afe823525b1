//! The answer to a request: the right one by the hub's routes, or one with a fault.

use super::state::{Fault, LARGE_BYTES_MIN, Repository, Request, State, hex};
use cotensor_core::sync::lock;
use sha1::{Digest as _, Sha1};
use sha2::Sha256;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};

/// The most bytes of a request.
const REQUEST_BYTES_MAX: u64 = 64 << 10;

/// Waits until the server ends, or for a moment.
fn pause(ended: &Mutex<Receiver<()>>) -> bool {
    let ended = lock(ended);
    ended.recv_timeout(std::time::Duration::from_millis(20)) == Err(mpsc::RecvTimeoutError::Disconnected)
}

/// Reads the request of a connection and answers it.
pub(super) fn answer(
    mut connection: TcpStream,
    state: &Mutex<State>,
    ended: &Mutex<Receiver<()>>,
) -> std::io::Result<()> {
    let Some(request) = read_request(&connection)? else { return Ok(()) };
    let (fault, mut reply) = {
        let mut state = lock(state);
        state.requests.push(request.clone());
        let found = state.faults.iter().position(|(part, _, _)| request.path.contains(part.as_str()));
        let fault = found.map(|at| {
            let fault = state.faults[at].2.clone();
            match state.faults[at].1 {
                0 => {}
                1 => drop(state.faults.remove(at)),
                ref mut left => *left -= 1,
            }
            fault
        });
        (fault, reply_to(&request, &state))
    };
    let mut sent = usize::MAX;
    match fault {
        None => {}
        Some(Fault::Status(status, code)) => {
            let headers = if code.is_empty() { Vec::new() } else { vec![("X-Error-Code".into(), code.into())] };
            reply =
                Reply { status, headers, body: Arc::new(br#"{"error": "the test's message"}"#.to_vec()), part: 0..32 };
            reply.part = 0..reply.body.len();
        }
        Some(Fault::Body(body)) => {
            let part = 0..body.len();
            reply = Reply { status: 200, body: Arc::new(body), part, ..reply };
        }
        Some(Fault::Silence) => {
            while !pause(ended) {}
            return Ok(());
        }
        Some(Fault::Drip) => {
            write_head(&mut connection, &reply)?;
            while !pause(ended) {
                connection.write_all(&[0])?;
            }
            return Ok(());
        }
        Some(Fault::EndlessHeader) => {
            connection.write_all(b"HTTP/1.1 200 -\r\nX-Endless: ")?;
            while !pause(ended) {
                connection.write_all(b"x")?;
            }
            return Ok(());
        }
        Some(Fault::Truncated(bytes)) => sent = bytes,
        Some(Fault::IgnoredRange) => {
            reply.status = 200;
            reply.part = 0..reply.body.len();
        }
        Some(Fault::Changed) => {
            let mut body = reply.body.to_vec();
            body[0] ^= 1;
            reply.body = Arc::new(body);
        }
        Some(Fault::TooLong) => {
            let body = [&reply.body[..], b"more"].concat();
            reply.part.end = body.len();
            reply.body = Arc::new(body);
        }
        Some(Fault::Redirect(address)) => {
            let location = format!("{address}{}", request.path);
            reply =
                Reply { status: 302, headers: vec![("Location".into(), location)], body: Arc::default(), part: 0..0 };
        }
        Some(Fault::EndlessPages) => {
            let next = format!("<http://{}{}>; rel=\"next\"", connection.local_addr()?, request.path);
            reply.headers.push(("Link".into(), next));
        }
    }
    write_head(&mut connection, &reply)?;
    if request.method == "GET" {
        let part = &reply.body[reply.part.clone()];
        connection.write_all(&part[..sent.min(part.len())])?;
    }
    Ok(())
}

/// The request of a connection. Each connection has one.
fn read_request(connection: &TcpStream) -> std::io::Result<Option<Request>> {
    let mut lines = BufReader::new(connection.take(REQUEST_BYTES_MAX));
    let mut first = String::new();
    lines.read_line(&mut first)?;
    let mut words = first.split_whitespace();
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(None) };
    let mut request = Request { method: method.into(), path: path.into(), authorization: None, range: None };
    loop {
        let mut line = String::new();
        lines.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { return Ok(Some(request)) };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => request.authorization = Some(value.to_owned()),
            "range" => request.range = Some(value.to_owned()),
            _ => {}
        }
    }
}

struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Arc<Vec<u8>>,
    part: std::ops::Range<usize>,
}

impl Reply {
    fn new(status: u16, body: Vec<u8>) -> Self {
        Self { status, headers: Vec::new(), part: 0..body.len(), body: Arc::new(body) }
    }
}

fn write_head(connection: &mut TcpStream, reply: &Reply) -> std::io::Result<()> {
    let mut head =
        format!("HTTP/1.1 {} -\r\nConnection: close\r\nContent-Length: {}\r\n", reply.status, reply.part.len());
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    connection.write_all((head + "\r\n").as_bytes())
}

/// The right answer, by the routes of the hub.
fn reply_to(request: &Request, state: &State) -> Reply {
    let not_found = |code: &str| {
        let mut reply = Reply::new(404, br#"{"error": "not found"}"#.to_vec());
        reply.headers.push(("X-Error-Code".into(), code.into()));
        reply
    };
    let path = request.path.split('?').next().unwrap_or_default().replace("%2F", "/");
    let api = path.strip_prefix("/api/models/");
    for (name, repository) in &state.repositories {
        let known = |revision: &str| revision == "main" || revision == "v1" || revision == repository.commit;
        if let Some(rest) = api.and_then(|path| path.strip_prefix(&format!("{name}/"))) {
            return match rest.split_once('/') {
                Some((_, revision)) if !known(revision) => not_found("RevisionNotFound"),
                Some(("revision", _)) => json(&serde_json::json!({"id": name, "sha": repository.commit})),
                Some(("tree", _)) => json(&list(repository)),
                _ => not_found("EntryNotFound"),
            };
        }
        let rest = path.strip_prefix(&format!("/{name}/resolve/{}/", repository.commit));
        if let Some(bytes) = rest.and_then(|path| repository.files.get(path)) {
            return file(request, Arc::clone(bytes));
        }
        if rest.is_some() {
            return not_found("EntryNotFound");
        }
    }
    not_found("RepoNotFound")
}

fn json(value: &serde_json::Value) -> Reply {
    Reply::new(200, value.to_string().into_bytes())
}

fn list(repository: &Repository) -> serde_json::Value {
    let entry = |(path, bytes): (&String, &Arc<Vec<u8>>)| {
        let mut entry = serde_json::json!({"type": "file", "path": path, "size": bytes.len(), "oid": git_hash(bytes)});
        if bytes.len() >= LARGE_BYTES_MIN {
            let hash = hex(&Sha256::digest(bytes.as_slice()));
            entry["lfs"] = serde_json::json!({"oid": hash, "size": bytes.len(), "pointerSize": 134});
        }
        entry
    };
    let folder = serde_json::json!({"type": "directory", "path": "onnx", "size": 0, "oid": "0".repeat(40)});
    std::iter::once(folder).chain(repository.files.iter().map(entry)).collect()
}

fn file(request: &Request, bytes: Arc<Vec<u8>>) -> Reply {
    let mut reply = Reply { status: 200, headers: Vec::new(), part: 0..bytes.len(), body: bytes };
    let range = request.range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    if let Some((from, to)) = range {
        let from = from.parse().unwrap_or(0);
        let end = to.parse().map_or(reply.body.len(), |to: usize| to + 1).min(reply.body.len());
        reply.status = 206;
        reply.headers.push(("Content-Range".into(), format!("bytes {from}-{}/{}", end - 1, reply.body.len())));
        reply.part = from..end;
    }
    reply
}

/// The hash of a file as an object of git.
fn git_hash(bytes: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(format!("blob {}\0", bytes.len()));
    hash.update(bytes);
    hex(&hash.finalize())
}
