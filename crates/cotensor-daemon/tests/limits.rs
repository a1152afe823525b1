//! What one client may take.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use cotensor_core::ErrorKind;
use cotensor_store::{Lease, Store};
use support::{Running, spec};

fn put(store: &dyn Store, name: &str, bytes: usize) -> cotensor_core::Result<Lease> {
    store.reserve(spec(name, bytes), &store.holder("test"))?.publish()
}

#[test]
fn one_client_has_a_limit_of_its_own() {
    const MIB: usize = 1 << 20;
    let running = Running::start(|config| config.max_client_bytes = 8 << 20);
    let (one, other) = (running.connect("one"), running.connect("other"));
    let first = put(&*one, "first", 5 * MIB).unwrap();
    let error = put(&*one, "second", 4 * MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    for word in ["one", "5242880", "4194304", "8388608"] {
        assert!(error.message().contains(word), "{error}");
    }
    // A reservation counts until it is dropped, and becomes the lease when it is published.
    let reserved = one.reserve(spec("reserved", 2 * MIB), &one.holder("test")).unwrap();
    assert!(put(&*one, "more", 2 * MIB).is_err());
    drop(reserved.publish().unwrap());
    drop(put(&*one, "more", 3 * MIB).unwrap());

    // Another client has its own, for what it reads too.
    let second = put(&*other, "second", 4 * MIB).unwrap();
    assert_eq!(other.get("first", &other.holder("test")).unwrap_err().kind(), ErrorKind::OverBudget);
    drop(second);
    let read = other.get("first", &other.holder("test")).unwrap();
    let again = other.get("first", &other.holder("test")).unwrap();
    drop((first, read, again));
    // Small tensors lie in slabs of 4 MiB: two fit.
    let small: Vec<_> = (0..30).map(|number| put(&*other, &format!("small{number}"), 256 << 10)).collect();
    assert!(small[..15].iter().all(Result::is_ok));
    drop(small);
    drop((one, other));
    running.settles_at(0);
}
