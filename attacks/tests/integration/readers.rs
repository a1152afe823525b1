//! Clients that do not read responses, notifications or descriptors, and clients that request too much.

use cotensor_attacks::{Raw, Target, fd_count, spec};
use cotensor_client::protocol as p;
use cotensor_core::Memory;
use cotensor_memory::{MemfdMemory, Slab};
use serde_json::json;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Maximum number of bytes buffered for a client that does not read, including socket buffers.
const BUFFERED_BYTES_MAX: u64 = (64 << 20) + (16 << 20);

/// Resident anonymous memory of this process, which includes the daemon, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// Sends `text` up to `count` times. Returns whether the daemon closed the connection.
fn flood(raw: &Raw, count: usize, mut text: impl FnMut(usize) -> String) -> bool {
    raw.socket.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    (0..count).any(|index| !raw.send_frame(&text(index)))
}

/// Sends `text` until the daemon closes the connection, for 20 seconds at most: it may read the calls long after they are
/// sent.
fn flood_until_closed(raw: &Raw, mut text: impl FnMut() -> String) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    flood(raw, usize::MAX, |_| {
        assert!(Instant::now() < deadline, "the connection is still open");
        text()
    })
}

/// Opens a slab of `bytes` bytes for `raw`. Returns it with its id.
fn open_slab(raw: &mut Raw, bytes: usize) -> (Slab, serde_json::Value) {
    let slab = Slab::create(bytes).unwrap();
    let fd: OwnedFd = slab.fd().try_clone_to_owned().unwrap();
    let number = raw.call("slab.open", json!({"bytes": bytes}), &[fd]).unwrap()["slab"].clone();
    (slab, number)
}

/// A call that publishes a tensor with a description of 12 KB.
fn publish_described_at_length(slab: &serde_json::Value, index: usize) -> serde_json::Value {
    let mut spec = p::Spec::from(&spec(&format!("0{}{index}", "\u{1}".repeat(1000)), 1));
    spec.producer = "\u{1}".repeat(1000);
    let params = json!({"slab": slab, "offset": 64 * index, "spec": spec, "holder": ""});
    json!({"jsonrpc": "2.0", "id": 1, "method": "tensor.publish_slab", "params": params})
}

#[test]
fn unread_responses_are_bounded() {
    let target = Target::start(|_| {});
    let mut reader = target.raw();
    let (slab, number) = open_slab(&mut reader, 1 << 20);
    for index in 0..90 {
        reader.send_frame(&publish_described_at_length(&number, index).to_string());
        assert!(reader.receive().0["result"]["id"].is_object());
    }
    let long = json!({"jsonrpc": "2.0", "id": 1, "method": "tensor.list", "params": {"prefix": "0", "limit": 90}});
    reader.send_frame(&long.to_string());
    assert!(reader.receive().0.to_string().len() > 1 << 20, "the response is much longer than its call");
    // A response contains the id of its call.
    let named = json!({"jsonrpc": "2.0", "id": "x".repeat(250), "method": "ping"});
    let short = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    let before = resident();
    for (what, call) in
        [("long answers", long), ("answers to batches", json!(vec![named; 1024])), ("many answers", short)]
    {
        let deaf: Vec<Raw> = (0..2).map(|_| target.raw()).collect();
        let call = call.to_string();
        for raw in &deaf {
            assert!(flood_until_closed(raw, || call.clone()), "{what}");
            assert_eq!(reader.call("ping", json!({}), &[]), Ok(json!({})), "other clients are served");
            let grown = resident().saturating_sub(before);
            assert!(grown < deaf.len() as u64 * BUFFERED_BYTES_MAX, "{what}: {grown} bytes are buffered");
        }
    }
    drop((reader, slab));
    target.assert_unharmed();
}

#[test]
fn unread_notifications_are_coalesced() {
    let target = Target::start(|_| {});
    let mut raw = target.raw();
    let (slab, number) = open_slab(&mut raw, 4096);
    let spec = p::Spec::from(&spec("told", 1));
    let publish = |offset| json!({"slab": number, "offset": offset, "spec": spec, "holder": ""});
    // Held until the end, so that the name keeps its id.
    let name_id = raw.call("tensor.publish_slab", publish(64), &[]).unwrap()["id"]["name_id"].clone();
    let (mut version, before) = (1, resident());
    // Neither has a response; each pair makes the daemon notify that the range is free.
    let ended = flood(&raw, 200_000, |index| {
        if index % 2 == 0 {
            return json!({"jsonrpc": "2.0", "method": "tensor.publish_slab", "params": publish(0)}).to_string();
        }
        version += 1;
        let id = json!({"name_id": name_id, "version": version});
        json!({"jsonrpc": "2.0", "method": "tensor.release", "params": {"leases": [{"id": id}]}}).to_string()
    });
    assert!(!ended, "an unread notification of a free range is not repeated");
    let grown = resident().saturating_sub(before);
    assert!(grown < BUFFERED_BYTES_MAX, "{grown} bytes are buffered");
    assert!(raw.call("ping", json!({}), &[]).is_ok());
    drop((raw, slab));
    target.assert_unharmed();
}

#[test]
fn unread_descriptors_are_bounded() {
    let target = Target::start(|_| {});
    let mut raw = target.raw();
    let reservation = raw.reserve("asked-for", 1 << 20);
    let sealed = MemfdMemory.reserve(1 << 20).unwrap().freeze().unwrap();
    let fd = sealed.fd().unwrap().try_clone_to_owned().unwrap();
    let made = raw.call("tensor.publish", json!({"reservation": reservation}), &[fd]).unwrap();
    let before = fd_count();
    let segment = json!({"segment": made["segment"]});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "segment.fd", "params": segment});
    let batch = serde_json::to_string(&vec![call; 64]).unwrap();
    // The daemon may close the connection before this client notices.
    let ended = flood_until_closed(&raw, || {
        let grown = fd_count().saturating_sub(before);
        assert!(grown < 600, "{grown} descriptors are queued for a client that does not read");
        batch.clone()
    });
    assert!(ended);
    drop((raw, sealed));
    target.assert_unharmed();
}

#[test]
fn oversized_response_is_an_error() {
    let target = Target::start(|_| {});
    let mut raw = target.raw();
    let (slab, number) = open_slab(&mut raw, 1 << 20);
    // 1,600 tensors with 12 KB of description each: 19 MB in one list.
    for batch in 0..4 {
        let call = |index: usize| publish_described_at_length(&number, batch * 400 + index);
        raw.send_frame(&serde_json::to_string(&(0..400).map(call).collect::<Vec<_>>()).unwrap());
        let (answers, _) = raw.receive();
        assert!(answers.as_array().unwrap().iter().all(|answer| answer["result"]["id"].is_object()), "{answers}");
    }
    assert!(raw.refused("tensor.list", json!({"prefix": "0", "limit": 1600}), &[]).contains("ask for less"));
    assert_eq!(raw.call("tensor.list", json!({"prefix": "0", "limit": 10}), &[]).unwrap()["left_off"], 1590);
    // A batch returns the responses that fit; the remaining calls are refused without being run.
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tensor.list", "params": {"prefix": "0", "limit": 100}});
    raw.send_frame(&serde_json::to_string(&vec![list; 500]).unwrap());
    let (answers, _) = raw.receive();
    let answers = answers.as_array().unwrap();
    let (given, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.get("result").is_some());
    assert!(answers.len() == 500 && (1..30).contains(&given.len()), "{} of {}", given.len(), answers.len());
    assert!(refused.iter().all(|answer| answer["error"]["message"].as_str().unwrap().contains("ask for less")));
    drop((raw, slab));
    target.assert_unharmed();
}
