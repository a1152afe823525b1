//! Names and their changes.

use super::fixtures::{OpenStore, cached, put, spec};
use crate::{ChangePosition, NameChange, NameChanges, NameFilter, Store};
use cotensor_core::sync::lock;
use cotensor_core::testing::until;
use std::time::Duration;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

fn listed(store: &dyn Store, prefix: &str) -> Vec<String> {
    store.names(prefix).expect("names").into_iter().map(|named| named.name).collect()
}

fn prefix(text: &str) -> NameFilter {
    NameFilter::Prefix(text.to_owned())
}

/// The current position.
fn now(store: &dyn Store) -> ChangePosition {
    let changes = store.changes(&prefix(""), None, Duration::ZERO, &|| true).expect("position");
    assert!(changes.changes.is_empty() && !changes.incomplete);
    changes.position
}

fn wait(store: &dyn Store, filter: &NameFilter, since: ChangePosition) -> NameChanges {
    let changes = store.changes(filter, Some(since), LONG, &|| true).expect("changes");
    assert!(!changes.incomplete && !changes.changes.is_empty());
    changes
}

pub(super) fn names_are_listed_in_order(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (one, other) = (open(), open());
    let leases: Vec<_> = ["b", "a.2", "a.1", "\u{1F40C}"].iter().map(|name| put(&*one, spec(name, 10), 1)).collect();
    let newest = put(&*one, spec("b", 10), 2);
    assert_eq!(listed(&*other, ""), ["a.1", "a.2", "b", "\u{1F40C}"]);
    assert_eq!(listed(&*other, "a."), ["a.1", "a.2"]);
    assert_eq!((other.count_names("a.").expect("names"), other.count_names("").expect("names")), (2, 4));
    assert_eq!((listed(&*other, "c"), other.count_names("c").expect("names")), (vec![], 0));
    assert_eq!(other.find_name("b").expect("names"), Some(newest.id()));
    assert_eq!(other.names("b").expect("names")[0].id, newest.id());
    one.remove("b").expect("remove");
    assert_eq!(other.find_name("b").expect("names"), None, "a removed name is not found while it is leased");
    assert_eq!(listed(&*other, "b"), [""; 0]);
    drop(leases);
    until("a freed name is not listed", || listed(&*other, "").is_empty());
}

pub(super) fn changes_of_names_reach_waiting_callers(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (writer, reader) = (open(), open());
    let filter = NameFilter::Name("x".to_owned());
    let change = |store: &dyn Store, since, act: &(dyn Fn() -> Option<u64> + Sync)| {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(store, &filter, since));
            let version = act();
            let changes = waiting.join().expect("the waiting thread");
            let [NameChange { name, id }] = &changes.changes[..] else { panic!("{:?}", changes.changes) };
            assert_eq!((name.as_str(), id.map(|id| id.version)), ("x", version));
            changes.position
        })
    };
    let publish = || Some(put(&*writer, cached("x", 10, 1), 1).id().version);
    let start = now(&*reader);
    let first = change(&*reader, start, &publish);
    let second = change(&*reader, first, &publish);
    let removed = change(&*reader, second, &|| {
        writer.remove("x").expect("remove");
        None
    });
    // A tensor that is not cached is freed with its last lease.
    let lease = std::sync::Mutex::new(None);
    let third = change(&*reader, removed, &|| {
        let published = put(&*writer, spec("x", 10), 1);
        let version = published.id().version;
        *lock(&lease) = Some(published);
        Some(version)
    });
    change(&*reader, third, &|| {
        drop(lock(&lease).take());
        None
    });
}

pub(super) fn changes_are_filtered_and_coalesced(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (writer, reader) = (open(), open());
    let start = now(&*reader);
    let ids: Vec<_> = (0..5).map(|version| put(&*writer, cached("a.x", 10, 1), version).id()).collect();
    put(&*writer, cached("b.y", 10, 1), 1);
    let changes = wait(&*reader, &prefix("a."), start);
    assert_eq!(changes.changes, [NameChange { name: "a.x".to_owned(), id: ids.last().copied() }]);
    // Neither the end of the time nor of the caller's interest is an error.
    for (time, keep_waiting) in [(Duration::from_millis(1), true), (LONG, false)] {
        let nothing = reader.changes(&prefix("a."), Some(changes.position), time, &|| keep_waiting).expect("nothing");
        assert!(nothing.changes.is_empty() && !nothing.incomplete);
    }
    let unknown = ChangePosition { log: start.log.wrapping_add(1), number: 1 };
    let lost = reader.changes(&prefix(""), Some(unknown), LONG, &|| true).expect("lost");
    assert!(lost.incomplete && lost.changes.is_empty() && lost.position.log == start.log);
}
