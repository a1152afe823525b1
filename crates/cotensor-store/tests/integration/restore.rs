//! Restoring the tensors of a former store from the events of its observer.

use cotensor_core::{ContentHash, DType, Device, ErrorKind, Layout, Segment};
use cotensor_store::backend::{Record, VersionState};
use cotensor_store::{
    Claim, ComputationStore, Key, Lease, LocalStore, ManualClock, Members, MemoryControl, RestoredTensor, Retention,
    SpilledSegment, StoreObserver, StoreReports, TensorId, TensorSpec, TensorStore,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Told {
    fn note(&self, what: &str, record: &Record) {
        self.0.lock().unwrap().push(format!("{what} {} {}", record.name(), record.id().version));
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl StoreObserver for Told {
    fn on_publish(&self, record: &Record) {
        self.note("listing", record);
    }

    fn on_unlist(&self, record: &Record) {
        self.note("hidden", record);
    }

    fn on_free(&self, record: &Record) {
        self.note("gone", record);
    }

    fn on_spill(&self, record: &Record, _: &dyn SpilledSegment) {
        self.note("spilled", record);
    }

    fn on_spilled_free(&self, id: TensorId) {
        self.0.lock().unwrap().push(format!("dropped {}", id.version));
    }

    fn on_results(&self, _: &Key, results: &[TensorId]) {
        self.0.lock().unwrap().push(format!("finished {}", results.len()));
    }

    fn on_abandon(&self, _: &Key) {
        self.0.lock().unwrap().push("abandoned".to_owned());
    }
}

fn spec(name: &str, retention: Retention) -> TensorSpec {
    TensorSpec { retention, ..TensorSpec::new(name, DType::U8, &[100]) }
}

const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };

fn put(store: &LocalStore, name: &str, retention: Retention) -> Lease {
    store.reserve(spec(name, retention), &store.holder("m")).unwrap().publish().unwrap()
}

#[test]
fn observer_receives_every_change_in_order() {
    let told = Arc::new(Told::default());
    let store = LocalStore::builder().observer(told.clone()).build();
    let first = put(&store, "x", KEPT);
    let second = put(&store, "x", KEPT);
    drop(first);
    store.remove("x").unwrap();
    assert_eq!(told.take(), ["listing x 1", "listing x 2", "gone x 1", "hidden x 2"]);
    drop(second);
    drop(put(&store, "y", Retention::WhileLeased));
    assert_eq!(told.take(), ["gone x 2", "listing y 1", "gone y 1"]);
    let Claim::Compute(ticket) = store.claim(&Key(ContentHash::of(b"k")), &store.holder("m")).unwrap() else {
        panic!()
    };
    let result = store.reserve(spec("z", KEPT), &store.holder("m")).unwrap();
    drop(ticket.publish(vec![result]).unwrap());
    assert_eq!(told.take(), ["listing z 1", "finished 1"]);
    store.optimize();
    assert_eq!(told.take(), ["gone z 1"]);
    drop(store.claim(&Key(ContentHash::of(b"other")), &store.holder("m")).unwrap());
    assert_eq!(told.take(), ["abandoned"]);
}

fn restored(store: &LocalStore, (name, id): (&str, TensorId), versions: u64, current: bool) -> RestoredTensor {
    let charge = store.charge_existing(Device::Cpu, 100).unwrap();
    let mut memory = cotensor_core::Memory::reserve(&cotensor_core::HeapMemory, 100).unwrap();
    memory.write_at(0, &[id.version as u8; 100]).unwrap();
    let segment: Arc<dyn Segment> = memory.freeze().unwrap();
    let layout = Layout::contiguous(DType::U8, &[100]).unwrap();
    let key = Some(Key(ContentHash::of(name.as_bytes())));
    let state = if current { VersionState::Published } else { VersionState::Superseded };
    RestoredTensor {
        id,
        spec: spec(name, KEPT),
        layout,
        segment,
        charge,
        key,
        versions,
        state,
        created: None,
        left: None,
    }
}

#[test]
fn restored_tensor_keeps_its_age() {
    let clock = Arc::new(ManualClock::default());
    clock.advance(Duration::from_secs(100));
    let store = LocalStore::builder().clock(clock.clone()).build();
    let holder = store.holder("m");
    let ages =
        [("of then", Some(Duration::from_secs(70))), ("of now", None), ("ahead", Some(Duration::from_secs(101)))];
    let leases = ages.map(|(name, created)| {
        // Published once for an id that the name can have.
        let id = put(&store, name, Retention::WhileLeased).id();
        store.restore(RestoredTensor { created, ..restored(&store, (name, id), 1, true) }, &holder).unwrap()
    });
    clock.advance(Duration::from_secs(5));
    let found = leases.each_ref().map(|lease| {
        let tensors = store.diagnostics().tensors;
        tensors.iter().find(|tensor| tensor.name == lease.name()).unwrap().age_seconds
    });
    assert_eq!(found, [35.0, 5.0, 5.0]);
    assert_eq!(store.stats().counted_seconds, 5.0, "since the store was made");
}

#[test]
fn time_without_leases_goes_on_after_a_restore_unless_the_tensor_is_used() {
    let clock = Arc::new(ManualClock::default());
    clock.advance(Duration::from_secs(1000));
    let store = LocalStore::builder().clock(clock.clone()).build();
    let (holder, age) = (store.holder("taken over"), Duration::from_secs(600));
    let restore = |name: &str, left: Option<u64>| {
        let id = put(&store, name, Retention::WhileLeased).id();
        let tensor = restored(&store, (name, id), 1, true);
        let spec = TensorSpec { keep_for: Some(age), ..tensor.spec };
        let tensor = RestoredTensor { spec, left: left.map(Duration::from_secs), ..tensor };
        (id, store.restore(tensor, &holder).unwrap())
    };
    // Left 300 s ago; left then, and leased by a client since; unknown.
    let [(left, one), (used, two), (resumed, three), (new, four)] =
        [("left", Some(700)), ("used", Some(700)), ("resumed", Some(700)), ("new", None)]
            .map(|(name, at)| restore(name, at));
    clock.advance(Duration::from_secs(1));
    let client = store.holder("client");
    let leases = [store.lease(used, &client), store.lease_version("resumed", resumed.version, &client)];
    drop((one, two, three, four));
    assert_eq!(store.freed_in(left), Some(Duration::from_secs(299)));
    assert_eq!([used, resumed].map(|id| store.freed_in(id)), [None; 2]);
    drop(leases.map(Result::unwrap));
    assert_eq!([used, resumed, new].map(|id| store.freed_in(id)), [Some(age); 3]);
    clock.advance(Duration::from_secs(299));
    store.free_due();
    assert_eq!([left, used, resumed, new].map(|id| store.has(id)), [false, true, true, true]);
}

#[test]
fn restored_tensor_keeps_its_id_and_versions_continue() {
    let former = LocalStore::builder().seed(7).build();
    let (one, two) = (put(&former, "x", KEPT), put(&former, "x", KEPT));
    let other = put(&former, "y", KEPT);
    let (one, two, other) = (one.id(), two.id(), other.id());

    let store = LocalStore::builder().seed(7).max_memory_bytes(250).build();
    let holder = store.holder("m");
    store.skip_name_ids(other.name_id);
    let old = store.restore(restored(&store, ("x", one), 2, false), &holder).unwrap();
    let new = store.restore(restored(&store, ("x", two), 2, true), &holder).unwrap();
    assert_eq!(store.restore(restored(&store, ("x", two), 2, true), &holder).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(store.get("x", &holder).unwrap().id(), two);
    assert_eq!(store.lease(one, &holder).unwrap().bytes().unwrap()[0], 1);
    assert_eq!(store.lease_version("x", 1, &holder).unwrap().id(), one);
    assert!(store.lease_version("x", 3, &holder).is_err());
    let key = new.key().unwrap();
    store.restore_claim(key, std::slice::from_ref(&new));
    assert!(matches!(store.claim(&key, &holder).unwrap(), Claim::Ready(leases) if leases[0].id() == two));
    drop(old);
    assert!(!store.has(one), "a superseded version goes with its last lease");
    drop(new);
    assert!(store.has(two), "the newest stays");
    // The budget counts what was taken over, and evicts it when it must.
    assert_eq!(store.stats().memory_usage_bytes, 100);
    assert_eq!(put(&store, "x", KEPT).id(), TensorId { version: 3, ..two });
    assert_ne!(put(&store, "z", KEPT).id().name_id, other.name_id);

    let foreign = LocalStore::builder().seed(8).build();
    let refused = (0..20u64).filter(|n| {
        let id = TensorId { name_id: two.name_id + n, version: 1 };
        foreign.restore(restored(&foreign, ("x", id), 1, true), &foreign.holder("m")).is_err()
    });
    assert!(refused.count() >= 19, "a name belongs to one of the shards");
    assert_eq!(foreign.stats().memory_usage_bytes, 0);
}

#[test]
fn restored_group_keeps_its_members_inside_its_layout() {
    let store = LocalStore::builder().seed(7).build();
    let holder = store.holder("m");
    let members = Members::new([("codes", DType::U8, [36]), ("zeros", DType::U8, [36])]).unwrap();
    let restore = |name: &str, bytes: usize| {
        let id = put(&store, name, Retention::WhileLeased).id();
        let spec = TensorSpec { retention: KEPT, ..TensorSpec::group(name, Arc::clone(&members)) };
        let layout = Layout::contiguous(DType::U8, &[bytes]).unwrap();
        store.restore(RestoredTensor { spec, layout, ..restored(&store, (name, id), 1, true) }, &holder).unwrap()
    };
    let whole = restore("whole", 100);
    assert_eq!(whole.members(), Some(&*members));
    assert_eq!(whole.member("zeros").unwrap().bytes().unwrap(), [1; 36]);
    // Another process may describe fewer bytes than its members have.
    let short = restore("short", 99);
    assert_eq!(short.member("codes").unwrap().bytes().unwrap(), [1; 36]);
    assert_eq!(short.member("zeros").unwrap_err().kind(), ErrorKind::Corrupt);
}
