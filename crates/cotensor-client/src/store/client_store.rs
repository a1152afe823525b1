//! The store whose tensors the daemon keeps.

use super::blobs;
use super::copies::UnreportedCopies;
use super::publication::{self, Allocation, FrozenTensor, Publisher};
use super::reconnect::Reconnector;
use super::session::{CLAIMS, Session};
use crate::protocol::{self as p, Method};
use cotensor_core::sync::lock;
use cotensor_core::waiting::WaitReport;
use cotensor_core::{ContentHash, Device, Error, ErrorKind, Layout, Result, Segment, SegmentMut};
use cotensor_rpc::Deadline;
use cotensor_store::backend::{
    Budget, LeaseBackend, Record, RecordParts, StoreBackend, TensorCharge, UnpublishedTensor,
};
use cotensor_store::{
    BlobSource, BlobSpec, BlobStore, Claim, ComputationStore, CopyReason, Diagnostics, Expected, Holder, Key, Lease,
    MemoryControl, OptimizeReport, Recommendations, Reservation, SharingConfig, Stats, StoreReports, TensorId,
    TensorSpec, TensorStore, Ticket,
};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// A client of the daemon. Made by [`ClientStore::connect`]; shared behind `Arc`.
///
/// It lives as long as a reference to it or one of its leases. Then, or when the process ends, the daemon releases its
/// leases.
pub struct ClientStore {
    pub(super) daemon: Reconnector,
    pub(super) socket: PathBuf,
    pub(super) client: String,
    pub(super) config: SharingConfig,
    pub(super) small_bytes_max: usize,
    /// The length of the longest block; 0 for a daemon without blocks.
    pub(super) block_bytes_max: usize,
    pub(super) copies: UnreportedCopies,
    /// The budget of private tensors. The daemon's budget does not count them.
    pub(super) private: Arc<Budget>,
    pub(super) me: Weak<ClientStore>,
    /// The session whose daemon knows this installation's library of the fast engine.
    pub(super) offered: Mutex<Weak<Session>>,
}

/// The file and the offset of a segment's memory. `None` on a device, where the descriptors of two segments may name
/// one file: that of the driver.
fn memory_of(segment: &dyn Segment) -> Option<(u64, u64, usize)> {
    if !segment.device().is_host() {
        return None;
    }
    let file = rustix::fs::fstat(segment.fd()?).ok()?;
    Some((file.st_dev, file.st_ino, segment.fd_offset()))
}

impl Drop for ClientStore {
    fn drop(&mut self) {
        self.disconnect();
    }
}

impl ClientStore {
    /// Closes the connection. The daemon releases what this client has, and its leases after the last of them is dropped: until then,
    /// mapped tensors keep their bytes.
    pub fn disconnect(&self) {
        self.copies.report(&self.session());
        self.daemon.leases.close();
        self.daemon.slabs.retire();
    }

    /// The daemon's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// This process's name, as given to [`ClientStore::connect`].
    pub fn client(&self) -> &str {
        &self.client
    }

    /// The epoch of the connected daemon. It differs between daemons, also between those at the same socket.
    /// [`TensorId`]s of one epoch are invalid in another.
    pub fn epoch(&self) -> u64 {
        self.session().epoch
    }

    /// Whether a lease belongs to this store. Another store may use the same ids.
    pub fn holds(&self, lease: &Lease) -> bool {
        let own = self.daemon.leases.find(lease.id(), &self.holder(&lease.holder()));
        own.is_some_and(|own| own.is_of_record(lease))
    }

    /// Leases a tensor over this connection that this process leases over another connection to the same daemon,
    /// without a copy. `None` if the two do not share memory, for private tensors, which no daemon has, and for
    /// tensors on a device.
    pub fn join(&self, lease: &Lease, holder: &Holder) -> Option<Lease> {
        let there = memory_of(lease.segment()).filter(|_| !lease.is_private())?;
        let own = self.lease(lease.id(), holder).ok()?;
        (memory_of(own.segment()) == Some(there) && own.layout() == lease.layout()).then_some(own)
    }

    /// Calls a method of the daemon once: with the next daemon if this client's has ended before, and not again if it ends
    /// meanwhile.
    ///
    /// # Errors
    /// The daemon's; `Io` when it ends meanwhile.
    pub fn request<M: Method>(&self, params: &M::Params) -> Result<M::Result> {
        let session = self.session();
        if let Some((result, _)) = session.call_if_open::<M>(params)? {
            return Ok(result);
        }
        if !self.daemon.connection.is_closed() {
            self.daemon.reconnect_or_start(&session)?;
        }
        Ok(self.session().call::<M>(params, Vec::new())?.0)
    }

    /// A report of a wait for the result of `key`, with the process that computes it.
    pub fn describe_claim(&self, key: &Key) -> WaitReport {
        self.session().describe_claim(&key.0)
    }

    /// The process of a client of this daemon, by its name for display, as `name[12]`. Empty for a client without a process, and if this
    /// process and the daemon are in different containers.
    pub fn processes_of(&self, client: &str) -> Vec<u32> {
        self.session().processes_of(client)
    }

    /// Starts the daemon's model process, unless it runs.
    ///
    /// # Errors
    /// `Unsupported` for a daemon without one; `Unreachable` when the process ends at its start; those of [`request`](Self::request).
    pub fn start_models(&self) -> Result<p::ModelEndpoint> {
        Ok(self.daemon.call::<p::StartModels>(&p::Empty {})?.0)
    }

    /// Names this installation's library of the fast engine to the daemon, once for each session: the model process uses the best one that
    /// any client has. Call this before functions of models. Does nothing without a connection, and for a daemon that takes no libraries.
    pub fn offer_library(&self, library: &Path) {
        let session = self.session();
        let mut offered = lock(&self.offered);
        if std::ptr::eq(offered.as_ptr(), Arc::as_ptr(&session)) {
            return;
        }
        let params = p::LibraryParams { library: library.to_path_buf() };
        // An answer, also an error, is final; the next call of a function finds out that a connection has ended.
        match session.call_if_open::<p::OfferLibrary>(&params) {
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => *offered = Arc::downgrade(&session),
        }
    }

    /// Calls an idempotent method whose answer has no lease. A late answer is dropped.
    ///
    /// # Errors
    /// The daemon's; `Io` when no daemon answers; `TimedOut` after the deadline.
    pub fn call_by<M: Method>(&self, params: &M::Params, deadline: &Deadline) -> Result<(M::Result, Vec<OwnedFd>)> {
        self.daemon.call_by::<M>(params, deadline)
    }

    pub(crate) fn reconnector(&self) -> &Reconnector {
        &self.daemon
    }

    fn publisher(&self) -> Publisher<'_> {
        Publisher { daemon: &self.daemon, copies: &self.copies, backend: self.me.clone() }
    }

    /// Lets the next block of a series be made, after a publication: the thread shares the processors with that. Without a tensor, the block is
    /// given back.
    fn start_next_block(&self) {
        let me = self.me.clone();
        self.daemon.slabs.next_block.start(move |len| {
            if let Some(store) = me.upgrade() {
                Allocation::make_next_block(&store.daemon, len);
                store.give_back_later();
            }
        });
    }

    pub(super) fn session(&self) -> Arc<Session> {
        self.daemon.connection.session()
    }

    /// Sends a notification, as far as a daemon is connected.
    pub(crate) fn notify<M: Method>(&self, params: &M::Params) {
        self.session().notify::<M>(params);
    }

    /// Whether this process and the daemon see processes by the same numbers.
    pub(crate) fn shares_pids(&self) -> bool {
        self.session().open.shares_pids()
    }

    /// Maps a tensor that the daemon has leased to `holder`.
    pub(super) fn open(
        &self,
        session: &Session,
        descriptor: p::Descriptor,
        fds: &mut std::vec::IntoIter<OwnedFd>,
        holder: &Holder,
    ) -> Result<Lease> {
        self.daemon.leases.open(session, descriptor, fds, holder, self.me.clone())
    }

    /// Reserves a private tensor in memory of the caller.
    ///
    /// # Errors
    /// `Io` when the store is closing.
    pub fn reserve_in_private(
        &self,
        spec: TensorSpec,
        layout: Layout,
        segment: Box<dyn SegmentMut>,
        holder: &Holder,
    ) -> Result<Reservation> {
        let charge = self.charge_private(&layout);
        let (holder, tag) = (holder.clone(), Box::new(()));
        let expected = Expected::Any;
        let tensor = UnpublishedTensor { spec, layout, segment, charge, holder, private: true, expected, tag };
        Ok(Reservation::new(tensor, self.backend()?))
    }

    /// Makes existing memory a private tensor.
    ///
    /// # Errors
    /// `Io` when the store is closing.
    pub fn keep_private(
        &self,
        spec: TensorSpec,
        layout: Layout,
        segment: Arc<dyn Segment>,
        holder: &Holder,
    ) -> Result<Lease> {
        let charge = self.charge_private(&layout);
        self.lease_private(spec, layout, segment, charge, holder)
    }

    /// Publishes a copy of a private tensor.
    ///
    /// # Errors
    /// `Invalid` for a tensor of another store; as [`TensorStore::reserve_to_fill`].
    pub fn publish_private(&self, lease: &Lease, holder: &Holder) -> Result<Lease> {
        if !lease.is_private() || !lease.layout().is_contiguous() {
            let message = format!("tensor {:?} is not in the daemon's store: publish it there first", lease.name());
            return Err(Error::invalid(message));
        }
        let spec = TensorSpec::new(lease.name(), lease.dtype(), lease.shape()).on(lease.device());
        let (own, published) = (lease.spec(), spec);
        let spec = TensorSpec { members: own.members, metadata: own.metadata, ..published };
        let mut reservation = match spec.members {
            None => self.reserve_to_fill(spec, holder)?,
            Some(_) => self.reserve(spec, holder)?,
        };
        match lease.bytes() {
            Some(bytes) => reservation.write(bytes, CopyReason::Put)?,
            None => reservation.write(&lease.copy_to_host()?, CopyReason::DeviceTransfer)?,
        }
        reservation.publish()
    }

    fn charge_private(&self, layout: &Layout) -> TensorCharge {
        self.private.take_unchecked(layout.size_bytes() as u64).into()
    }

    fn lease_private(
        &self,
        spec: TensorSpec,
        layout: Layout,
        segment: Arc<dyn Segment>,
        charge: TensorCharge,
        holder: &Holder,
    ) -> Result<Lease> {
        let id = TensorId { name_id: u64::MAX, version: self.daemon.leases.next_private() };
        let (created, private) = (Duration::ZERO, Some(holder.clone()));
        let parts = RecordParts { id, spec, layout, segment, charge, retained: false, private, key: None, created };
        let record = Record::new(parts, self.me.clone());
        record.lease(holder).ok_or_else(|| Error::new(ErrorKind::Conflict, "a new tensor is closed"))
    }

    pub(super) fn backend(&self) -> Result<Arc<dyn StoreBackend>> {
        let me = self.me.upgrade().ok_or_else(|| Error::new(ErrorKind::Conflict, "the store is closed"))?;
        Ok(me)
    }

    /// A report of the daemon. [`StoreReports`] returns it without errors: without a daemon, it is empty there.
    ///
    /// # Errors
    /// `Unreachable` or `Io` without a daemon, `Corrupt` for an answer that is not a `T`.
    pub fn report<M, T>(&self) -> Result<T>
    where
        M: Method<Params = p::Empty, Result = p::Report>,
        T: serde::de::DeserializeOwned,
    {
        self.copies.report(&self.session());
        let (report, _) = self.daemon.call::<M>(&p::Empty {})?;
        serde_json::from_value(report.fields.into())
            .map_err(|error| Error::corrupt(format!("the answer to {}: {error}", M::NAME)))
    }

    /// Ends a claim in the session that its ticket belongs to. One of an earlier session has ended with that.
    fn end_claim(&self, key: Key, notify: impl FnOnce(&Session, u64)) {
        let Some((generation, ticket)) = self.daemon.tickets.take(key) else { return };
        let mut session = self.session();
        if session.generation < generation {
            // The next session is about to take its place.
            let next = |session: &Arc<Session>| {
                let is_next = session.generation >= generation;
                if is_next { Ok(Arc::clone(session)) } else { Err(session.replaced()) }
            };
            let Ok(found) = self.daemon.retry(next) else { return };
            session = found;
        }
        if session.generation == generation {
            notify(&session, ticket);
        }
    }

    /// The claim in the daemon's answer.
    fn claimed(
        &self,
        session: &Session,
        key: &Key,
        holder: &Holder,
        claim: p::ClaimResult,
        fds: Vec<OwnedFd>,
    ) -> Result<Claim> {
        match claim {
            p::ClaimResult::Compute(ticket) => {
                self.daemon.tickets.add(session, *key, ticket)?;
                Ok(Claim::Compute(Ticket::new(*key, self.me.clone())))
            }
            p::ClaimResult::Ready(descriptors) => {
                let leases = self.daemon.leases.open_each(session, descriptors, fds, holder, self.me.clone())?;
                Ok(Claim::Ready(leases))
            }
        }
    }

    /// Whether a tensor of `bytes` bytes on `device` is put in a slab. A device without a memory is an error later.
    pub(super) fn is_for_slab(&self, device: Device, bytes: usize) -> bool {
        let is_small = self.small_bytes_max > 0 && bytes <= self.small_bytes_max;
        is_small && (device.is_host() || self.daemon.memories.of(device).is_ok_and(|memory| memory.has_slabs()))
    }
}

fn claim_params(key: &Key, holder: &Holder, wait: Duration) -> p::ClaimParams {
    let timeout_ms = u64::try_from(wait.as_millis()).ok();
    p::ClaimParams { key: key.0.to_string(), holder: holder.name().to_owned(), timeout_ms }
}

impl StoreBackend for ClientStore {
    fn publish(&self, tensor: UnpublishedTensor, key: Option<Key>) -> Result<Lease> {
        if !tensor.private {
            let mut tensor = FrozenTensor::new(tensor, key)?;
            let lease = tensor.publish(&self.publisher())?;
            if tensor.is_in_block() {
                self.start_next_block();
            }
            return Ok(lease);
        }
        let UnpublishedTensor { spec, layout, segment, charge, holder, .. } = tensor;
        self.lease_private(spec, layout, segment.freeze()?, charge, &holder)
    }

    fn publish_each(&self, results: Vec<(UnpublishedTensor, Option<Key>)>) -> Vec<Result<Lease>> {
        let leases = publication::publish_each(&self.publisher(), results);
        self.start_next_block();
        leases
    }

    fn finish_computation(&self, key: Key, results: &[&Lease]) {
        let results = results.iter().map(|lease| lease.id().into()).collect::<Vec<_>>();
        self.end_claim(key, |session, ticket| session.notify::<p::Finish>(&p::FinishParams { ticket, results }));
    }

    fn abandon_computation(&self, key: Key) {
        self.end_claim(key, |session, ticket| session.notify::<p::Abandon>(&p::TicketParams { ticket }));
    }
}

impl LeaseBackend for ClientStore {
    fn release(&self, record: &Arc<Record>) {
        if record.close() {
            self.daemon.leases.forget(record);
        }
    }

    fn count_copy(&self, tensor: &str, reason: CopyReason, bytes: usize) {
        self.record_copy(tensor, reason, bytes);
    }
}

impl ComputationStore for ClientStore {
    fn claim_within(&self, key: &Key, holder: &Holder, wait: Duration) -> Result<Claim> {
        let params = claim_params(key, holder, wait);
        self.daemon.retry(|session| {
            let describe = || session.describe_claim(&key.0);
            let (claim, fds) = session.call_work::<p::Claim>(&params, &describe)?;
            self.claimed(session, key, holder, claim, fds)
        })
    }

    fn claim_each(&self, keys: &[Key], holder: &Holder) -> Vec<Result<Claim>> {
        let params: Vec<_> = keys.iter().map(|key| claim_params(key, holder, Duration::ZERO)).collect();
        let session = self.session();
        let fds_of = |claim: &p::ClaimResult| match claim {
            p::ClaimResult::Ready(found) => found.iter().filter(|tensor| tensor.fd).count(),
            p::ClaimResult::Compute(_) => 0,
        };
        let answers = session.call_each::<p::Claim>(&params, CLAIMS, fds_of);
        let claim = |(key, answer): (&Key, Result<_>)| match answer
            .and_then(|(claim, fds)| self.claimed(&session, key, holder, claim, fds))
        {
            Err(_) if session.connection.closed().is_some() => self.claim_within(key, holder, Duration::ZERO),
            claim => claim,
        };
        keys.iter().zip(answers).map(claim).collect()
    }

    fn is_computed(&self, key: &Key) -> bool {
        self.daemon
            .call::<p::IsComputed>(&p::KeyParams { key: key.0.to_string() })
            .is_ok_and(|(answer, _)| answer.computed)
    }
}

impl BlobStore for ClientStore {
    fn blobs(&self, specs: &[BlobSpec], source: &mut dyn BlobSource, holder: &Holder) -> Result<Vec<Lease>> {
        blobs::lease(self, specs, source, holder)
    }

    fn get_note(&self, key: &ContentHash) -> Option<Vec<u8>> {
        let note = self.daemon.call::<p::GetNote>(&p::KeyParams { key: key.to_string() }).ok()?.0.note?;
        crate::hex::decode(&note)
    }

    fn put_note(&self, key: &ContentHash, note: &[u8]) {
        let params = p::PutNoteParams { key: key.to_string(), note: crate::hex::encode(note) };
        self.session().notify::<p::PutNote>(&params);
    }
}

impl MemoryControl for ClientStore {
    fn prefault(&self, device: Device, bytes: usize, count: usize) -> Result<usize> {
        // Slabs need no prefaulting.
        if self.is_for_slab(device, bytes) {
            Ok(count)
        } else {
            self.daemon.memories.of(device)?.prefault(bytes, count)
        }
    }

    fn prefault_to_fill(&self, device: Device, bytes: usize, count: usize) -> Result<usize> {
        if !device.is_host() || self.is_for_slab(device, bytes) || bytes > self.block_bytes_max {
            return self.prefault(device, bytes, count);
        }
        for done in 0..count {
            if !Allocation::prefault_block(&self.daemon, bytes)? {
                return Ok(done);
            }
        }
        Ok(count)
    }

    fn limit_memory(&self, device: Device, _: u64) -> Result<()> {
        let option = if device.is_host() { "--max-memory" } else { "--max-device-memory" };
        Err(Error::unsupported(format!("the daemon sets the budget of {device}: `cotensor serve {option}`")))
    }

    fn optimize(&self) -> OptimizeReport {
        self.report::<p::Optimize, _>().unwrap_or_default()
    }
}

impl StoreReports for ClientStore {
    fn config(&self) -> &SharingConfig {
        &self.config
    }

    fn record_copy(&self, tensor: &str, reason: CopyReason, bytes: usize) {
        self.copies.add(&self.session(), tensor, reason, bytes);
    }

    fn stats(&self) -> Stats {
        self.report::<p::Stats, _>().unwrap_or_default()
    }

    fn recommendations(&self) -> Recommendations {
        self.report::<p::Recommendations, _>().unwrap_or_default()
    }

    fn diagnostics(&self) -> Diagnostics {
        self.report::<p::Diagnostics, _>().unwrap_or_default()
    }
}
