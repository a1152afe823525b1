//! Limits of one client.

use crate::support::{Running, spec};
use cotensor_client::protocol as p;
use cotensor_core::{ContentHash, Device, ErrorKind};
use cotensor_memory::Slab;
use cotensor_store::{Lease, Store, TensorStore};

fn put(store: &dyn Store, name: &str, bytes: usize) -> cotensor_core::Result<Lease> {
    store.reserve(spec(name, bytes), &store.holder("test"))?.publish()
}

#[test]
fn client_budget_is_enforced() {
    const MIB: usize = 1 << 20;
    let running = Running::start(|config| config.max_client_bytes = 8 << 20);
    let (one, other) = (running.connect("one"), running.connect("other"));
    let first = put(&*one, "first", 5 * MIB).unwrap();
    let error = put(&*one, "second", 4 * MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    for word in ["one", "5.00 MiB", "4.00 MiB more", "8.00 MiB of one client"] {
        assert!(error.message().contains(word), "{error}");
    }
    // A reservation counts until it is dropped, and becomes the lease when it is published.
    let reserved = one.reserve(spec("reserved", 2 * MIB), &one.holder("test")).unwrap();
    assert!(put(&*one, "more", 2 * MIB).is_err());
    drop(reserved.publish().unwrap());
    drop(put(&*one, "more", 3 * MIB).unwrap());

    // The budget of another client is separate. Tensors that it reads count too.
    let second = put(&*other, "second", 4 * MIB).unwrap();
    assert_eq!(other.get("first", &other.holder("test")).unwrap_err().kind(), ErrorKind::OverBudget);
    drop(second);
    let read = other.get("first", &other.holder("test")).unwrap();
    let again = other.get("first", &other.holder("test")).unwrap();
    drop((first, read, again));
    // Slabs count in full. New slabs are made no larger than the remaining budget.
    let small: Vec<_> = (0..40).map(|number| put(&*other, &format!("small{number}"), 256 << 10)).collect();
    assert!(small[..32].iter().all(Result::is_ok) && small[32..].iter().all(Result::is_err));
    drop(small);
    drop((one, other));
    running.settles_at(0);
}

#[test]
fn holders_of_a_session_are_limited_at_a_time() {
    let running = Running::start(|_| {});
    let (one, other) = (running.connect("one"), running.connect("other"));
    let shared = put(&*one, "shared", 100).unwrap();
    let get = |part: usize| other.get("shared", &other.holder(&format!("part {part}")));
    let held = get(0).unwrap();
    for part in 1..3000 {
        // A new tensor each time: a client store counts further leases of a tensor locally, without the daemon.
        let lease = put(&*one, &format!("own {part}"), 10).unwrap();
        drop(other.get(lease.name(), &other.holder(&format!("part {part}"))).unwrap());
    }
    let all: Vec<_> = (0..1023).map(|part| put(&*one, &format!("all {part}"), 10).unwrap()).collect();
    let get = |part: usize| other.get(&format!("all {part}"), &other.holder(&format!("holding {part}")));
    let holding: Vec<_> = (0..1023).map(|part| get(part).unwrap()).collect();
    let last = put(&*one, "last", 10).unwrap();
    let error = other.get("last", &other.holder("one too many")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    drop(holding);
    drop(other.get("last", &other.holder("one too many")).unwrap());
    drop((shared, held, all, last, one, other));
    running.settles_at(0);
}

#[test]
fn results_of_a_claim_are_distinct_and_limited() {
    let running = Running::start(|_| {});
    let one = running.connect("one");
    let finish = |results: Vec<p::Id>| {
        let key = ContentHash::of(b"stage").to_string();
        let claim = one.request::<p::Claim>(&p::ClaimParams { key, holder: String::new(), timeout_ms: None }).unwrap();
        let p::ClaimResult::Compute(ticket) = claim else { panic!("the key has no result") };
        let error = one.request::<p::Finish>(&p::FinishParams { ticket, results }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        error.message().to_owned()
    };
    let id = |name_id| p::Id { name_id, version: 1 };
    assert!(finish(vec![id(1), id(2), id(1)]).contains("twice"));
    // After an error the key can be claimed again.
    assert!(finish((0..5000).map(id).collect()).contains("more than 4096"));
}

/// The slab counts for the leases of its session, so it counts as long as they exist.
#[test]
fn slab_with_leases_of_its_session_is_not_closed() {
    const BYTES: usize = 1 << 20;
    let running = Running::start(|config| config.max_client_bytes = 3 * BYTES as u64 / 2);
    let raw = cotensor_client::connect(&running.socket, Box::new(|_, _, _| {})).unwrap();
    let hello = p::HelloParams { protocol: p::PROTOCOL, client: "raw".to_owned(), ..Default::default() };
    raw.call::<p::Hello>(&hello, Vec::new(), None).unwrap();
    let open = || {
        let memory = Slab::create(BYTES).unwrap();
        let params = p::SlabParams { bytes: BYTES as u64, block: false, device: Device::Cpu, reservation: None };
        raw.call::<p::OpenSlab>(&params, vec![memory.fd().try_clone_to_owned().unwrap()], None)
    };
    let slab = open().unwrap().0.slab;
    let spec = p::Spec::from(&spec("x", BYTES));
    let (holder, copies) = (String::new(), Vec::new());
    let params =
        p::PublishSlabParams { slab, offset: 0, spec, holder, ticket: None, expected: None, copies, again: false };
    let id = raw.call::<p::PublishSlab>(&params, Vec::new(), None).unwrap().0.id;
    let close = || raw.call::<p::CloseSlab>(&p::CloseSlabParams { slab }, Vec::new(), None).map(drop);
    let refused = close().unwrap_err();
    assert_eq!((refused.kind(), refused.field()), (ErrorKind::Conflict, Some("slab")), "{refused}");
    assert_eq!(open().unwrap_err().kind(), ErrorKind::OverBudget, "it counts");
    let leases = vec![p::LeaseParams { id, holder: String::new() }];
    raw.call::<p::Release>(&p::ReleaseParams { leases }, Vec::new(), None).unwrap();
    close().unwrap();
    assert_eq!(close().unwrap_err().kind(), ErrorKind::NotFound);
    open().unwrap();
}
