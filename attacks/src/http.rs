//! HTTP as no library would send it.

use crate::{SOON, Target};
use cotensor_daemon::http::{HttpConfig, HttpListening};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// The HTTP side of a [`Target`]'s daemon.
pub struct Web {
    /// Where it listens.
    pub address: SocketAddr,
    /// The token.
    pub token: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What was answered.
#[derive(Debug)]
pub struct Answer {
    /// 0 where the connection ended without an answer.
    pub status: u16,
    /// Head and body of this answer, and all that followed it.
    pub text: String,
}

impl Web {
    /// Serves HTTP on loopback, configured by `change`.
    pub fn start(target: &Target, change: impl FnOnce(&mut HttpConfig)) -> Self {
        let mut config = HttpConfig { listen: "127.0.0.1:0".parse().unwrap(), ..HttpConfig::default() };
        change(&mut config);
        let listening = HttpListening::bind(config, &target.socket).unwrap();
        let token = std::fs::read_to_string(listening.token_file()).unwrap().trim().to_owned();
        let mut address = listening.address();
        address.set_ip([127, 0, 0, 1].into());
        let (stop, stopped) = oneshot::channel();
        let serving = Arc::clone(target.daemon());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(serving.serve_http(listening, async { drop(stopped.await) })).unwrap();
        });
        Self { address, token, stop: Some(stop), thread: Some(thread) }
    }

    /// A connection on which nothing was said.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.set_write_timeout(Some(SOON)).unwrap();
        stream
    }

    /// Sends bytes, and nothing more, and reads until the daemon ends the connection; that is soon where they ask for it, or
    /// its patience is short.
    pub fn send(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        drop(stream.write_all(bytes));
        let mut answer = Vec::new();
        drop(stream.read_to_end(&mut answer));
        let text = String::from_utf8_lossy(&answer).into_owned();
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Answer { status, text }
    }

    /// The header that carries the token.
    pub fn authorization(&self) -> String {
        format!("Authorization: Bearer {}", self.token)
    }

    /// A request with the token, a head of these lines, and an empty body.
    pub fn request(&self, line: &str, headers: &[&str]) -> Answer {
        let token = self.authorization();
        let headers: Vec<&str> = headers.iter().copied().chain([token.as_str()]).collect();
        self.anonymous(line, &headers)
    }

    /// A request with a head of these lines, and an empty body.
    pub fn anonymous(&self, line: &str, headers: &[&str]) -> Answer {
        let host = format!("Host: {}", self.address);
        let named = headers.iter().any(|header| header.to_ascii_lowercase().starts_with("host:"));
        let first = [line].into_iter().chain((!named).then_some(host.as_str()));
        let lines: Vec<&str> = first.chain(headers.iter().copied()).chain(["Connection: close", "\r\n"]).collect();
        self.send(lines.join("\r\n").as_bytes())
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
