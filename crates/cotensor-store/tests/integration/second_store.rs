//! A second store on the backend API: a client whose tensors another store keeps. That store stands for the daemon: it
//! has the budget and the memory. The client uploads its tensors, leases each tensor once, and hands out its own
//! leases.

use cotensor_core::{ContentHash, DType, Device, Error, ErrorKind, HeapMemory, Kind, Memory, MemoryKind, Result};
use cotensor_core::{Segment, Slice};
use cotensor_sharing::TensorSharingManager;
use cotensor_store::backend::{Budget, LeaseBackend, Record, RecordParts, StoreBackend, UnpublishedTensor};
use cotensor_store::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The daemon's memory, as long as the client's lease lives.
struct Mapped(Lease);

impl Segment for Mapped {
    fn len(&self) -> usize {
        self.0.segment().len()
    }
    fn kind(&self) -> MemoryKind {
        self.0.segment().kind()
    }
    fn device(&self) -> Device {
        self.0.segment().device()
    }
    fn bytes(&self) -> Option<&[u8]> {
        self.0.segment().bytes()
    }
}

struct Client {
    daemon: Arc<LocalStore>,
    session: Holder,
    open: Mutex<HashMap<TensorId, Arc<Record>>>,
    me: Weak<Client>,
}

impl Client {
    fn connect(daemon: &Arc<LocalStore>) -> Arc<Self> {
        Arc::new_cyclic(|me| Client {
            daemon: Arc::clone(daemon),
            session: daemon.holder("session"),
            open: Mutex::default(),
            me: me.clone(),
        })
    }

    /// A lease of the client's own on a tensor that the daemon leased to the session.
    fn open(&self, lease: Lease, holder: &Holder, key: Option<Key>) -> Result<Lease> {
        let mut open = self.open.lock().unwrap();
        if let Some(lease) = open.get(&lease.id()).and_then(|record| record.lease_on_lookup(holder)) {
            return Ok(lease);
        }
        let spec = TensorSpec {
            name: lease.name().to_owned(),
            dtype: lease.dtype(),
            shape: lease.shape().to_vec(),
            device: lease.device(),
            kind: lease.kind(),
            space: lease.space(),
            producer: lease.producer().to_owned(),
            retention: Retention::WhileLeased,
            provenance: Some(lease.identity()),
            keep_for: None,
            metadata: lease.spec().metadata,
            members: lease.spec().members,
        };
        let id = lease.id();
        let parts = RecordParts {
            id,
            spec,
            layout: lease.layout().clone(),
            charge: Budget::new(u64::MAX).take(lease.layout().size_bytes() as u64).unwrap().into(),
            segment: Arc::new(Mapped(lease)),
            retained: false,
            private: None,
            key,
            created: Duration::ZERO,
        };
        let record = Record::new(parts, self.me.clone());
        let first = record.lease(holder).unwrap();
        open.insert(id, record);
        Ok(first)
    }

    fn reserve_as(&self, spec: TensorSpec, holder: &Holder, private: bool) -> Result<Reservation> {
        // Refused or over budget over there is so here.
        let there = if private {
            self.daemon.reserve_private(spec.clone(), &self.session)?
        } else {
            self.daemon.reserve(spec.clone(), &self.session)?
        };
        let layout = spec.layout()?;
        let draft = UnpublishedTensor {
            spec,
            segment: HeapMemory.reserve(layout.size_bytes())?,
            charge: Budget::new(u64::MAX).take(layout.size_bytes() as u64).unwrap().into(),
            layout,
            holder: holder.clone(),
            private,
            expected: Expected::Any,
            tag: Box::new(there),
        };
        Ok(Reservation::new(draft, self.me.upgrade().unwrap()))
    }
}

impl StoreBackend for Client {
    fn publish(&self, draft: UnpublishedTensor, key: Option<Key>) -> Result<Lease> {
        let mut there = *draft.tag.downcast::<Reservation>().unwrap();
        there.write(draft.segment.bytes().unwrap(), CopyReason::Put)?;
        self.open(there.publish_expecting(draft.expected)?, &draft.holder, key)
    }

    fn finish_computation(&self, _: Key, _: &[&Lease]) {}

    fn abandon_computation(&self, _: Key) {}
}

impl LeaseBackend for Client {
    fn release(&self, record: &Arc<Record>) {
        if record.close() {
            let mut open = self.open.lock().unwrap();
            // The tensor may have been opened anew since it was closed.
            if open.get(&record.id()).is_some_and(|known| Arc::ptr_eq(known, record)) {
                open.remove(&record.id());
            }
        }
    }

    fn count_copy(&self, tensor: &str, reason: CopyReason, bytes: usize) {
        self.daemon.record_copy(tensor, reason, bytes);
    }
}

impl TensorStore for Client {
    fn get(&self, name: &str, holder: &Holder) -> Result<Lease> {
        self.open(self.daemon.get(name, &self.session)?, holder, None)
    }
    fn lease(&self, id: TensorId, holder: &Holder) -> Result<Lease> {
        self.open(self.daemon.lease(id, &self.session)?, holder, None)
    }
    fn has(&self, id: TensorId) -> bool {
        self.daemon.has(id)
    }
    fn reserve(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        self.reserve_as(spec, holder, false)
    }
    fn reserve_aliased(&self, _: TensorSpec, _: &Holder) -> Result<Reservation> {
        Err(Error::unsupported("this client's memory is the heap"))
    }
    fn reserve_private(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        self.reserve_as(spec, holder, true)
    }
    fn remove_version(&self, name: &str, id: Option<TensorId>) -> Result<()> {
        self.daemon.remove_version(name, id)
    }
}

impl NameStore for Client {
    fn find_name(&self, name: &str) -> Result<Option<TensorId>> {
        self.daemon.find_name(name)
    }
    fn names(&self, prefix: &str) -> Result<Vec<NamedVersion>> {
        self.daemon.names(prefix)
    }
    fn count_names(&self, prefix: &str) -> Result<usize> {
        self.daemon.count_names(prefix)
    }
    fn changes(
        &self,
        filter: &NameFilter,
        since: Option<ChangePosition>,
        wait: Duration,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<NameChanges> {
        self.daemon.changes(filter, since, wait, keep_waiting)
    }
    fn versions(
        &self,
        every: &EveryVersion,
        since: Option<ChangePosition>,
        wait: Duration,
        keep_waiting: &dyn Fn() -> bool,
    ) -> Result<NameChanges> {
        self.daemon.versions(every, since, wait, keep_waiting)
    }
    fn end_versions(&self, position: ChangePosition) {
        self.daemon.end_versions(position);
    }
}

impl ComputationStore for Client {
    /// This client shares no computations: every claim must compute.
    fn claim_within(&self, key: &Key, _: &Holder, _: Duration) -> Result<Claim> {
        Ok(Claim::Compute(Ticket::new(*key, self.me.clone())))
    }
    fn is_computed(&self, _: &Key) -> bool {
        false
    }
}

impl BlobStore for Client {
    fn blobs(&self, specs: &[BlobSpec], source: &mut dyn BlobSource, holder: &Holder) -> Result<Vec<Lease>> {
        let leases = self.daemon.blobs(specs, source, &self.session)?;
        let each = leases.into_iter().zip(specs);
        each.map(|(lease, spec)| self.open(lease, holder, None)?.view_as(spec)).collect()
    }
    fn get_note(&self, key: &ContentHash) -> Option<Vec<u8>> {
        self.daemon.get_note(key)
    }
    fn put_note(&self, key: &ContentHash, note: &[u8]) {
        self.daemon.put_note(key, note);
    }
}

impl MemoryControl for Client {
    fn limit_memory(&self, _: Device, _: u64) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "the daemon's budget is not a client's to set"))
    }
    fn optimize(&self) -> OptimizeReport {
        self.daemon.optimize()
    }
}

impl StoreReports for Client {
    fn config(&self) -> &SharingConfig {
        self.daemon.config()
    }
    fn record_copy(&self, tensor: &str, reason: CopyReason, bytes: usize) {
        self.daemon.record_copy(tensor, reason, bytes);
    }
    fn stats(&self) -> Stats {
        self.daemon.stats()
    }
    fn recommendations(&self) -> Recommendations {
        self.daemon.recommendations()
    }
    fn diagnostics(&self) -> Diagnostics {
        self.daemon.diagnostics()
    }
}

fn spec(name: &str, bytes: usize) -> TensorSpec {
    TensorSpec {
        device: Device::Cpu,
        name: name.to_owned(),
        dtype: DType::U8,
        shape: vec![bytes],
        kind: Kind::TextEmbedding,
        space: None,
        producer: "bert".to_owned(),
        retention: Retention::Cached { recompute: Duration::from_millis(1) },
        provenance: None,
        keep_for: None,
        metadata: None,
        members: None,
    }
}

#[test]
fn tensors_pass_between_clients_and_are_freed_with_their_leases() {
    let daemon = LocalStore::builder().max_memory_bytes(100).build();
    let (one, other) = (Client::connect(&daemon), Client::connect(&daemon));
    let (bert, t5) = (one.holder("bert"), other.holder("t5"));
    let mut reservation = one.reserve(spec("x", 60), &bert).unwrap();
    assert_eq!(other.reserve(spec("y", 41), &t5).unwrap_err().kind(), ErrorKind::OverBudget);
    reservation.bytes_mut().unwrap().fill(7);
    let first = reservation.publish().unwrap();
    assert_eq!((&*first.holder(), first.bytes().unwrap()), ("bert", &[7; 60][..]));

    let found = other.get("x", &t5).unwrap();
    assert_eq!(found.bytes().unwrap().as_ptr(), first.bytes().unwrap().as_ptr(), "the same memory");
    assert_eq!((found.id(), found.identity()), (first.id(), first.identity()));
    let view = found.view(&[Slice { start: 1, len: 2, step: 1 }]).unwrap();
    let again = other.lease(first.id(), &t5).unwrap();
    drop((first, found, again));
    assert_eq!(daemon.optimize().freed_tensors_count, 0, "a view in one client holds it");
    drop(view);
    assert_eq!(daemon.optimize().freed_tensors, ["x"]);
    assert!(one.open.lock().unwrap().is_empty() && other.open.lock().unwrap().is_empty());
    assert_eq!(other.get("x", &t5).unwrap_err().kind(), ErrorKind::NotFound);

    drop(one.reserve(spec("never published", 100), &bert).unwrap());
    assert_eq!(daemon.stats().memory_usage_bytes, 0);
}

#[test]
fn sharing_manager_runs_on_a_second_store() {
    struct Fill;
    impl BlobSource for Fill {
        fn fill(&mut self, index: usize, target: &mut [u8]) -> Result<()> {
            if index > 0 {
                return Err(Error::corrupt("one content was asked for twice"));
            }
            target.fill(3);
            Ok(())
        }
    }
    let daemon = LocalStore::builder().build();
    let client = Client::connect(&daemon);
    let content = |dtype, shape: &[usize]| BlobSpec {
        device: Device::Cpu,
        hash: ContentHash::of(&[3; 8]),
        dtype,
        shape: shape.to_vec(),
        producer: "bert".to_owned(),
        label: String::new(),
        metadata: None,
    };
    let specs = [content(DType::U8, &[8]), content(DType::F32, &[1, 2])];
    let leases = client.blobs(&specs, &mut Fill, &client.holder("bert")).unwrap();
    assert_eq!((leases[1].shape(), leases[1].dtype()), (&[1, 2][..], DType::F32));
    assert_eq!(leases[1].identity(), specs[1].identity());

    let Claim::Compute(ticket) = client.claim(&Key(ContentHash::of(b"k")), &client.holder("bert")).unwrap() else {
        panic!("this client always computes")
    };
    let results = vec![client.reserve(spec("result", 4), &client.holder("bert")).unwrap()];
    assert_eq!(ticket.publish(results).unwrap()[0].name(), "result");

    // The manager and its tensors know no other store than the trait.
    let manager = TensorSharingManager::with_store(client);
    let tensor = manager.register_shared_tensor("shared", &[4], "cpu", "bert", &["t5"], DType::U8).unwrap();
    tensor.write(|bytes| bytes.fill(9)).unwrap();
    let same = manager.get_shared_tensor("shared", "t5").unwrap();
    assert_eq!(same.read(<[u8]>::to_vec).unwrap(), [9; 4]);
}
