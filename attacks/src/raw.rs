//! A raw client that can violate the protocol.

use crate::{TIMEOUT, spec};
use cotensor_client::protocol as p;
use cotensor_rpc::{Decoder, Frame, send_all};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// More descriptors than a frame may carry.
const FDS_MAX: usize = 250;

/// A connection that sends messages without validation.
pub struct Raw {
    /// The socket.
    pub socket: UnixStream,
    decoder: Decoder,
}

impl Raw {
    /// Connects without sending a message.
    pub fn connect(socket: &Path) -> Self {
        let socket = UnixStream::connect(socket).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { socket, decoder: Decoder::default() }
    }

    /// Sends the hello.
    pub fn hello(&mut self) -> Value {
        self.call("session.hello", json!({"protocol": p::PROTOCOL, "client": "attacker"}), &[]).unwrap()
    }

    /// Sends raw bytes. Returns whether the write succeeded.
    pub fn bytes(&self, bytes: &[u8]) -> bool {
        (&self.socket).write_all(bytes).is_ok()
    }

    /// Sends raw bytes with any number of descriptors.
    pub fn bytes_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).is_ok()
    }

    /// Sends text as a frame. Returns whether the write succeeded.
    pub fn send_frame(&self, text: &str) -> bool {
        send_all(self.socket.as_fd(), &Frame::new(text.as_bytes().to_vec())).is_ok()
    }

    /// Receives the next response; skips notifications.
    pub fn receive(&mut self) -> (Value, Vec<OwnedFd>) {
        loop {
            if let Some(frame) = self.decoder.take().unwrap() {
                let value: Value = serde_json::from_slice(&frame.body).unwrap();
                if value.get("method").is_none() {
                    return (value, frame.fds);
                }
                continue;
            }
            assert!(self.decoder.fill(self.socket.as_fd()).unwrap() > 0, "the daemon ended the connection");
        }
    }

    /// Calls a method with descriptors. Returns the result or the error.
    pub fn call(&mut self, method: &str, params: Value, fds: &[OwnedFd]) -> Result<Value, Value> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string().into_bytes();
        let fds = fds.iter().map(|fd| fd.try_clone().unwrap()).collect();
        send_all(self.socket.as_fd(), &Frame { body, fds }).unwrap();
        let (mut answer, _) = self.receive();
        match answer.get_mut("error") {
            Some(error) => Err(error.take()),
            None => Ok(answer["result"].take()),
        }
    }

    /// Calls a method that must fail. Returns the error message.
    pub fn refused(&mut self, method: &str, params: Value, fds: &[OwnedFd]) -> String {
        match self.call(method, params.clone(), fds) {
            Ok(result) => panic!("{method} {params} was done: {result}"),
            Err(error) => error.to_string(),
        }
    }

    /// Sends a notification.
    pub fn notify(&self, method: &str, params: &Value) -> bool {
        self.send_frame(&json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string())
    }

    /// Reserves a tensor of `bytes` bytes.
    pub fn reserve(&mut self, name: &str, bytes: usize) -> u64 {
        let spec = p::Spec::from(&spec(name, bytes));
        let reserved = self.call("tensor.reserve", json!({"spec": spec, "holder": ""}), &[]).unwrap();
        reserved["reservation"].as_u64().unwrap()
    }

    /// Asserts that the daemon closes the connection; ignores pending responses.
    pub fn assert_ended(&mut self) {
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
    }
}
