//! Publications that a client repeats because the answer was lost.

use crate::support::{Running, spec, until};
use cotensor_client::{Connection, protocol as p};
use cotensor_core::{Device, ErrorKind, Memory};
use cotensor_memory::{MemfdMemory, Slab};
use cotensor_store::{Retention, TensorSpec};
use std::os::fd::OwnedFd;
use std::time::Duration;

const BYTES: usize = 1 << 20;

fn kept(name: &str) -> p::Spec {
    let retention = Retention::Cached { recompute: Duration::ZERO };
    p::Spec::from(&TensorSpec { retention, ..spec(name, BYTES) })
}

/// A client, after the end of the sessions before.
fn connect(running: &Running) -> Connection {
    let raw = cotensor_client::connect(&running.socket, Box::new(|_: &str, _: &_, _| {})).unwrap();
    let hello = p::HelloParams { protocol: p::PROTOCOL, client: "raw".to_owned(), ..Default::default() };
    raw.call::<p::Hello>(&hello, Vec::new(), None).unwrap();
    let sessions = || raw.call::<p::Sessions>(&p::Empty {}, Vec::new(), None).unwrap().0.sessions.len();
    until("the sessions before have ended", || sessions() == 1);
    raw
}

fn in_block(raw: &Connection, block: &Slab, offset: u64, again: bool) -> cotensor_core::Result<p::Id> {
    let open = p::SlabParams { bytes: BYTES as u64, block: true, device: Device::Cpu, reservation: None };
    let slab = raw.call::<p::OpenSlab>(&open, vec![block.fd().try_clone_to_owned().unwrap()], None)?.0.slab;
    let params = p::PublishSlabParams {
        slab,
        offset,
        spec: kept("in a block"),
        holder: String::new(),
        ticket: None,
        expected: Some(p::Expected::Absent),
        copies: Vec::new(),
        again,
    };
    Ok(raw.call::<p::PublishSlab>(&params, Vec::new(), None)?.0.id)
}

fn sealed(raw: &Connection, fd: OwnedFd, again: bool) -> cotensor_core::Result<p::Id> {
    let reserve = p::ReserveParams { spec: kept("sealed"), holder: String::new() };
    let reservation = raw.call::<p::Reserve>(&reserve, Vec::new(), None)?.0.reservation;
    let params =
        p::PublishParams { reservation, ticket: None, expected: Some(p::Expected::Absent), copies: Vec::new(), again };
    Ok(raw.call::<p::Publish>(&params, vec![fd], None)?.0.id)
}

/// Publishes twice, in two sessions: the answer in the first one is lost.
fn is_one_version(running: &Running, publish: impl Fn(&Connection, bool) -> cotensor_core::Result<p::Id>) {
    let first = publish(&connect(running), false).unwrap();
    let next = connect(running);
    assert_eq!(publish(&next, false).unwrap_err().kind(), ErrorKind::Conflict, "another publication");
    drop(next);
    assert_eq!(publish(&connect(running), true).unwrap(), first, "the same one");
}

#[test]
fn conditional_publication_in_a_block_that_is_repeated_is_one_version() {
    let running = Running::start(|_| {});
    let block = Slab::create(BYTES).unwrap();
    let written = block.copy_of(&vec![1; BYTES]).unwrap().freeze().unwrap();
    let offset = written.fd_offset() as u64;
    is_one_version(&running, |raw, again| in_block(raw, &block, offset, again));
    running.settles_at(BYTES as u64);
}

#[test]
fn conditional_publication_of_sealed_memory_that_is_repeated_is_one_version() {
    let running = Running::start(|_| {});
    let memory = MemfdMemory.reserve(BYTES).unwrap().freeze().unwrap();
    let fd = || memory.fd().unwrap().try_clone_to_owned().unwrap();
    is_one_version(&running, |raw, again| sealed(raw, fd(), again));
    running.settles_at(BYTES as u64);
    // Other memory is another publication.
    let other = MemfdMemory.reserve(BYTES).unwrap().freeze().unwrap();
    let refused = sealed(&connect(&running), other.fd().unwrap().try_clone_to_owned().unwrap(), true);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
}
