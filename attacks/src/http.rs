//! Raw HTTP requests, including invalid ones.

use crate::{TIMEOUT, Target};
use cotensor_daemon::http::{HttpConfig, HttpListening};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// The HTTP server of a [`Target`]'s daemon.
pub struct Web {
    /// Address of the server.
    pub address: SocketAddr,
    /// The token.
    pub token: String,
    /// The token for `/v1`.
    pub key: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// An HTTP response.
#[derive(Debug)]
pub struct Answer {
    /// Status code; 0 if the connection was closed without a response.
    pub status: u16,
    /// Head and body of the response, and all following bytes.
    pub text: String,
}

impl Web {
    /// Serves HTTP on loopback, configured by `change`.
    pub fn start(target: &Target, change: impl FnOnce(&mut HttpConfig)) -> Self {
        let mut config = HttpConfig { listen: "127.0.0.1:0".parse().unwrap(), ..HttpConfig::default() };
        change(&mut config);
        let listening = HttpListening::bind(config, &target.socket).unwrap();
        let token = std::fs::read_to_string(listening.token_file()).unwrap().trim().to_owned();
        let mut file = target.socket.clone().into_os_string();
        file.push(".v1.token");
        let key = std::fs::read_to_string(file).unwrap().trim().to_owned();
        let mut address = listening.address();
        address.set_ip([127, 0, 0, 1].into());
        let (stop, stopped) = oneshot::channel();
        let serving = Arc::clone(target.daemon());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(serving.serve_http(listening, async { drop(stopped.await) })).unwrap();
        });
        Self { address, token, key, stop: Some(stop), thread: Some(thread) }
    }

    /// Opens a connection without sending a request.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// Sends bytes, and reads until the daemon closes the connection: on request, or after its time-out.
    pub fn send(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        let _ = stream.write_all(bytes);
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

    /// Sends a request with the token, these header lines and an empty body.
    pub fn request(&self, line: &str, headers: &[&str]) -> Answer {
        let token = self.authorization();
        let headers: Vec<&str> = headers.iter().copied().chain([token.as_str()]).collect();
        self.anonymous(line, &headers)
    }

    /// Sends a request with these header lines and an empty body.
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
            let _ = thread.join();
        }
    }
}
