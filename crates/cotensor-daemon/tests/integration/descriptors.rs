//! More tensors than the process may have descriptors.

use crate::support::Running;
use crate::support::processes::{PROGRAM, Processes, content, put};
use cotensor_client::ClientStore;
use cotensor_core::ErrorKind;
use cotensor_store::{
    CopyReason, EveryVersion, NameFilter, NameStore, Retention, StoreReports, TensorSpec, TensorStore,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;

/// Changes the limit of the whole process: nextest runs it in a process of its own.
#[test]
fn descriptor_limit_spills_tensors_instead_of_losing_them() {
    const COUNT: u64 = 600;
    let spill = tempfile::tempdir().unwrap();
    let running = Running::start(|config| {
        config.spill = Some(spill.path().to_path_buf());
        config.small_bytes_max = 0;
    });
    // The first connection of a process raises its limit.
    let store = running.connect("one");
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(512), maximum: before.maximum }).unwrap();
    let kept = Retention::Cached { recompute: Duration::ZERO };
    for number in 0..COUNT {
        drop(put(&store, &number.to_string(), &content(number, 100), kept));
    }
    let stats = store.stats();
    assert_eq!((stats.evictions, stats.total_tensors + stats.spilled_now), (0, COUNT as usize), "{stats:?}");
    assert!(stats.spilled_now > 0);
    for number in (0..COUNT).rev() {
        let lease = store.get(&number.to_string(), &store.holder("")).unwrap();
        assert_eq!(lease.bytes().unwrap(), content(number, 100));
    }
    // Other clients can still connect.
    assert_eq!(running.connect("two").stats().evictions, 0);
    setrlimit(Resource::Nofile, before).unwrap();
}

/// A reader that does not read keeps no program from publishing.
#[test]
fn descriptor_limit_takes_the_versions_of_queues() {
    let running = Running::start(|config| config.small_bytes_max = 0);
    let (store, reader) = (running.connect("one"), running.connect("reader"));
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(512), maximum: before.maximum }).unwrap();
    let limits = EveryVersion::new(NameFilter::Name("x".to_owned()));
    let every = EveryVersion { versions_max: 2000, ..limits };
    let opened = reader.versions(&every, None, Duration::ZERO, &|| true).unwrap();
    let kept = Retention::Cached { recompute: Duration::ZERO };
    let ids: Vec<_> = (0..600).map(|number| put(&store, "x", &content(number, 100), kept).id()).collect();
    let (mut position, mut seen) = (opened.position, Vec::new());
    while seen.len() < ids.len() {
        let changes = reader.versions(&every, Some(position), Duration::from_secs(60), &|| true).unwrap();
        seen.extend(changes.changes.into_iter().filter_map(|change| change.id));
        position = changes.position;
    }
    assert_eq!(seen, ids);
    assert!(reader.lease(ids[599], &reader.holder("")).is_ok() && reader.lease(ids[0], &reader.holder("")).is_err());
    setrlimit(Resource::Nofile, before).unwrap();
}

/// A daemon with a hard limit of descriptors.
fn limited(limit: u64) -> Vec<std::ffi::OsString> {
    ["sh", "-c", &format!("ulimit -n {limit}; exec \"$0\" \"$@\""), PROGRAM].map(Into::into).into()
}

/// Fills a daemon until it refuses a tensor, and kills the server three times.
fn takeovers_keep_all_tensors(limit: u64) {
    const BYTES: usize = 300 << 10;
    let processes = Processes::start_by(|_| limited(limit), |_| Vec::new());
    let store = processes.connect("one");
    let publish = |number: u64| {
        let spec = TensorSpec {
            retention: Retention::Cached { recompute: Duration::ZERO },
            ..crate::support::spec(&number.to_string(), BYTES)
        };
        let mut reservation = store.reserve(spec, &store.holder("")).unwrap();
        reservation.write(&content(number, BYTES), CopyReason::Put).unwrap();
        reservation.publish()
    };
    let mut held = Vec::new();
    let refused = loop {
        let number = held.len() as u64;
        match publish(number) {
            Ok(lease) => held.push(lease),
            Err(error) => break error,
        }
        assert!(number < limit, "no tensor was refused");
    };
    assert_eq!(refused.kind(), ErrorKind::OverBudget, "{refused}");
    let used = store.stats().memory_usage_bytes;
    for _ in 0..3 {
        let refused = publish(held.len() as u64).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OverBudget, "{refused}");
    }
    assert_eq!(store.stats().memory_usage_bytes, used, "a refused tensor is charged to no budget");
    assert!(!held.is_empty(), "{limit} descriptors suffice for a tensor");
    for turn in 0..3 {
        processes.kill_server();
        let reader = processes.connect("reader");
        for number in 0..held.len() as u64 {
            let lease = reader.get(&number.to_string(), &reader.holder("")).unwrap();
            assert!(lease.bytes().unwrap() == content(number, BYTES), "{number} of limit {limit}, turn {turn}");
        }
    }
}

#[test]
fn takeovers_with_64_descriptors_keep_all_tensors() {
    takeovers_keep_all_tensors(64);
}

#[test]
fn takeovers_with_128_descriptors_keep_all_tensors() {
    takeovers_keep_all_tensors(128);
}

#[test]
fn takeovers_with_256_descriptors_keep_all_tensors() {
    takeovers_keep_all_tensors(256);
}

#[test]
fn takeovers_with_400_descriptors_keep_all_tensors() {
    takeovers_keep_all_tensors(400);
}

#[test]
fn clients_beyond_the_limits_hear_the_reason() {
    let processes = Processes::start_by(|_| limited(64), |_| Vec::new());
    let mut held = Vec::new();
    let refused = loop {
        match ClientStore::connect(Some(&processes.socket), "one") {
            Ok(store) => held.push(store),
            Err(error) => break error,
        }
        assert!(held.len() < 64, "no client was refused");
    };
    assert_eq!(refused.kind(), ErrorKind::OverBudget, "{refused}");
    assert!(refused.message().contains("limit of open descriptors"), "{refused}");

    let running = Running::start(|config| config.connections_max = 2);
    let first = [running.connect("one"), running.connect("two")];
    // The client may send its request before or after the daemon closes the connection.
    for _ in 0..20 {
        let refused = ClientStore::connect(Some(&running.socket), "three").err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::OverBudget, "{refused}");
        assert!(refused.message().contains("limit of 2 connections"), "{refused}");
    }
    drop(first);
}

#[test]
fn limit_that_is_too_low_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let command = limited(40);
    let mut daemon = std::process::Command::new(&command[0]);
    let output = daemon.args(&command[1..]).arg(folder.path().join("socket")).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("RLIMIT_NOFILE") && said.contains("40") && said.contains("64"), "{said}");
}
