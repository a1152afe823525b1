//! Tests of HTTP over TCP connections.

mod access;
mod calls;
mod limits;
mod tensors;

use super::{HttpConfig, HttpListening};
use crate::dispatch::Methods;
use crate::{Config, Daemon, handlers};
use cotensor_memory::SharedIndex;
use cotensor_rpc::server::CallCounts;
use cotensor_supervisor::INDEX_SLOTS;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// A daemon that serves HTTP only.
struct Running {
    daemon: Arc<Daemon>,
    address: SocketAddr,
    token: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Running {
    fn start(change: impl FnOnce(&mut Config, &mut HttpConfig)) -> Self {
        Self::with(None, change)
    }

    fn with(methods: Option<Methods>, change: impl FnOnce(&mut Config, &mut HttpConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config { socket: folder.path().join("socket"), ..Config::default() };
        let mut http = HttpConfig { listen: "127.0.0.1:0".parse().unwrap(), ..HttpConfig::default() };
        change(&mut config, &mut http);
        let methods = methods.unwrap_or_else(handlers::methods);
        let (index, counts) = (SharedIndex::create(INDEX_SLOTS).unwrap(), CallCounts::of(methods.names()));
        let daemon = Daemon::with_counts(config.clone(), index, None, counts).unwrap();
        let listening = HttpListening::bind(http, &config.socket).unwrap();
        let token = std::fs::read_to_string(listening.token_file()).unwrap().trim().to_owned();
        let mut address = listening.address();
        if address.ip().is_unspecified() {
            address.set_ip([127, 0, 0, 1].into());
        }
        let (stop, stopped) = oneshot::channel();
        let serving = Arc::clone(&daemon);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(serving.serve_methods(methods, listening, async { drop(stopped.await) })).unwrap();
        });
        Self { daemon, address, token, stop: Some(stop), thread: Some(thread), _folder: folder }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// The header line with the token.
    fn authorization(&self) -> String {
        format!("Authorization: Bearer {}\r\n", self.token)
    }

    /// Sends one request with the token and reads its answer.
    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let token = format!("Bearer {}", self.token);
        let headers: Vec<_> = headers.iter().copied().chain([("Authorization", token.as_str())]).collect();
        self.anonymous(method, path, &headers, body)
    }

    /// Sends one request without the token and reads its answer.
    fn anonymous(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut head = format!("{method} {path} HTTP/1.1\r\nContent-Length: {}\r\nConnection: close\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head += &format!("Host: {}\r\n", self.address);
        }
        headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        let mut stream = self.connect();
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();

        let _ = stream.write_all(body);
        Answer::read(&mut BufReader::new(stream), method)
    }

    fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], b"")
    }

    fn rpc(&self, headers: &[(&str, &str)], body: &str) -> Answer {
        let headers: Vec<_> = [("Content-Type", "application/json")].iter().chain(headers).copied().collect();
        self.request("POST", "/jsonrpc", &headers, body.as_bytes())
    }

    fn call(&self, headers: &[(&str, &str)], method: &str, params: Value) -> Result<Value, Value> {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let mut answer = self.rpc(headers, &call.to_string()).json();
        match answer.get_mut("error") {
            Some(error) => Err(error.take()),
            None => Ok(answer["result"].take()),
        }
    }

    /// Opens a session. Returns its token.
    fn hello(&self, client: &str) -> String {
        let hello = self
            .call(&[], "session.hello", json!({"protocol": cotensor_client::protocol::PROTOCOL, "client": client}))
            .unwrap();
        hello["token"].as_str().unwrap().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

impl Answer {
    fn read(stream: &mut impl BufRead, method: &str) -> Self {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("no status in {line:?}")).parse().unwrap();
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let mut body = Vec::new();
        if method != "HEAD" {
            stream.read_to_end(&mut body).unwrap();
        }
        Self { status, headers, body }
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}
