//! Steps of a client of the store.

use super::{Half, Step, key, reached, specs};
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
        let [old, new] = [1, 2].map(|number| put(&store, "victim", &content(number, 100), Retention::WhileLeased));
        hold(&(old, new));
    }),
    Step("old version released", |socket| {
        let store = connect(socket);
        drop(put(&store, "victim", &content(1, 100), Retention::WhileLeased));
        hold(&put(&store, "victim", &content(2, 1 << 20), Retention::WhileLeased));
    }),
    Step("removed and held", |socket| {
        let store = connect(socket);
        let held = put(&store, "victim", &content(1, 100), Retention::WhileLeased);
        store.remove("victim").unwrap();
        hold(&held);
    }),
    Step("read", |socket| hold(&read(&connect(socket), ""))),
    Step("read by two of its parts", |socket| {
        let store = connect(socket);
        hold(&[read(&store, "one"), read(&store, "other")]);
    }),
    Step("read and released", |socket| {
        let store = connect(socket);
        drop(read(&store, ""));
        hold(&store);
    }),
    Step("everything released", |socket| {
        let store = connect(socket);
        drop(written(&store).map(|each| each.publish().unwrap()));
        drop(reserved(&store));
        hold(&store);
    }),
    Step("many", |socket| {
        let store = connect(socket);
        let one = |n| put(&store, &format!("victim {n}"), &content(n, 100 + 900 * n as usize), Retention::WhileLeased);
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
    Step("claim abandoned", |socket| {
        let store = connect(socket);
        claimed(&store).abandon();
        hold(&store);
    }),
    Step("blobs planned", |socket| drop(blobs(&connect(socket), 0))),
    Step("blobs half filled", |socket| drop(blobs(&connect(socket), 2))),
    Step("blobs published", |socket| {
        let store = connect(socket);
        hold(&blobs(&store, 3));
    }),
];

fn connect(socket: &Path) -> Arc<ClientStore> {
    ClientStore::connect(Some(socket), "victim").unwrap()
}

/// Ends a step. The values live until the process is killed.
pub(super) fn hold<T>(_: &T) {
    reached()
}

/// Two reservations: with own memory, and in a slab.
fn reserved(store: &ClientStore) -> [Reservation; 2] {
    [("victim", 1 << 20), ("victim small", 100)]
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
        Claim::Ready(_) => panic!("the key has no result"),
    }
}

fn blobs(store: &ClientStore, filled: usize) -> Vec<Lease> {
    store.blobs(&specs(), &mut Half(filled), &store.holder("")).unwrap()
}
