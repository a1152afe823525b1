//! Steps within the protocol, on a plain socket.

use super::{Step, reached};
use crate::support::processes::content;
use cotensor_client::protocol as p;
use cotensor_client::protocol::Method;
use cotensor_core::{Device, Memory};
use cotensor_memory::{MemfdPool, Slab};
use cotensor_rpc::{self as rpc, Decoder, Frame, send, send_all};
use rustix::net::SendFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

pub(super) const STEPS: &[Step] = &[
    Step("connected", |socket| at(&Raw::connected(socket))),
    Step("half a header", |socket| {
        let raw = Raw::connected(socket);
        raw.send_part(&hello(), 2);
        at(&raw)
    }),
    Step("half of hello", |socket| {
        let raw = Raw::connected(socket);
        raw.send_part(&hello(), hello().body.len() / 2);
        at(&raw)
    }),
    Step("hello sent", |socket| {
        let raw = Raw::connected(socket);
        raw.send(&hello());
        at(&raw)
    }),
    Step("hello answered", |socket| at(&Raw::after_hello(socket))),
    Step("half of reserving", |socket| {
        let raw = Raw::after_hello(socket);
        let frame = frame::<p::Reserve>(&reserve(), Vec::new());
        raw.send_part(&frame, frame.body.len() / 2);
        at(&raw)
    }),
    Step("reserving sent", |socket| {
        let raw = Raw::after_hello(socket);
        raw.send(&frame::<p::Reserve>(&reserve(), Vec::new()));
        at(&raw)
    }),
    Step("sealed", |socket| {
        let mut raw = Raw::after_hello(socket);
        let _reservation = raw.call::<p::Reserve>(&reserve(), Vec::new());
        let _sealed = sealed();
        at(&raw)
    }),
    Step("descriptors with one byte", |socket| {
        let raw = publishing(socket, |raw, frame| raw.send_part(frame, 1));
        at(&raw)
    }),
    Step("descriptors and half a frame", |socket| {
        let raw = publishing(socket, |raw, frame| raw.send_part(frame, frame.body.len() / 2));
        at(&raw)
    }),
    Step("publishing sent", |socket| at(&publishing(socket, Raw::send))),
    Step("descriptors that the method does not use", |socket| {
        let raw = Raw::after_hello(socket);
        let fds = (0..20).map(|_| sealed()).collect();
        raw.send(&frame::<p::Ping>(&p::Empty {}, fds));
        at(&raw)
    }),
    Step("discarding sent", |socket| {
        let mut raw = Raw::after_hello(socket);
        let reservation = raw.call::<p::Reserve>(&reserve(), Vec::new()).reservation;
        raw.send(&frame::<p::Discard>(&p::ReservationParams { reservation }, Vec::new()));
        at(&raw)
    }),
    Step("a slab sent", |socket| {
        let (raw, slab) = (Raw::after_hello(socket), slab());
        raw.send(&frame::<p::OpenSlab>(&open_slab(), vec![descriptor_of(&slab)]));
        at(&raw)
    }),
    Step("a slab half sent", |socket| {
        let (raw, slab) = (Raw::after_hello(socket), slab());
        let frame = frame::<p::OpenSlab>(&open_slab(), vec![descriptor_of(&slab)]);
        raw.send_part(&frame, 5);
        at(&raw)
    }),
    Step("getting sent", |socket| {
        let raw = Raw::after_hello(socket);
        raw.send(&frame::<p::Get>(&get(), Vec::new()));
        at(&raw)
    }),
    Step("got and not mapped", |socket| {
        let mut raw = Raw::after_hello(socket);
        raw.call::<p::Get>(&get(), Vec::new());
        at(&raw)
    }),
    Step("many sent, none read", |socket| {
        let raw = Raw::after_hello(socket);
        for _ in 0..500 {
            raw.send(&frame::<p::Get>(&get(), Vec::new()));
        }
        at(&raw)
    }),
    Step("half of releasing", |socket| {
        let mut raw = Raw::after_hello(socket);
        let id = raw.call::<p::Get>(&get(), Vec::new()).id;
        let leases = vec![p::LeaseParams { id, holder: String::new() }];
        let frame = frame::<p::Release>(&p::ReleaseParams { leases }, Vec::new());
        raw.send_part(&frame, frame.body.len() / 2);
        at(&raw)
    }),
    Step("claiming sent", |socket| {
        let raw = Raw::after_hello(socket);
        let params = p::ClaimParams { key: super::key().0.to_string(), holder: String::new(), timeout_ms: None };
        raw.send(&frame::<p::Claim>(&params, Vec::new()));
        at(&raw)
    }),
    Step("waiting for another's claim", |socket| {
        let mut raw = Raw::after_hello(socket);
        let params = p::ClaimParams { key: super::waited_for().0.to_string(), holder: String::new(), timeout_ms: None };
        raw.send(&frame::<p::Claim>(&params, Vec::new()));
        // The daemon handles the messages of a connection in their order: after this answer the claim waits.
        raw.call::<p::Ping>(&p::Empty {}, Vec::new());
        at(&raw)
    }),
];

const SLAB_BYTES: usize = 1 << 20;

fn at(_: &Raw) {
    reached()
}

fn hello() -> Frame {
    let hello = p::HelloParams { protocol: p::PROTOCOL, client: "raw".to_owned(), ..Default::default() };
    frame::<p::Hello>(&hello, Vec::new())
}

fn reserve() -> p::ReserveParams {
    let spec = p::Spec::from(&crate::support::spec("victim", 1 << 20));
    p::ReserveParams { spec, holder: String::new() }
}

fn get() -> p::GetParams {
    p::GetParams { name: "shared".to_owned(), holder: String::new() }
}

fn sealed() -> OwnedFd {
    let sealed = MemfdPool::new(0).copy_of(&content(1, 1 << 20)).unwrap().freeze().unwrap();
    sealed.fd().unwrap().try_clone_to_owned().unwrap()
}

fn slab() -> Slab {
    Slab::create(SLAB_BYTES).unwrap()
}

fn open_slab() -> p::SlabParams {
    p::SlabParams { bytes: SLAB_BYTES as u64, block: false, device: Device::default(), reservation: None }
}

fn descriptor_of(slab: &Slab) -> OwnedFd {
    slab.fd().try_clone_to_owned().unwrap()
}

fn frame<M: Method>(params: &M::Params, fds: Vec<OwnedFd>) -> Frame {
    Frame { body: rpc::encode_call(Some(1), M::NAME, params).unwrap(), fds }
}

/// Reserves, seals, and sends the publication by `send`.
fn publishing(socket: &Path, send: impl FnOnce(&Raw, &Frame)) -> Raw {
    let mut raw = Raw::after_hello(socket);
    let reservation = raw.call::<p::Reserve>(&reserve(), Vec::new()).reservation;
    let frame = frame::<p::Publish>(
        &p::PublishParams { reservation, ticket: None, expected: None, copies: Vec::new(), again: false },
        vec![sealed()],
    );
    send(&raw, &frame);
    raw
}

/// A client that can stop within a message.
struct Raw {
    socket: UnixStream,
    decoder: Decoder,
}

impl Raw {
    fn connected(socket: &Path) -> Self {
        Self { socket: UnixStream::connect(socket).unwrap(), decoder: Decoder::default() }
    }

    fn after_hello(socket: &Path) -> Self {
        let mut raw = Self::connected(socket);
        raw.send(&hello());
        raw.answer();
        raw
    }

    fn send(&self, frame: &Frame) {
        send_all(self.socket.as_fd(), frame).unwrap();
    }

    /// Sends the first `bytes` of the body, with the header of the whole frame and every descriptor.
    fn send_part(&self, whole: &Frame, bytes: usize) {
        let header = whole.header().unwrap();
        let fds = whole.fds.iter().map(|fd| fd.try_clone().unwrap()).collect();
        let part = Frame { body: whole.body[..bytes].to_vec(), fds };
        assert_eq!(send(self.socket.as_fd(), &header, &part, 0, SendFlags::empty()).unwrap(), header.len() + bytes);
    }

    fn answer(&mut self) -> Frame {
        loop {
            if let Some(frame) = self.decoder.take().unwrap() {
                return frame;
            }
            assert!(self.decoder.fill(self.socket.as_fd()).unwrap() > 0);
        }
    }

    fn call<M: Method>(&mut self, params: &M::Params, fds: Vec<OwnedFd>) -> M::Result {
        self.send(&frame::<M>(params, fds));
        let answer: rpc::Response = serde_json::from_slice(&self.answer().body).unwrap();
        serde_json::from_str(answer.outcome().unwrap().get()).unwrap()
    }
}
