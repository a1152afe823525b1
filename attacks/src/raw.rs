//! A client that says what it likes.

use crate::{SOON, spec};
use cotensor_client::protocol as p;
use cotensor_rpc::{Decoder, Frame, send_all};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// More descriptors than a frame may carry,.
const FDS_MAX: usize = 250;

/// A connection on which nothing is checked before it is sent.
pub struct Raw {
    /// The socket.
    pub socket: UnixStream,
    decoder: Decoder,
}

impl Raw {
    /// Connects and says nothing.
    pub fn connect(socket: &Path) -> Self {
        let socket = UnixStream::connect(socket).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        Self { socket, decoder: Decoder::default() }
    }

    /// Says hello.
    pub fn hello(&mut self) -> Value {
        self.call("session.hello", json!({"protocol": p::PROTOCOL, "client": "attacker"}), &[]).unwrap()
    }

    /// Bytes as they are; whether they were taken.
    pub fn bytes(&self, bytes: &[u8]) -> bool {
        (&self.socket).write_all(bytes).is_ok()
    }

    /// Bytes with descriptors, however many.
    pub fn bytes_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).is_ok()
    }

    /// A frame of text; whether it was taken.
    pub fn say(&self, text: &str) -> bool {
        send_all(self.socket.as_fd(), &Frame::new(text.as_bytes().to_vec())).is_ok()
    }

    /// The next answer; notices are passed over.
    pub fn hear(&mut self) -> (Value, Vec<OwnedFd>) {
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

    /// Calls a method with descriptors; the result, or the error.
    pub fn call(&mut self, method: &str, params: Value, fds: &[OwnedFd]) -> Result<Value, Value> {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string().into_bytes();
        let fds = fds.iter().map(|fd| fd.try_clone().unwrap()).collect();
        send_all(self.socket.as_fd(), &Frame { body, fds }).unwrap();
        let (mut answer, _) = self.hear();
        match answer.get_mut("error") {
            Some(error) => Err(error.take()),
            None => Ok(answer["result"].take()),
        }
    }

    /// What the daemon says the error is; a result is a failure of the test.
    pub fn refused(&mut self, method: &str, params: Value, fds: &[OwnedFd]) -> String {
        match self.call(method, params.clone(), fds) {
            Ok(result) => panic!("{method} {params} was done: {result}"),
            Err(error) => error.to_string(),
        }
    }

    /// Says something that is not answered.
    pub fn notify(&self, method: &str, params: &Value) -> bool {
        self.say(&json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string())
    }

    /// Reserves a tensor of `bytes`.
    pub fn reserve(&mut self, name: &str, bytes: usize) -> u64 {
        let spec = p::Spec::from(&spec(name, bytes));
        let reserved = self.call("tensor.reserve", json!({"spec": spec, "holder": ""}), &[]).unwrap();
        reserved["reservation"].as_u64().unwrap()
    }

    /// That the daemon ends the connection, answers that were on their way left aside.
    pub fn is_ended(&mut self) {
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
    }
}
