//! Fixtures of the attacks in `tests/`: a daemon, a victim client, and a client that violates the protocol.
//!
//! Every attack ends with [`Target::assert_unharmed`]: the victim's data is unchanged, other clients are served, and
//! nothing of the attacker is left.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod http;
mod raw;
mod target;

pub use http::{Answer, Web};
pub use raw::Raw;
pub use target::Target;

use cotensor_core::DType;
use cotensor_store::{CopyReason, Lease, Reservation, Store, TensorSpec};
use std::time::{Duration, Instant};

/// Time-out of every wait, far above the expected time.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Time-out configured for daemons whose time-outs are tested.
pub const SHORT_TIMEOUT: Duration = Duration::from_millis(300);
/// Waits until `done`; panics with the text of `seen` after a time-out.
pub fn until(what: &str, done: impl Fn() -> bool, seen: impl Fn() -> String) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < TIMEOUT, "timed out waiting until {what}: {}", seen());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Asserts that a text names none of the victim's tensors.
pub fn assert_no_secrets(text: &str) {
    assert!(!text.contains("secret"), "{text}");
}

/// A recognisable content.
pub fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index % 251) as u8).collect()
}

/// Publishes bytes under a name.
pub type Put = fn(&dyn Store, &str, &[u8]) -> Lease;

/// Publishes `bytes`: up to 256 KiB in a slab, more in memory of its own.
pub fn put(store: &dyn Store, name: &str, bytes: &[u8]) -> Lease {
    publish(store.reserve(spec(name, bytes.len()), &store.holder("")).unwrap(), bytes)
}

/// Publishes `bytes`, more than 256 KiB, in a block, which its producer uses again.
pub fn put_in_block(store: &dyn Store, name: &str, bytes: &[u8]) -> Lease {
    publish(store.reserve_to_fill(spec(name, bytes.len()), &store.holder("")).unwrap(), bytes)
}

fn publish(mut reservation: Reservation, bytes: &[u8]) -> Lease {
    reservation.write(bytes, CopyReason::Put).unwrap();
    reservation.publish().unwrap()
}

/// A tensor of bytes that is freed with its last lease.
pub fn spec(name: &str, bytes: usize) -> TensorSpec {
    TensorSpec { producer: "attack".to_owned(), ..TensorSpec::new(name, DType::U8, &[bytes]) }
}

/// Number of open descriptors of this process, which includes the daemon.
pub fn fd_count() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
