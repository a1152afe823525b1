//! Steps of a client that uses the store.

use super::{Half, Step, key, reached, specs, waited_for};
use crate::support::processes::{content, put};
use crate::support::spec;
use cotensor_client::ClientStore;
use cotensor_store::{
    BlobStore, Claim, ComputationStore, CopyReason, Lease, Reservation, Retention, TensorStore, Ticket,
};
use std::path::Path;
use std::sync::Arc;

pub(super) const STEPS: &[Step] = &[
    Step("reserved", |socket| hold(&reserved(&connect(socket)))),
    Step("written", |socket| hold(&written(&connect(socket)))),
    Step("one of two published", |socket| {
        let [large, small] = written(&connect(socket));
        hold(&(large.publish().unwrap(), small));
    }),
    Step("published", |socket| hold(&written(&connect(socket)).map(|each| each.publish().unwrap()))),
    Step("published again", |socket| {
        let store = connect(socket);
        let [old, new] = [1, 2].map(|number| put(&store, "doomed", &content(number, 100), Retention::WhileLeased));
        hold(&(old, new));
    }),
    Step("old version given back", |socket| {
        let store = connect(socket);
        drop(put(&store, "doomed", &content(1, 100), Retention::WhileLeased));
        hold(&put(&store, "doomed", &content(2, 1 << 20), Retention::WhileLeased));
    }),
    Step("removed and held", |socket| {
        let store = connect(socket);
        let held = put(&store, "doomed", &content(1, 100), Retention::WhileLeased);
        store.remove("doomed").unwrap();
        hold(&held);
    }),
    Step("read", |socket| hold(&read(&connect(socket), ""))),
    Step("read by two of its parts", |socket| {
        let store = connect(socket);
        hold(&[read(&store, "one"), read(&store, "other")]);
    }),
    Step("read and given back", |socket| {
        let store = connect(socket);
        drop(read(&store, ""));
        hold(&store);
    }),
    Step("everything given back", |socket| {
        let store = connect(socket);
        drop(written(&store).map(|each| each.publish().unwrap()));
        drop(reserved(&store));
        hold(&store);
    }),
    Step("many", |socket| {
        let store = connect(socket);
        let one = |n| put(&store, &format!("doomed {n}"), &content(n, 100 + 900 * n as usize), Retention::WhileLeased);
        let held: Vec<Lease> = (0..300).map(one).collect();
        let again = |lease: &Lease| store.get(lease.name(), &store.holder("again")).unwrap();
        hold(&(held.iter().map(again).collect::<Vec<_>>(), held));
    }),
    Step("claimed", |socket| hold(&claimed(&connect(socket)))),
    Step("half computed", |socket| {
        let store = connect(socket);
        let _ticket = claimed(&store);
        hold(&reserved(&store));
    }),
    Step("computed", |socket| {
        let store = connect(socket);
        hold(&claimed(&store).publish(reserved(&store).into()).unwrap());
    }),
    Step("declined", |socket| {
        let store = connect(socket);
        claimed(&store).abandon();
        hold(&store);
    }),
    Step("waiting for another's claim", |socket| {
        let store = connect(socket);
        let waiting = Arc::clone(&store);
        std::thread::spawn(move || waiting.claim(&waited_for(), &waiting.holder("")).map(drop));
        // What this asks for comes to the daemon after the claim, as soon as that is sent; before it is no harm either.
        std::thread::sleep(std::time::Duration::from_millis(50));
        hold(&store);
    }),
    Step("contents begun", |socket| drop(contents(&connect(socket), 0))),
    Step("contents half provided", |socket| drop(contents(&connect(socket), 2))),
    Step("contents provided", |socket| {
        let store = connect(socket);
        hold(&contents(&store, 3));
    }),
];

fn connect(socket: &Path) -> Arc<ClientStore> {
    ClientStore::connect(Some(socket), "doomed").unwrap()
}

/// The end of a step: what it made is there until the process is killed.
pub(super) fn hold<T>(_: &T) {
    reached()
}

/// One with memory of its own, and one in a slab.
fn reserved(store: &ClientStore) -> [Reservation; 2] {
    [("doomed", 1 << 20), ("doomed small", 100)]
        .map(|(name, bytes)| store.reserve(spec(name, bytes), &store.holder("")).unwrap())
}

fn written(store: &ClientStore) -> [Reservation; 2] {
    reserved(store).map(|mut reservation| {
        let bytes = content(1, reservation.layout().size_bytes());
        reservation.write(&bytes, CopyReason::Put).unwrap();
        reservation
    })
}

fn read(store: &ClientStore, holder: &str) -> Lease {
    let held = store.get("shared", &store.holder(holder)).unwrap();
    assert_eq!(held.bytes().unwrap(), content(9, 4096));
    held
}

fn claimed(store: &ClientStore) -> Ticket {
    match store.claim(&key(), &store.holder("")).unwrap() {
        Claim::Compute(ticket) => ticket,
        Claim::Ready(_) => panic!("nothing is there"),
    }
}

fn contents(store: &ClientStore, provided: usize) -> Vec<Lease> {
    store.blobs(&specs(), &mut Half(provided), &store.holder("")).unwrap()
}
