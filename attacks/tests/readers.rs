//! Clients that do not read what they asked for, or are told, and clients that ask for more than anybody can read.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cotensor_attacks::{Raw, Target, fd_count, spec};
use cotensor_client::protocol as p;
use cotensor_core::Memory;
use cotensor_memory::{MemfdMemory, Slab};
use serde_json::json;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// The most that may be kept for one who does not read, and what the sockets themselves hold.
const KEPT_BYTES_MAX: u64 = (64 << 20) + (16 << 20);

/// Physical memory of this process, and so of the daemon in it, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// Says `text` until the daemon takes no more, or `count` times; whether it ended the connection.
fn flood(raw: &Raw, count: usize, mut text: impl FnMut(usize) -> String) -> bool {
    raw.socket.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    (0..count).any(|index| !raw.say(&text(index)))
}

#[test]
fn answers_that_nobody_reads_are_not_kept_for_ever() {
    let target = Target::start(|_| {});
    let (mut reader, before) = (target.raw(), resident());
    let deaf: Vec<Raw> = (0..2).map(|_| target.raw()).collect();
    // What a call is named by is in its answer.
    let call = json!({"jsonrpc": "2.0", "id": "x".repeat(1 << 20), "method": "ping"}).to_string();
    for raw in &deaf {
        assert!(flood(raw, 1000, |_| call.clone()));
        assert_eq!(reader.call("ping", json!({}), &[]), Ok(json!({})), "others are answered meanwhile");
        let grown = resident().saturating_sub(before);
        assert!(grown < deaf.len() as u64 * KEPT_BYTES_MAX, "{grown} bytes are kept");
    }
    drop((deaf, reader));
    target.is_unharmed();
}

#[test]
fn notices_that_nobody_reads_do_not_pile_up() {
    let target = Target::start(|_| {});
    let mut raw = target.raw();
    let slab = Slab::create(4096).unwrap();
    let fd: OwnedFd = slab.fd().try_clone_to_owned().unwrap();
    let number = raw.call("slab.open", json!({"bytes": 4096}), &[fd]).unwrap()["slab"].clone();
    let spec = p::Spec::from(&spec("told", 1));
    let publish = |offset| json!({"slab": number, "offset": offset, "spec": spec, "holder": ""});
    // Held to the end, so that the name and its number stay.
    let slot = raw.call("tensor.publish_slab", publish(64), &[]).unwrap()["id"]["slot"].clone();
    let (mut version, before) = (1, resident());
    // Neither is answered; each pair makes the daemon say that the range is free.
    let ended = flood(&raw, 200_000, |index| {
        if index % 2 == 0 {
            return json!({"jsonrpc": "2.0", "method": "tensor.publish_slab", "params": publish(0)}).to_string();
        }
        version += 1;
        let id = json!({"slot": slot, "version": version});
        json!({"jsonrpc": "2.0", "method": "tensor.release", "params": {"leases": [{"id": id}]}}).to_string()
    });
    assert!(!ended, "a range that is free is said once, as long as nobody reads that");
    let grown = resident().saturating_sub(before);
    assert!(grown < KEPT_BYTES_MAX, "{grown} bytes are kept");
    assert!(raw.call("ping", json!({}), &[]).is_ok());
    drop((raw, slab));
    target.is_unharmed();
}

#[test]
fn descriptors_that_nobody_takes_do_not_use_up_the_daemons() {
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
    // The daemon may see the end before this notices it.
    let ended = flood(&raw, 1000, |_| {
        let grown = fd_count().saturating_sub(before);
        assert!(grown < 600, "{grown} descriptors are kept for one who does not read");
        batch.clone()
    });
    assert!(ended);
    drop((raw, sealed));
    target.is_unharmed();
}

#[test]
fn an_answer_longer_than_a_message_is_an_error() {
    let target = Target::start(|_| {});
    let mut raw = target.raw();
    let slab = Slab::create(1 << 20).unwrap();
    let fd: OwnedFd = slab.fd().try_clone_to_owned().unwrap();
    let number = raw.call("slab.open", json!({"bytes": 1 << 20}), &[fd]).unwrap()["slab"].clone();
    // 1,600 tensors, 12 KB of description each: 19 MB in one list.
    for batch in 0..4 {
        let call = |index: usize| {
            let mut spec = p::Spec::from(&spec(&format!("0{}{}", "\u{1}".repeat(1000), batch * 400 + index), 1));
            spec.producer = "\u{1}".repeat(1000);
            let params = json!({"slab": number, "offset": 64 * index, "spec": spec, "holder": ""});
            json!({"jsonrpc": "2.0", "id": 1, "method": "tensor.publish_slab", "params": params})
        };
        raw.say(&serde_json::to_string(&(0..400).map(call).collect::<Vec<_>>()).unwrap());
        let (answers, _) = raw.hear();
        assert!(answers.as_array().unwrap().iter().all(|answer| answer["result"]["id"].is_object()), "{answers}");
    }
    assert!(raw.refused("tensor.list", json!({"prefix": "0", "limit": 1600}), &[]).contains("ask for less"));
    assert_eq!(raw.call("tensor.list", json!({"prefix": "0", "limit": 10}), &[]).unwrap()["left_off"], 1590);
    // In a batch the answers that fit are there, and the rest is not even asked for.
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tensor.list", "params": {"prefix": "0", "limit": 100}});
    raw.say(&serde_json::to_string(&vec![list; 500]).unwrap());
    let (answers, _) = raw.hear();
    let answers = answers.as_array().unwrap();
    let (given, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.get("result").is_some());
    assert!(answers.len() == 500 && (1..30).contains(&given.len()), "{} of {}", given.len(), answers.len());
    assert!(refused.iter().all(|answer| answer["error"]["message"].as_str().unwrap().contains("ask for less")));
    drop((raw, slab));
    target.is_unharmed();
}
