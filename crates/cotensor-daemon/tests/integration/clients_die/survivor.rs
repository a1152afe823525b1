//! The client that survives, and the counters that must return to their former values.

use super::{Half, key, specs, waited_for};
use crate::support::processes::{Processes, content, put};
use crate::support::{none, until};
use cotensor_client::ClientStore;
use cotensor_client::protocol as p;
use cotensor_core::DType;
use cotensor_daemon::testing::WAIT_TIMEOUT;
use cotensor_functions::{Arguments, Context, Failure, Functions, Limits, Managed, Object, Options, Provider, Value};
use cotensor_store::{
    BlobStore, Claim, ComputationStore, Lease, ManualClock, Retention, StoreReports, TensorStore, Ticket,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// A remote object; the counter has the number of objects that are alive.
struct Tracked(Arc<AtomicI64>);

impl Managed for Tracked {
    fn call(&self, method: &str, _: &Arguments, _: &Context) -> Result<Value, Failure> {
        Err(Failure::no_method(method))
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How long the provider keeps results of tasks, on the test's clock.
const TASK_TTL: Duration = Duration::from_secs(10);

pub(super) struct Survivor {
    store: Arc<ClientStore>,
    functions: Arc<Functions>,
    provider: Provider,
    clock: Arc<ManualClock>,
    shared: Lease,
    hanging: Arc<AtomicI64>,
    objects: Arc<AtomicI64>,
    _computing: Ticket,
}

impl Survivor {
    pub(super) fn new(processes: &Processes) -> Self {
        let store = processes.connect("survivor");
        let shared = put(&store, "shared", &content(9, 4096), Retention::WhileLeased);
        let Claim::Compute(computing) = store.claim(&waited_for(), &store.holder("")).unwrap() else {
            panic!("the key has no result")
        };
        let (hanging, objects, clock) =
            (Arc::<AtomicI64>::default(), Arc::<AtomicI64>::default(), Arc::<ManualClock>::default());
        let (hangs, hanging_now, made) = (Arc::clone(&hanging), Arc::clone(&hanging), Arc::clone(&objects));
        let provider = Provider::builder(processes.connect("provider"))
            .limits(Limits { task_ttl: TASK_TTL, ..Limits::default() })
            .clock(clock.clone())
            .function("tensor", Options::default(), |_, context| {
                Ok(context.tensor("made", DType::U8, &[1 << 20], &vec![5; 1 << 20])?.into())
            })
            .function("object", Options::default(), move |_, _| {
                made.fetch_add(1, Ordering::SeqCst);
                Ok(Object::new(Tracked(Arc::clone(&made))).into())
            })
            .function("hanging", Options::default(), move |_, _| Ok(Value::Int(hanging_now.load(Ordering::SeqCst))))
            .function("hang", Options::default(), move |_, context| {
                hangs.fetch_add(1, Ordering::SeqCst);
                while !context.is_cancelled() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                hangs.fetch_sub(1, Ordering::SeqCst);
                Ok(Value::Null)
            })
            .start()
            .unwrap();
        let functions = Arc::new(Functions::new(processes.connect("caller")));
        Self { store, functions, provider, clock, shared, hanging, objects, _computing: computing }
    }

    /// Uses the functions of the killed client when it prints `line`. These calls end with errors.
    pub(super) fn on_line(&self, line: &str) {
        let functions = Arc::clone(&self.functions);
        match line {
            "call" => drop(std::thread::spawn(move || functions.call("victim", &none()).unwrap_err())),
            "submit" => drop(functions.submit("victim", &none()).unwrap()),
            "keep" => {
                let Value::Remote(thing) = functions.call("thing", &none()).unwrap() else { panic!("a reference") };
                drop(std::thread::spawn(move || thing.call("stop", &none()).unwrap_err()));
            }
            _ => {}
        }
    }

    /// The survivor can compute the dead client's key, upload its blobs and use its own tensors.
    pub(super) fn works(&self, step: &str) {
        let (store, holder) = (&self.store, self.store.holder(""));
        // The daemon handles the end of a connection asynchronously.
        until(&format!("{step}: the results of the dead client are freed"), || {
            match store.claim(&key(), &holder).unwrap() {
                Claim::Compute(ticket) => {
                    ticket.abandon();
                    true
                }
                Claim::Ready(_) => false,
            }
        });
        let contents = store.blobs(&specs(), &mut Half(3), &holder).unwrap();
        assert!(contents.iter().all(|lease| lease.bytes().unwrap().iter().all(|&byte| byte == 1)), "{step}");
        let names: Vec<String> = contents.iter().map(|lease| lease.name().to_owned()).collect();
        drop(contents);
        names.iter().for_each(|name| store.remove(name).unwrap());
        let more: Vec<Lease> =
            (0..40).map(|n| put(store, &format!("more {n}"), &content(n, 3000), Retention::WhileLeased)).collect();
        assert_eq!(self.shared.bytes().unwrap(), content(9, 4096), "{step}");
        assert!(self.functions.call("tensor", &none()).unwrap().as_tensor().is_ok(), "{step}");
        drop(more);
        // Tasks outlive their callers. Every client can cancel them.
        for (provider, task) in self.functions.tasks(Some(p::provider::TaskState::Running)).unwrap() {
            self.functions.task(provider.epoch, task.task).unwrap().cancel().unwrap();
        }
    }
}

/// Counters of everything that could leak.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Counters {
    /// For each session: the client's name without the process, its leases and their bytes.
    sessions: Vec<(String, usize, u64)>,
    tensors: usize,
    bytes: u64,
    functions: usize,
    objects: i64,
    hanging: i64,
    callers: usize,
    server_descriptors: usize,
    supervisor_descriptors: usize,
    /// Mapped segments. The daemon maps only its index.
    server_segments: usize,
}

impl Counters {
    fn of(processes: &Processes, survivor: &Survivor) -> Self {
        let store = &survivor.store;
        let sessions = store.request::<p::Sessions>(&p::Empty {}).unwrap().sessions;
        let list = store
            .request::<p::List>(&p::ListParams { prefix: String::new(), limit: 0, order: p::ListOrder::Name })
            .unwrap();
        let name = |client: String| client.split('[').next().unwrap_or_default().to_owned();
        let mut sessions: Vec<_> =
            sessions.into_iter().map(|session| (name(session.client), session.leases, session.bytes)).collect();
        sessions.sort_unstable();
        let descriptors = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", processes.server())).unwrap();
        Self {
            sessions,
            tensors: list.left_off,
            bytes: store.stats().memory_usage_bytes,
            functions: survivor.functions.list("").unwrap().len(),
            objects: survivor.objects.load(Ordering::SeqCst),
            hanging: survivor.hanging.load(Ordering::SeqCst),
            callers: survivor.provider.callers(),
            server_descriptors: descriptors(processes.server()),
            supervisor_descriptors: descriptors(processes.supervisor()),
            server_segments: maps.lines().filter(|line| line.contains("/memfd:")).count(),
        }
    }

    /// The counters after the survivor's last calls have taken effect.
    pub(super) fn settled(processes: &Processes, survivor: &Survivor) -> Self {
        let mut counters = Self::of(processes, survivor);
        until("only the survivor's tensor is left", || {
            counters = Self::of(processes, survivor);
            counters.tensors == 1 && counters.sessions.iter().map(|(_, leases, _)| leases).sum::<usize>() == 1
        });
        counters
    }

    /// Whether the counters are those of `before`. Descriptors may be fewer: some may have been open still when
    /// `before` was counted.
    fn equals(&self, before: &Self) -> bool {
        let (server_descriptors, supervisor_descriptors) = (before.server_descriptors, before.supervisor_descriptors);
        self.server_descriptors <= server_descriptors
            && self.supervisor_descriptors <= supervisor_descriptors
            && Self { server_descriptors, supervisor_descriptors, ..self.clone() } == *before
    }

    /// Waits until the counters are these again.
    pub(super) fn wait_for_return(&self, processes: &Processes, survivor: &Survivor, step: &str) {
        let start = Instant::now();
        loop {
            // Each time: a task of the dead client may end only now, and its result is kept from then on.
            survivor.clock.advance(TASK_TTL + Duration::from_secs(1));
            let now = Self::of(processes, survivor);
            if now.equals(self) {
                return;
            }
            assert!(start.elapsed() < WAIT_TIMEOUT, "{step}: {now:#?}, before: {self:#?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
