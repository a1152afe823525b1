//! Computations and blobs.

use super::fixtures::{LARGE, OpenStore, all_are, cached, ends_empty};
use crate::{BlobSource, BlobSpec, Claim, CopyReason, Key, Lease, Store, Ticket};
use cotensor_core::testing::until;
use cotensor_core::{ContentHash, DType, Device, Error, ErrorKind, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn key() -> Key {
    Key(ContentHash::of(b"a computation"))
}

fn ticket(store: &dyn Store) -> Ticket {
    match store.claim(&key(), &store.holder("stage")).expect("claim") {
        Claim::Compute(ticket) => ticket,
        Claim::Ready(leases) => panic!("{} results of nothing", leases.len()),
    }
}

fn compute(store: &dyn Store, ticket: Ticket) -> Vec<Lease> {
    let result = |name: &str, bytes: usize| {
        let mut result = store.reserve(cached(name, bytes, 100), &store.holder("stage")).expect("reserve");
        result.write(&vec![7; bytes], CopyReason::EngineOutput).expect("write");
        result
    };
    ticket.publish(vec![result("small", 10), result("large", LARGE)]).expect("publish")
}

pub(super) fn result_is_computed_once(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (computed, stores) = (AtomicUsize::new(0), [open(), open(), open(), open()]);
    assert!(!stores[0].is_computed(&key()));
    std::thread::scope(|scope| {
        for store in &stores {
            let computed = &computed;
            scope.spawn(move || {
                let leases = match store.claim(&key(), &store.holder("stage")).expect("claim") {
                    Claim::Ready(leases) => leases,
                    Claim::Compute(ticket) => {
                        computed.fetch_add(1, Ordering::SeqCst);
                        compute(&**store, ticket)
                    }
                };
                assert_eq!(leases.iter().map(Lease::name).collect::<Vec<_>>(), ["small", "large"]);
                assert!(leases.iter().all(|lease| all_are(lease, 7)));
            });
        }
    });
    assert_eq!(computed.load(Ordering::SeqCst), 1);
    until("all know of it", || stores.iter().all(|store| store.is_computed(&key())));
    // When one of the results is freed, all are computed again.
    stores[1].remove("small").expect("remove");
    until("a result is freed", || !stores[2].is_computed(&key()));
    drop(compute(&*stores[3], ticket(&*stores[3])));
    until("it is computed again", || stores[0].is_computed(&key()));
}

pub(super) fn abandoned_claim_passes_to_a_waiter(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (one, other) = (open(), open());
    for declined in [true, false] {
        let first = ticket(&*one);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| drop(ticket(&*other)));
            if declined {
                first.abandon()
            } else {
                drop(first)
            }
            waits.join().expect("the claim passed on");
        });
    }
    drop(compute(&*one, ticket(&*one)));
    until("it is computed", || other.is_computed(&key()));
}

pub(super) fn claim_waits_at_most_its_timeout(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (one, other) = (open(), open());
    let within = |wait| other.claim_within(&key(), &other.holder("waits"), wait);
    let computing = ticket(&*one);
    for wait in [Duration::ZERO, Duration::from_millis(30)] {
        let error = within(wait).err().expect("another holder computes");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("stage"), "it names the holder: {error}");
    }
    drop(computing);
    // A wait that timed out does not hold the claim.
    for _ in 0..2 {
        until("the claim is free", || matches!(within(Duration::ZERO), Ok(Claim::Compute(_))));
    }
    drop(compute(&*one, ticket(&*one)));
    until("results come without a wait", || matches!(within(Duration::ZERO), Ok(Claim::Ready(_))));
}

pub(super) fn many_computations_are_claimed_and_published_together(make: &dyn Fn(u64) -> OpenStore) {
    const COUNT: usize = 300;
    let open = make(u64::MAX);
    let (one, other) = (open(), open());
    let keys: Vec<Key> = (0..COUNT).map(|number| Key(ContentHash::of(&number.to_le_bytes()))).collect();
    let claim = |store: &dyn Store, keys: &[Key]| store.claim_each(keys, &store.holder("stage"));
    let first: Vec<_> = claim(&*one, &keys[1..]).into_iter().map(|claim| claim.expect("claim")).collect();
    // Another holder has all but one of these. It is not waited for.
    let mut busy = claim(&*other, &keys);
    assert!(matches!(busy.remove(0), Ok(Claim::Compute(_))));
    assert!(busy.into_iter().all(|claim| claim.is_err_and(|error| error.kind() == ErrorKind::TimedOut)));
    let tickets = first.into_iter().map(|claim| match claim {
        Claim::Compute(ticket) => ticket,
        Claim::Ready(_) => panic!("a result of nothing"),
    });
    // Small tensors, and some with memory of their own.
    let size = |at: usize| if at.is_multiple_of(100) { LARGE } else { 10 + at % 7 };
    let made = tickets.enumerate().map(|(at, ticket)| {
        let spec = cached(&format!("result {at}"), size(at), 100);
        let mut result = one.reserve(spec, &one.holder("stage")).expect("reserve");
        result.write(&vec![(at % 251) as u8; size(at)], CopyReason::EngineOutput).expect("write");
        (ticket, result)
    });
    let published = Ticket::publish_each(made.collect()).expect("publish");
    assert!(published.iter().enumerate().all(|(at, lease)| lease.name() == format!("result {at}")));
    drop(published);
    until("the other client gets all", || {
        let ready = claim(&*other, &keys[1..]).into_iter().enumerate().map(|(at, claim)| match claim {
            Ok(Claim::Ready(leases)) => leases.len() == 1 && all_are(&leases[0], (at % 251) as u8),
            _ => false,
        });
        ready.filter(|ready| *ready).count() == COUNT - 1
    });
    assert!(Ticket::publish_each(Vec::new()).expect("nothing").is_empty());
    // The abandoned claim is free.
    until("the rest is free", || matches!(claim(&*one, &keys[..1]).remove(0), Ok(Claim::Compute(_))));
    let ticket = |key: &Key| match one.claim(key, &one.holder("stage")).expect("claim") {
        Claim::Compute(ticket) => ticket,
        Claim::Ready(_) => panic!("a result of nothing"),
    };
    let private = one.reserve_private(cached("x", 10, 1), &one.holder("m")).expect("reserve");
    let refused = Ticket::publish_each(vec![(ticket(&keys[0]), private)]).err().map(|error| error.kind());
    assert_eq!(refused, Some(ErrorKind::Invalid));
}

pub(super) fn private_or_missing_results_are_refused(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (one, watcher) = (open(), open());
    let private = one.reserve_private(cached("x", 10, 1), &one.holder("m")).expect("reserve");
    for results in [Vec::new(), vec![private]] {
        let refused = ticket(&*one).publish(results).err().map(|error| error.kind());
        assert_eq!(refused, Some(ErrorKind::Invalid));
        assert!(!one.is_computed(&key()));
    }
    drop(compute(&*one, ticket(&*one)));
    until("it is computed", || watcher.is_computed(&key()));
    drop(one);
    until("all of it goes", || {
        watcher.optimize();
        watcher.stats().total_tensors == 0
    });
    ends_empty(&*watcher);
}

/// Fills blobs with their lengths; fails at blob number `fails`.
struct Lengths<'a> {
    filled: &'a AtomicUsize,
    fails: Option<usize>,
}

impl BlobSource for Lengths<'_> {
    fn fill(&mut self, index: usize, target: &mut [u8]) -> Result<()> {
        if self.fails == Some(index) {
            return Err(Error::corrupt("the file is torn").in_field("weights"));
        }
        self.filled.fetch_add(1, Ordering::SeqCst);
        let len = target.len();
        target.fill(len as u8);
        Ok(())
    }
}

fn contents(lens: impl IntoIterator<Item = usize>) -> Vec<BlobSpec> {
    let spec = |len: usize| BlobSpec {
        device: Device::Cpu,
        hash: ContentHash::of(&vec![len as u8; len]),
        dtype: DType::U8,
        shape: vec![len],
        producer: "model".to_owned(),
        label: String::new(),
        metadata: None,
    };
    lens.into_iter().map(spec).collect()
}

pub(super) fn blobs_are_filled_once(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (filled, stores) = (AtomicUsize::new(0), [open(), open(), open()]);
    std::thread::scope(|scope| {
        for (index, store) in stores.iter().enumerate() {
            let filled = &filled;
            // Overlapping lists, each in its own order, with one blob twice.
            let lens: Vec<usize> = (0..20).map(|place| 12 + (place * (2 * index + 3)) % 20).chain([12]).collect();
            scope.spawn(move || {
                let mut source = Lengths { filled, fails: None };
                let leases = store.blobs(&contents(lens.iter().copied()), &mut source, &store.holder("model"));
                for (len, lease) in lens.iter().zip(leases.expect("contents")) {
                    assert!(lease.shape() == [*len] && all_are(&lease, *len as u8));
                }
            });
        }
    });
    // Each client requests 20 blobs. A blob that was freed meanwhile is filled again by a later client.
    assert!((20..=60).contains(&filled.load(Ordering::SeqCst)));
    // The same bytes with another dtype and shape are the same memory.
    let [mut bytes, mut floats] = [contents([16]).remove(0), contents([16]).remove(0)];
    (floats.dtype, floats.shape) = (DType::F32, vec![2, 2]);
    bytes.producer = "another model".to_owned();
    let mut source = Lengths { filled: &filled, fails: None };
    let leases = stores[0].blobs(&[bytes, floats], &mut source, &stores[0].holder("m")).expect("contents");
    assert_eq!((leases[1].dtype(), leases[1].shape()), (DType::F32, &[2, 2][..]));
    assert_eq!(leases[0].bytes().map(<[u8]>::as_ptr), leases[1].bytes().map(<[u8]>::as_ptr));
    assert_ne!(leases[0].identity(), leases[1].identity(), "another value");
}

pub(super) fn blob_has_the_metadata_of_its_first_caller(make: &dyn Fn(u64) -> OpenStore) {
    const FIRST: &str = r#"{"bits":4,"relative_error":null}"#;
    let open = make(u64::MAX);
    let (one, other, filled) = (open(), open(), AtomicUsize::new(0));
    let with = |text: &str| BlobSpec { metadata: Some(text.into()), ..contents([40]).remove(0) };
    let lease = |store: &dyn Store, blob: BlobSpec| {
        let mut source = Lengths { filled: &filled, fails: None };
        store.blobs(&[blob], &mut source, &store.holder("m")).map(|mut leases| leases.remove(0))
    };
    let too_long = with(&format!("{{{}}}", " ".repeat(crate::METADATA_BYTES_MAX)));
    let error = lease(&*one, too_long).expect_err("it is too long");
    assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("metadata")));
    let first = lease(&*one, with(FIRST)).expect("a blob");
    let second = lease(&*other, with(r#"{"bits":8}"#)).expect("the same blob");
    let plain = lease(&*other, contents([40]).remove(0)).expect("the same blob");
    let named = other.get(first.name(), &other.holder("m")).expect("by name");
    for lease in [&first, &second, &plain, &named] {
        assert_eq!((lease.metadata(), lease.id()), (Some(FIRST), first.id()));
    }
    assert_eq!(filled.load(Ordering::SeqCst), 1);
}

pub(super) fn failing_source_publishes_nothing(make: &dyn Fn(u64) -> OpenStore) {
    let open = make(u64::MAX);
    let (one, other, filled) = (open(), open(), AtomicUsize::new(0));
    let mut source = Lengths { filled: &filled, fails: Some(2) };
    let error = one.blobs(&contents([100, 200, 300]), &mut source, &one.holder("m")).expect_err("it fails");
    assert_eq!((error.kind(), error.field()), (ErrorKind::Corrupt, Some("weights")));
    ends_empty(&*other);
    // The next client can provide the blobs.
    let mut source = Lengths { filled: &filled, fails: None };
    let leases = other.blobs(&contents([300, 100]), &mut source, &other.holder("m")).expect("contents");
    assert!(all_are(&leases[0], 44) && all_are(&leases[1], 100));
}
