//! Answers that the client does not get: an error takes their place, or the call is a notification. What they would have given to the
//! client is taken back.

use crate::support::{Running, put, spec};
use cotensor_client::{ClientStore, protocol as p};
use cotensor_core::{ContentHash, DType};
use cotensor_rpc::{Decoder, Frame, send_all};
use cotensor_store::{
    BlobSource, BlobSpec, BlobStore, Claim, ComputationStore, Key, Lease, METADATA_BYTES_MAX, Retention, TensorSpec,
    TensorStore,
};
use serde_json::{Value as Json, json};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

const KEPT: Retention = Retention::Cached { recompute: std::time::Duration::ZERO };
const MIB: usize = 1 << 20;
/// The most descriptors of one message.
const FDS_MAX: usize = 64;
/// Tensors whose descriptions, with [`metadata`], are too long for one message.
const MANY: usize = 2200;

/// A client that sees each message.
struct Raw(UnixStream, Decoder);

impl Raw {
    fn connect(running: &Running) -> Self {
        let mut raw = Self(UnixStream::connect(&running.socket).unwrap(), Decoder::default());
        raw.call("session.hello", json!({"protocol": p::PROTOCOL, "client": "raw"}));
        raw
    }

    fn send(&self, message: &Json) {
        send_all(self.0.as_fd(), &Frame::new(message.to_string().into_bytes())).unwrap();
    }

    /// The next message, and its number of descriptors.
    fn next(&mut self) -> (Json, usize) {
        loop {
            if let Some(frame) = self.1.take().unwrap() {
                return (serde_json::from_slice(&frame.body).unwrap(), frame.fds.len());
            }
            assert!(self.1.fill(self.0.as_fd()).unwrap() > 0, "the daemon ended the connection");
        }
    }

    fn call(&mut self, method: &str, params: Json) -> (Json, usize) {
        self.send(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}));
        self.next()
    }

    /// The message of the error that a call gets.
    fn refused(&mut self, method: &str, params: Json) -> String {
        let (answer, fds) = self.call(method, params);
        assert_eq!(fds, 0);
        answer["error"]["message"].as_str().unwrap().to_owned()
    }

    /// Leases a tensor whose descriptor comes with the answer.
    fn get(&mut self, name: &str) {
        let (answer, fds) = self.call("tensor.get", json!({"name": name}));
        assert_eq!((&answer["result"]["fd"], fds), (&json!(true), 1), "{answer}");
    }
}

/// The number of leases of the raw client.
fn leases(store: &ClientStore) -> usize {
    let sessions = store.request::<p::Sessions>(&p::Empty {}).unwrap().sessions;
    sessions.iter().find(|session| session.client.starts_with("raw")).unwrap().leases
}

/// Metadata of the greatest length, which takes twice as many bytes in an answer.
fn metadata() -> Arc<str> {
    format!("{{\"a\":\"{}\"}}", "\\".repeat(METADATA_BYTES_MAX - 8)).into()
}

/// Publishes the results of a computation. Returns its key.
fn compute(store: &ClientStore, specs: impl Iterator<Item = TensorSpec>) -> String {
    let key = Key(ContentHash::of(b"stage"));
    let Claim::Compute(ticket) = store.claim(&key, &store.holder("")).unwrap() else { panic!("the key has no result") };
    let results = specs.map(|spec| store.reserve(TensorSpec { retention: KEPT, ..spec }, &store.holder("")).unwrap());
    drop(ticket.publish(results.collect()).unwrap());
    key.0.to_string()
}

#[test]
fn calls_of_a_batch_beyond_its_descriptors_lease_nothing() {
    let running = Running::start(|config| config.small_bytes_max = 0);
    let publisher = running.connect("publisher");
    let count = FDS_MAX + 6;
    let _held: Vec<Lease> = (0..count).map(|number| put(&*publisher, &format!("t{number}"), b"abc")).collect();
    let mut raw = Raw::connect(&running);
    let call = |number: usize| json!({"jsonrpc": "2.0", "id": number, "method": "tensor.get", "params": {"name": format!("t{number}")}});
    raw.send(&(0..count).map(call).collect());
    let (answers, fds) = raw.next();
    let given = answers.as_array().unwrap().iter().filter(|answer| answer["result"]["fd"] == true).count();
    let refused = answers.as_array().unwrap().iter().filter(|answer| answer["error"].is_object()).count();
    assert_eq!((given, refused, fds), (FDS_MAX, count - FDS_MAX, FDS_MAX));
    assert_eq!(leases(&publisher), FDS_MAX);
    (FDS_MAX..count).for_each(|number| raw.get(&format!("t{number}")));
    assert_eq!(leases(&publisher), count);
}

#[test]
fn claim_whose_results_are_too_long_leases_nothing() {
    let running = Running::start(|_| {});
    let publisher = running.connect("publisher");
    let described = |number| TensorSpec { metadata: Some(metadata()), ..spec(&format!("r{number}"), 3) };
    let key = compute(&publisher, (0..MANY).map(described));
    let mut raw = Raw::connect(&running);
    let refused = raw.refused("claim.begin", json!({"key": key}));
    assert!(refused.contains("the message has room for"), "{refused}");
    assert_eq!(leases(&publisher), 0);
    raw.get("r0");
}

#[test]
fn claim_whose_results_exceed_the_budget_leases_nothing() {
    let running = Running::start(|config| config.max_client_bytes = 8 << 20);
    let publisher = running.connect("publisher");
    let mut raw = Raw::connect(&running);
    let key = compute(&publisher, (0..2).map(|number| spec(&format!("r{number}"), 2 * MIB)));
    let other = TensorSpec { retention: KEPT, ..spec("other", 5 * MIB) };
    drop(publisher.reserve(other, &publisher.holder("")).unwrap().publish().unwrap());
    raw.get("other");
    let refused = raw.refused("claim.begin", json!({"key": key}));
    assert!(refused.contains("8.00 MiB of one client"), "{refused}");
    assert_eq!(leases(&publisher), 1);
    raw.get("r0");
}

#[test]
fn notification_leases_nothing() {
    let running = Running::start(|config| config.small_bytes_max = 0);
    let publisher = running.connect("publisher");
    let _held = put(&*publisher, "x", b"abc");
    let mut raw = Raw::connect(&running);
    raw.send(&json!({"jsonrpc": "2.0", "method": "tensor.get", "params": {"name": "x"}}));
    raw.call("ping", json!({}));
    assert_eq!(leases(&publisher), 0);
    raw.get("x");
}

#[test]
fn notification_claims_and_reserves_nothing() {
    let running = Running::start(|_| {});
    let other = running.connect("other");
    let key = Key(ContentHash::of(b"stage"));
    let reserve = p::ReserveParams { spec: p::Spec::from(&spec("x", MIB)), holder: String::new() };
    let mut raw = Raw::connect(&running);
    for (method, params) in [("claim.begin", json!({"key": key.0.to_string()})), ("tensor.reserve", json!(reserve))] {
        raw.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }
    raw.call("ping", json!({}));
    assert!(matches!(other.claim_within(&key, &other.holder(""), std::time::Duration::ZERO), Ok(Claim::Compute(_))));
    running.settles_at(0);
}

/// The bytes of a blob.
fn bytes(number: usize) -> Vec<u8> {
    number.to_le_bytes().repeat(8)
}

/// The blobs from this number on.
struct Numbered(usize);

impl BlobSource for Numbered {
    fn fill(&mut self, index: usize, target: &mut [u8]) -> cotensor_core::Result<()> {
        target.copy_from_slice(&bytes(self.0 + index));
        Ok(())
    }
}

fn blob(number: usize) -> BlobSpec {
    BlobSpec {
        device: cotensor_core::Device::Cpu,
        hash: ContentHash::of(&bytes(number)),
        dtype: DType::U8,
        shape: vec![64],
        producer: "model".to_owned(),
        label: String::new(),
        metadata: Some(metadata()),
    }
}

#[test]
fn plan_that_is_too_long_leases_nothing_and_leaves_the_upload_to_others() {
    let running = Running::start(|_| {});
    let publisher = running.connect("publisher");
    let blobs: Vec<BlobSpec> = (0..MANY).map(blob).collect();
    for (turn, blobs) in blobs.chunks(500).enumerate() {
        drop(publisher.blobs(blobs, &mut Numbered(500 * turn), &publisher.holder("")).unwrap());
    }
    let plan = |numbers: std::ops::RangeInclusive<usize>| {
        let wanted = |number| json!({"hash": blob(number).hash.to_string(), "dtype": "uint8", "shape": [64]});
        json!({"blobs": numbers.map(wanted).collect::<Vec<_>>(), "producer": "model"})
    };
    let mut raw = Raw::connect(&running);
    let refused = raw.refused("blob.plan_upload", plan(0..=MANY));
    assert!(refused.contains("the message has room for"), "{refused}");
    assert_eq!(leases(&publisher), 0);
    let (answer, _) = Raw::connect(&running).call("blob.plan_upload", plan(MANY..=MANY));
    assert!(answer["result"]["upload"].is_object(), "no session uploads it: {answer}");
}
