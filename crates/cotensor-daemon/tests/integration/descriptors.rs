//! More tensors than the process may have descriptors.

use crate::support::Running;
use crate::support::processes::{content, put};
use cotensor_store::{Retention, StoreReports, TensorStore};
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
