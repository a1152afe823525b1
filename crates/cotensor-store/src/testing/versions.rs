//! Queues of every version of names.

use super::fixtures::{OpenStore, cached, put};
use crate::{ChangePosition, EveryVersion, NameChange, NameChanges, NameFilter, Store, TensorId};
use cotensor_core::testing::until;
use std::time::Duration;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

fn every(name: &str) -> EveryVersion {
    EveryVersion::new(NameFilter::Name(name.to_owned()))
}

fn open(store: &dyn Store, every: &EveryVersion) -> ChangePosition {
    let opened = store.versions(every, None, Duration::ZERO, &|| true).expect("opened");
    assert!(opened.changes.is_empty() && !opened.incomplete && opened.dropped == 0);
    opened.position
}

fn next(store: &dyn Store, every: &EveryVersion, since: ChangePosition) -> NameChanges {
    let changes = store.versions(every, Some(since), LONG, &|| true).expect("changes");
    assert!(!changes.incomplete && !changes.changes.is_empty());
    changes
}

fn ids(changes: &NameChanges) -> Vec<Option<TensorId>> {
    changes.changes.iter().map(|change| change.id).collect()
}

/// A small limit makes a queue that is too short for the versions of the test.
fn limited(name: &str, versions_max: usize, bytes_max: u64) -> EveryVersion {
    EveryVersion { versions_max, bytes_max, ..every(name) }
}

pub(super) fn every_version_is_seen_in_order(make: &dyn Fn(u64) -> OpenStore) {
    let stores = make(u64::MAX);
    let (writer, reader) = (stores(), stores());
    let every = every("x");
    let start = open(&*reader, &every);
    const COUNT: u64 = 200;
    std::thread::scope(|scope| {
        scope.spawn(|| (0..COUNT).for_each(|value| drop(put(&*writer, cached("x", 10, 1), value as u8))));
        let (mut position, mut value) = (start, 0);
        while value < COUNT {
            let changes = next(&*reader, &every, position);
            assert_eq!(changes.dropped, 0);
            for NameChange { name, id } in &changes.changes {
                let lease = reader.lease(id.expect("a version"), &reader.holder("reader")).expect("the version stays");
                assert_eq!((name.as_str(), lease.bytes().expect("bytes")[0]), ("x", value as u8));
                value += 1;
            }
            position = changes.position;
        }
        let none = reader.versions(&every, Some(position), Duration::from_millis(1), &|| true).expect("none");
        assert!(none.changes.is_empty() && !none.incomplete);
        reader.end_versions(position);
    });
    let ended = reader.versions(&every, Some(start), LONG, &|| true).expect("ended");
    assert!(ended.incomplete && ended.changes.is_empty());
}

pub(super) fn slow_reader_of_every_version_counts_drops(make: &dyn Fn(u64) -> OpenStore) {
    let stores = make(u64::MAX);
    let (writer, reader) = (stores(), stores());
    let small = limited("x", 8, u64::MAX);
    let few_bytes = limited("x", 100, 45);
    let too_large = limited("x", 100, 5);
    let starts = [&small, &few_bytes, &too_large].map(|every| open(&*reader, every));
    let published: Vec<_> = (0..20).map(|value| put(&*writer, cached("x", 10, 1), value).id()).collect();
    let first = next(&*reader, &small, starts[0]);
    assert_eq!((ids(&first), first.dropped), (published[12..16].iter().copied().map(Some).collect(), 12));
    assert_eq!(next(&*reader, &small, starts[0]), first, "an answer that is lost is repeated");
    let more: Vec<_> = (20..30).map(|value| put(&*writer, cached("x", 10, 1), value).id()).collect();
    // The four that were delivered stay.
    assert!(published[12..16].iter().all(|id| reader.lease(*id, &reader.holder("reader")).is_ok()));
    let second = next(&*reader, &small, first.position);
    assert_eq!((ids(&second), second.dropped), (more[6..].iter().copied().map(Some).collect(), 12 + 10));

    let bounded = next(&*reader, &few_bytes, starts[1]);
    assert_eq!((ids(&bounded), bounded.dropped), (more[6..].iter().copied().map(Some).collect(), 26));
    let unleased = next(&*reader, &too_large, starts[2]);
    assert_eq!((unleased.changes.len(), unleased.dropped), (30, 0));
    assert!(reader.lease(published[0], &reader.holder("reader")).is_err());

    [first, bounded, unleased].iter().for_each(|changes| reader.end_versions(changes.position));
    until("old versions are freed", || writer.diagnostics().tensors.len() == 1);
    for versions_max in [1, EveryVersion::VERSIONS_MAX + 1] {
        let wrong = limited("x", versions_max, 1);
        assert!(reader.versions(&wrong, None, Duration::ZERO, &|| true).is_err());
    }
}

pub(super) fn existing_versions_and_removals_are_queued(make: &dyn Fn(u64) -> OpenStore) {
    let stores = make(u64::MAX);
    let (writer, reader) = (stores(), stores());
    let existing = put(&*writer, cached("a.x", 10, 1), 1).id();
    put(&*writer, cached("b.x", 10, 1), 1);
    let every = EveryVersion { existing: true, ..EveryVersion::new(NameFilter::Prefix("a.".to_owned())) };
    let start = open(&*reader, &every);
    let second = put(&*writer, cached("a.x", 10, 1), 2).id();
    writer.remove("a.x").expect("remove");
    let third = put(&*writer, cached("a.x", 10, 1), 3).id();
    let mut found = Vec::new();
    let mut position = start;
    while found.len() < 4 {
        let changes = next(&*reader, &every, position);
        found.extend(ids(&changes));
        position = changes.position;
    }
    assert_eq!(found, [Some(existing), Some(second), None, Some(third)]);
}

pub(super) fn queued_versions_are_given_up_for_memory(make: &dyn Fn(u64) -> OpenStore) {
    const BYTES: usize = 1 << 20;
    let stores = make(4 * BYTES as u64 + (1 << 18));
    let (writer, reader) = (stores(), stores());
    let every = every("x");
    let start = open(&*reader, &every);
    // A queue without a limit of its own keeps no program from publishing.
    let published: Vec<_> = (0..10).map(|value| put(&*writer, cached("x", BYTES, 1), value).id()).collect();
    let changes = next(&*reader, &every, start);
    assert_eq!(ids(&changes), published.iter().copied().map(Some).collect::<Vec<_>>());
    let found = published.iter().filter(|id| reader.lease(**id, &reader.holder("reader")).is_ok()).count();
    assert!((1..=4).contains(&found), "{found}");
}
