//! Runs random steps on the store and on a simple model of it, and compares both after each step.

use cotensor_core::{ContentHash, DType, Device, ErrorKind, Kind, Slice};
use cotensor_store::{
    Claim, ComputationStore, Holder, Key, Lease, LocalStore, ManualClock, MemoryControl, Retention, StoreReports,
    TensorSpec, TensorStore, TensorView,
};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

const BUDGET: u64 = 1000;
const HOLDERS: [&str; 2] = ["bert", "clip"];

#[derive(Clone, Debug)]
enum Step {
    Put {
        name: u8,
        bytes: u16,
        cost: Option<u32>,
        holder: usize,
        hold: bool,
    },
    Get {
        name: u8,
        holder: usize,
    },
    /// Drops one of the leases and views.
    Release(usize),
    /// Makes a view of one of the leases.
    View(usize),
    Remove(u8),
    Claim {
        key: u8,
        bytes: Vec<u16>,
        cost: u32,
        holder: usize,
    },
    Optimize,
    Advance(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = 0..500u16;
    let holder = 0..HOLDERS.len();
    prop_oneof![
        4 => (0..5u8, bytes.clone(), prop::option::of(0..4u32), holder.clone(), any::<bool>())
            .prop_map(|(name, bytes, cost, holder, hold)| Step::Put { name, bytes, cost, holder, hold }),
        4 => (0..6u8, holder.clone()).prop_map(|(name, holder)| Step::Get { name, holder }),
        5 => any::<usize>().prop_map(Step::Release),
        2 => any::<usize>().prop_map(Step::View),
        1 => (0..6u8).prop_map(Step::Remove),
        3 => (0..3u8, prop::collection::vec(bytes, 1..3), 0..4u32, holder)
            .prop_map(|(key, bytes, cost, holder)| Step::Claim { key, bytes, cost, holder }),
        1 => Just(Step::Optimize),
        2 => (1..1000u32).prop_map(Step::Advance),
    ]
}

/// A tensor of the model. The model's list never shrinks, so an index always means the same tensor.
struct Tensor {
    name: String,
    name_id: u64,
    version: u64,
    bytes: u64,
    alive: bool,
    current: bool,
    kept: bool,
    cost: u32,
    created: u64,
    used: u64,
    leases: [u32; HOLDERS.len()],
}

impl Tensor {
    fn unleased(&self) -> bool {
        self.leases.iter().sum::<u32>() == 0
    }
}

#[derive(Default)]
struct Model {
    tensors: Vec<Tensor>,
    /// Slots given to names so far.
    name_ids: u64,
    /// The id and the last version of each name.
    versions: HashMap<String, (u64, u64)>,
    claims: HashMap<u8, Vec<usize>>,
    now: u64,
}

impl Model {
    fn used(&self) -> u64 {
        self.tensors.iter().filter(|tensor| tensor.alive).map(|tensor| tensor.bytes).sum()
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.tensors.iter().position(|tensor| tensor.alive && tensor.current && tensor.name == name)
    }

    fn is_ready(&self, key: u8) -> bool {
        self.claims.get(&key).is_some_and(|results| results.iter().all(|&index| self.tensors[index].alive))
    }

    /// Makes room for `bytes` beside `reserved` bytes.
    fn make_room(&mut self, reserved: u64, bytes: u64) -> bool {
        let mut free: Vec<usize> =
            (0..self.tensors.len()).filter(|&i| self.tensors[i].alive && self.tensors[i].unleased()).collect();
        let freeable: u64 = free.iter().map(|&i| self.tensors[i].bytes).sum();
        if self.used() + reserved - freeable + bytes > BUDGET {
            return false;
        }
        let cost = |i: &usize| {
            let tensor = &self.tensors[*i];
            f64::from(tensor.cost) / tensor.bytes.max(1) as f64
        };
        let order = |i: &usize| {
            let tensor = &self.tensors[*i];
            (tensor.used, tensor.created, tensor.name_id, tensor.version)
        };
        free.sort_by(|a, b| cost(a).total_cmp(&cost(b)).then(order(a).cmp(&order(b))));
        for i in free {
            if self.used() + reserved + bytes <= BUDGET {
                break;
            }
            self.tensors[i].alive = false;
        }
        true
    }

    fn let_go(&mut self, index: usize) {
        let tensor = &mut self.tensors[index];
        (tensor.current, tensor.kept) = (false, false);
        tensor.alive = !tensor.unleased();
    }

    fn publish(&mut self, name: &str, bytes: u64, cost: Option<u32>, holder: usize) -> usize {
        if !self.tensors.iter().any(|tensor| tensor.alive && tensor.name == name) {
            // A name without tensors is removed; publishing it again gives it another id.
            self.versions.remove(name);
        }
        let next_name_id = self.name_ids + 1;
        let (name_id, version) = self.versions.entry(name.to_owned()).or_insert((next_name_id, 0));
        *version += 1;
        let (name_id, version) = (*name_id, *version);
        self.name_ids = self.name_ids.max(name_id);
        if let Some(old) = self.find(name) {
            self.let_go(old);
        }
        let mut leases = [0; HOLDERS.len()];
        leases[holder] = 1;
        self.tensors.push(Tensor {
            name: name.to_owned(),
            name_id,
            version,
            bytes,
            alive: true,
            current: true,
            kept: cost.is_some(),
            cost: cost.unwrap_or(0),
            created: self.now,
            used: self.now,
            leases,
        });
        self.tensors.len() - 1
    }

    fn release(&mut self, index: usize, holder: usize) {
        let tensor = &mut self.tensors[index];
        tensor.leases[holder] -= 1;
        tensor.alive = tensor.kept || !tensor.unleased();
    }
}

enum Held {
    Lease(Lease),
    View(TensorView),
}

struct Both {
    model: Model,
    store: Arc<LocalStore>,
    clock: Arc<ManualClock>,
    holders: Vec<Holder>,
    /// Each lease or view, with the index of its tensor in the model and of its holder.
    held: Vec<(Held, usize, usize)>,
}

fn spec(name: &str, bytes: u64, cost: Option<u32>) -> TensorSpec {
    TensorSpec {
        device: Device::Cpu,
        name: name.to_owned(),
        dtype: DType::U8,
        shape: vec![bytes as usize],
        kind: Kind::Other,
        space: None,
        producer: "test".to_owned(),
        retention: cost.map_or(Retention::WhileLeased, |cost| Retention::Cached {
            recompute: Duration::from_secs(u64::from(cost)),
        }),
        provenance: None,
        keep_for: None,
        metadata: None,
        members: None,
    }
}

impl Both {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        let store = LocalStore::builder().max_memory_bytes(BUDGET).clock(Arc::clone(&clock) as _).build();
        let holders = HOLDERS.map(|name| store.holder(name)).to_vec();
        Self { model: Model::default(), store, clock, holders, held: Vec::new() }
    }

    /// Advances both clocks, so that no two tensors have the same age.
    fn tick(&mut self, by: u64) {
        self.clock.advance(Duration::from_nanos(by));
        self.model.now += by;
    }

    fn hold(&mut self, lease: Lease, index: usize, holder: usize) {
        let tensor = &self.model.tensors[index];
        assert_eq!((lease.name(), lease.id().version), (&*tensor.name, tensor.version));
        self.held.push((Held::Lease(lease), index, holder));
    }

    fn release(&mut self, at: usize) {
        let (held, index, holder) = self.held.swap_remove(at);
        // The bytes are unchanged until the lease is dropped.
        let content = match &held {
            Held::Lease(lease) => lease.bytes().unwrap(),
            Held::View(view) => view.bytes().unwrap(),
        };
        assert!(content.iter().all(|&byte| byte == index as u8), "another tensor's bytes");
        drop(held);
        self.model.release(index, holder);
    }

    fn put(&mut self, name: &str, bytes: u64, cost: Option<u32>, holder: usize, hold: bool) {
        self.tick(1);
        let fits = self.model.make_room(0, bytes);
        match self.store.reserve(spec(name, bytes, cost), &self.holders[holder]) {
            Err(error) => assert_eq!((error.kind(), fits), (ErrorKind::OverBudget, false)),
            Ok(mut reservation) => {
                assert!(fits, "reserved past the budget");
                let index = self.model.publish(name, bytes, cost, holder);
                reservation.bytes_mut().unwrap().fill(index as u8);
                let lease = reservation.publish().unwrap();
                self.hold(lease, index, holder);
                if !hold {
                    self.release(self.held.len() - 1);
                }
            }
        }
    }

    fn claim(&mut self, key: u8, bytes: &[u16], cost: u32, holder: usize) {
        self.tick(1);
        let hash = Key(ContentHash::of(&[key]));
        assert_eq!(self.store.is_computed(&hash), self.model.is_ready(key));
        let mut ticket = match self.store.claim(&hash, &self.holders[holder]).unwrap() {
            Claim::Ready(leases) => {
                assert!(self.model.is_ready(key));
                for (lease, index) in leases.into_iter().zip(self.model.claims[&key].clone()) {
                    self.model.tensors[index].used = self.model.now;
                    self.model.tensors[index].leases[holder] += 1;
                    self.hold(lease, index, holder);
                }
                return;
            }
            Claim::Compute(ticket) => Some(ticket),
        };
        assert!(!self.model.is_ready(key));
        self.model.claims.remove(&key);
        let mut reserved = Vec::new();
        let mut reserved_bytes = 0;
        for (output, &bytes) in bytes.iter().enumerate() {
            let bytes = u64::from(bytes);
            let fits = self.model.make_room(reserved_bytes, bytes);
            let name = format!("result {key} {output}");
            match self.store.reserve(spec(&name, bytes, Some(cost)), &self.holders[holder]) {
                Ok(reservation) => {
                    assert!(fits);
                    reserved_bytes += bytes;
                    reserved.push((name, bytes, reservation));
                }
                Err(error) => {
                    assert_eq!((error.kind(), fits), (ErrorKind::OverBudget, false));
                    // Abandons the claim and drops the reservations.
                    ticket = None;
                    break;
                }
            }
        }
        let Some(ticket) = ticket else { return };
        let mut indices = Vec::new();
        let mut results = Vec::new();
        for (name, bytes, mut reservation) in reserved {
            let index = self.model.publish(&name, bytes, Some(cost), holder);
            reservation.bytes_mut().unwrap().fill(index as u8);
            indices.push(index);
            results.push(reservation);
        }
        for (lease, &index) in ticket.publish(results).unwrap().into_iter().zip(&indices) {
            self.hold(lease, index, holder);
        }
        self.model.claims.insert(key, indices);
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Put { name, bytes, cost, holder, hold } => {
                self.put(&format!("tensor {name}"), u64::from(bytes), cost, holder, hold);
            }
            Step::Get { name, holder } => {
                let name = format!("tensor {name}");
                match (self.store.get(&name, &self.holders[holder]), self.model.find(&name)) {
                    (Ok(lease), Some(index)) => {
                        let again = self.store.lease(lease.id(), &self.holders[holder]).unwrap();
                        assert_eq!(again.bytes().unwrap().as_ptr(), lease.bytes().unwrap().as_ptr());
                        self.model.tensors[index].leases[holder] += 1;
                        self.model.tensors[index].used = self.model.now;
                        self.hold(lease, index, holder);
                    }
                    (Err(error), None) => assert_eq!(error.kind(), ErrorKind::NotFound),
                    (got, expected) => panic!("{name}: got {got:?}, expected {expected:?}"),
                }
            }
            Step::Release(at) if !self.held.is_empty() => self.release(at % self.held.len()),
            Step::View(at) if !self.held.is_empty() => {
                let (held, index, holder) = &self.held[at % self.held.len()];
                let len = |shape: &[usize]| Slice { start: 0, len: shape[0].div_ceil(2), step: 1 };
                // A view of a lease has a lease of its own; a view of a view shares that of its parent.
                if let Held::Lease(lease) = held {
                    let view = lease.view(&[len(lease.shape())]).unwrap();
                    let inner = view.view(&[len(view.shape())]).unwrap();
                    assert_eq!(inner.bytes().unwrap().as_ptr(), lease.bytes().unwrap().as_ptr());
                    let (index, holder) = (*index, *holder);
                    self.model.tensors[index].leases[holder] += 1;
                    self.held.push((Held::View(inner), index, holder));
                }
            }
            Step::Remove(name) => {
                let name = format!("tensor {name}");
                let found = self.model.find(&name);
                assert_eq!(self.store.remove(&name).is_ok(), found.is_some());
                found.into_iter().for_each(|index| self.model.let_go(index));
            }
            Step::Claim { key, bytes, cost, holder } => self.claim(key, &bytes, cost, holder),
            Step::Optimize => {
                let report = self.store.optimize();
                assert_eq!(report.initial_memory_bytes, self.model.used());
                let unleased = self.model.tensors.iter_mut().filter(|tensor| tensor.alive && tensor.unleased());
                let freed: u64 = unleased
                    .map(|tensor| {
                        tensor.alive = false;
                        tensor.bytes
                    })
                    .sum();
                assert_eq!(report.freed_memory_bytes, freed);
            }
            Step::Advance(by) => self.tick(u64::from(by)),
            Step::Release(_) | Step::View(_) => {}
        }
        self.compare();
    }

    fn compare(&self) {
        let mut expected: Vec<_> = self
            .model
            .tensors
            .iter()
            .filter(|tensor| tensor.alive)
            .map(|tensor| {
                let holders: Vec<_> = HOLDERS
                    .iter()
                    .zip(tensor.leases)
                    .filter(|(_, count)| *count > 0)
                    .map(|(n, c)| (n.to_string(), c))
                    .collect();
                (tensor.name.clone(), tensor.version, tensor.bytes, tensor.kept, holders)
            })
            .collect();
        expected.sort();
        let tensors = self.store.diagnostics().tensors;
        let mut found: Vec<_> = tensors
            .into_iter()
            .map(|info| {
                (info.name, info.version, info.bytes, info.cached, info.holders.into_iter().collect::<Vec<_>>())
            })
            .collect();
        found.sort();
        assert_eq!(found, expected);
        assert_eq!(self.store.stats().memory_usage_bytes, self.model.used());
        assert!(self.model.used() <= BUDGET);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn store_agrees_with_the_model(steps in prop::collection::vec(step(), 1..120)) {
        let mut both = Both::new();
        steps.into_iter().for_each(|step| both.apply(step));
        while !both.held.is_empty() {
            both.release(0);
            both.compare();
        }
        both.store.optimize();
        prop_assert_eq!(both.store.stats().memory_usage_bytes, 0);
    }
}
