//! What every [`Store`] is held to, wherever its tensors are kept.

mod devices;
mod room;
mod tensors;
mod work;

pub use devices::device_conformance;

use crate::{CopyReason, Lease, Retention, Store, TensorSpec};
use cotensor_core::{DType, Kind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A place where tensors are kept; calling it gives one more user of it.
pub type Place = Box<dyn Fn() -> Arc<dyn Store>>;

type Check = fn(&dyn Fn(u64) -> Place);

/// Bytes of a large tensor here. Small ones may be kept in segments of some MiB, which count as a whole.
pub(crate) const LARGE: usize = 1 << 20;

/// Runs the conformance suite: `make` gives an empty place with room for that many bytes.
///
/// What users give back, and that something is computed, may take its time to reach the others. Counted from outside, holders may have longer names than they gave
/// themselves: what they start with is the place's.
///
/// # Panics
/// When the place breaks a promise of [`Store`].
pub fn conformance(make: &dyn Fn(u64) -> Place) {
    let all: [(&str, Check); 16] = [
        ("bytes pass from one user to the other", tensors::bytes_pass_from_one_user_to_the_other),
        ("readers keep the version they hold", tensors::readers_keep_the_version_they_hold),
        ("what nobody leases goes or stays", tensors::what_nobody_leases_goes_or_stays),
        ("a name is forgotten, not its leases", tensors::a_name_is_forgotten_not_its_leases),
        ("views and clones hold their tensor", tensors::views_and_clones_hold_their_tensor),
        ("private tensors are nobody else's", tensors::private_tensors_are_nobody_elses),
        ("what cannot be is refused alike", tensors::what_cannot_be_is_refused_alike),
        ("the budget holds and names who holds", room::the_budget_holds_and_names_who_holds),
        ("pressure evicts what is cheapest to make again", room::pressure_evicts_what_is_cheapest_to_make_again),
        ("reports say what happened", room::reports_say_what_happened),
        ("a thing is computed once", work::a_thing_is_computed_once),
        ("a claim that is given up passes on", work::a_claim_that_is_given_up_passes_on),
        ("a claim waits as long as asked", work::a_claim_waits_as_long_as_asked),
        ("results that nobody could be given are refused", work::results_that_nobody_could_be_given_are_refused),
        ("contents are filled once", work::contents_are_filled_once),
        ("a source that fails leaves nothing", work::a_source_that_fails_leaves_nothing),
    ];
    for (what, check) in all {
        println!("{what}");
        check(make);
    }
}

/// Waits until `done`.
fn eventually(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}: not so after half a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A tensor of bytes that goes with its last lease.
fn spec(name: &str, bytes: usize) -> TensorSpec {
    TensorSpec { kind: Kind::TextEmbedding, producer: "suite".to_owned(), ..TensorSpec::new(name, DType::U8, &[bytes]) }
}

/// A tensor that stays as long as there is room, and takes so long to make again.
fn cached(name: &str, bytes: usize, recompute_ms: u64) -> TensorSpec {
    let recompute = Duration::from_millis(recompute_ms);
    TensorSpec { retention: Retention::Cached { recompute }, ..spec(name, bytes) }
}

fn put(store: &dyn Store, spec: TensorSpec, byte: u8) -> Lease {
    let bytes = spec.shape.iter().product();
    let mut reservation = store.reserve(spec, &store.holder("writer")).expect("reserve");
    reservation.write(&vec![byte; bytes], CopyReason::Put).expect("write");
    reservation.publish().expect("publish")
}

fn all_are(lease: &Lease, byte: u8) -> bool {
    lease.bytes().is_some_and(|bytes| bytes.iter().all(|&found| found == byte))
}

/// That everything was given back: for a user that keeps nothing itself.
fn ends_empty(store: &dyn Store) {
    eventually("all bytes come back", || store.stats().total_tensors == 0 && store.stats().memory_usage_bytes == 0);
}
