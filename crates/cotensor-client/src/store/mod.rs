//! A [`Store`](cotensor_store::Store) whose tensors the daemon keeps: the same for its users as one inside their process.

mod contents;
mod copies;
mod link;
mod memory;
mod open;
mod rejoin;
mod tickets;

use crate::place::default_socket;
use crate::protocol::{self as p, Method, Spec};
use copies::Unsaid;
use cotensor_core::{ContentHash, Device, Error, ErrorKind, HeapMemory, Layout, Memory, Result, Segment, SegmentMut};
use cotensor_memory::process::raise_fd_limit;
use cotensor_store::backend::{
    Budget, Holders, LeaseBackend, Record, RecordParts, StoreBackend, TensorCharge, UnpublishedTensor,
};
use cotensor_store::{
    BlobSource, BlobSpec, BlobStore, Claim, ComputationStore, CopyReason, Diagnostics, Holder, Key, Lease,
    MemoryControl, OptimizeReport, Recommendations, Reservation, SharingConfig, Stats, StoreReports, TensorId,
    TensorSpec, TensorStore, Ticket,
};
use link::{ANSWER_TIMEOUT, Link, Live};
use memory::{Place, Slabs, Terms};
use open::{Opened, Opening};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tickets::Tickets;

/// A client of the daemon. Made by [`ClientStore::connect`]; shared behind `Arc`.
///
/// It lives for as long as anybody has it or one of its leases; what it leases is given back then, or when the process ends,
/// however it ends.
pub struct ClientStore {
    link: Arc<Link>,
    socket: PathBuf,
    client: String,
    config: SharingConfig,
    small_bytes_max: usize,
    slabs: Slabs,
    copies: Unsaid,
    opened: Opened,
    tickets: Tickets,
    holders: Holders,
    /// Private tensors are this process's own; the daemon's budget is for what it keeps.
    private: Arc<Budget>,
    me: Weak<ClientStore>,
}

/// Which file of this machine, and where in it.
fn memory_of(segment: &dyn Segment) -> Option<(u64, u64, usize)> {
    let file = rustix::fs::fstat(segment.fd()?).ok()?;
    Some((file.st_dev, file.st_ino, segment.fd_offset()))
}

impl Drop for ClientStore {
    fn drop(&mut self) {
        self.copies.say(&self.link.live());
        self.link.end();
    }
}

impl ClientStore {
    /// Connects to the daemon at `socket`, or where it is by default ([`default_socket`]); `client` names this process
    /// for people.
    ///
    /// # Errors
    /// `Unreachable` when no daemon answers there, `Unsupported` when it speaks another protocol, `Refused` when it is
    /// another user's.
    pub fn connect(socket: Option<&Path>, client: &str) -> Result<Arc<Self>> {
        Self::connect_within(socket, client, ANSWER_TIMEOUT)
    }

    /// As [`connect`](Self::connect), for a daemon that has to answer within `timeout`.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); `TimedOut` when it does not answer in time.
    pub fn connect_within(socket: Option<&Path>, client: &str, timeout: Duration) -> Result<Arc<Self>> {
        raise_fd_limit();
        let socket = socket.map_or_else(default_socket, Path::to_path_buf);
        let slabs = Slabs::default();
        let greeted = Link::greet_first(&socket, client, &slabs.freed(), timeout.min(ANSWER_TIMEOUT))?;
        let hello = greeted.hello.clone();
        let link = Arc::new(Link::new(&socket, client, slabs.freed(), greeted.live(0)));
        let kinds =
            hello.sharing.allowed_types.map(|kinds| kinds.iter().filter_map(|kind| kind.parse().ok()).collect());
        let config = SharingConfig {
            enable_shared_tensors: hello.sharing.enable_shared_tensors,
            allowed_types: kinds,
            max_shared_tensor_size_bytes: hello.sharing.max_shared_tensor_size_bytes,
        };
        let store = Arc::new_cyclic(|me| Self {
            opened: Opened::new(Arc::clone(&link)),
            link,
            socket,
            client: client.to_owned(),
            config,
            small_bytes_max: usize::try_from(hello.small_bytes_max).unwrap_or(usize::MAX),
            slabs,
            copies: Unsaid::default(),
            tickets: Tickets::default(),
            holders: Holders::default(),
            private: Budget::new(u64::MAX),
            me: me.clone(),
        });
        rejoin::watch(&store.link, store.me.clone())?;
        Ok(store)
    }

    /// Ends the connection, as the end of the process would: the daemon gives back what this client leased. What is mapped
    /// stays readable until its leases are dropped.
    pub fn disconnect(&self) {
        self.copies.say(&self.link.live());
        self.link.end();
        self.opened.forget_names();
    }

    /// Where the daemon listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// This process's name, as given to [`ClientStore::connect`].
    pub fn client(&self) -> &str {
        &self.client
    }

    /// Identity of the daemon that this client is connected to: another one, and the next one at the same socket, has another.
    /// [`TensorId`]s of one daemon mean nothing to another.
    pub fn epoch(&self) -> u64 {
        self.link.live().epoch
    }

    /// Whether a lease is this store's, and not another's that happens to use the same numbers.
    pub fn holds(&self, lease: &Lease) -> bool {
        let own = self.opened.find(lease.id(), &self.holder(&lease.holder()));
        own.is_some_and(|own| own.is_of_record(lease))
    }

    /// The tensor of a lease that this process has over another connection to the same daemon, leased over this one: no copy.
    /// `None` for any other, whatever its numbers are, because the memory of the two is not the same; a private one's mean
    /// nothing to a daemon, which is not asked.
    pub fn join(&self, lease: &Lease, holder: &Holder) -> Option<Lease> {
        let there = memory_of(lease.segment()).filter(|_| !lease.is_private())?;
        let own = self.lease(lease.id(), holder).ok()?;
        (memory_of(own.segment()) == Some(there) && own.layout() == lease.layout()).then_some(own)
    }

    /// Asks the daemon for any of its methods, once.
    ///
    /// # Errors
    /// The daemon's; `Io` when it dies meanwhile.
    pub fn ask<M: Method>(&self, params: &M::Params) -> Result<M::Result> {
        let live = self.link.live();
        if live.connection.closed().is_some() && !self.link.ended() {
            self.rejoin(&live)?;
        }
        Ok(self.link.live().call::<M>(params, Vec::new())?.0)
    }

    /// A lease of this process's own on what the daemon leased to it.
    fn open(
        &self,
        live: &Live,
        (descriptor, fds): (p::Descriptor, &mut std::vec::IntoIter<OwnedFd>),
        holder: &Holder,
    ) -> Result<Lease> {
        self.opened.open(live, descriptor, fds, holder, self.me.clone())
    }

    fn reserve_in(
        &self,
        spec: TensorSpec,
        holder: &Holder,
        place: impl FnOnce(&p::ReserveParams, usize) -> Result<(Place, Box<dyn SegmentMut>)>,
    ) -> Result<Reservation> {
        let layout = Layout::contiguous(spec.dtype, &spec.shape).map_err(|error| error.in_field(spec.name.as_str()))?;
        let len = layout.size_bytes();
        spec.check_names()?;
        if !spec.device.is_host() {
            let message = format!("this client has no memory on {}", spec.device);
            return Err(Error::unsupported(message).in_field(spec.name.as_str()));
        }
        self.refuse(&spec, len)?;
        let (place, segment) = place(&reserve_params(&spec, holder.name()), len)?;
        let charge = self.private.take(0).ok_or_else(|| Error::new(ErrorKind::OverBudget, "no memory"))?.into();
        let (holder, tag) = (holder.clone(), Box::new(place));
        let draft = UnpublishedTensor { spec, layout, segment, charge, holder, private: false, tag };
        Ok(Reservation::new(draft, self.home()?))
    }

    /// Reserves a tensor of this process alone, in memory that the caller chooses.
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
        let charge = self.charge_private(&layout)?;
        let (holder, tag) = (holder.clone(), Box::new(()));
        let draft = UnpublishedTensor { spec, layout, segment, charge, holder, private: true, tag };
        Ok(Reservation::new(draft, self.home()?))
    }

    /// Keeps memory that exists as a tensor of this process alone.
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
        let charge = self.charge_private(&layout)?;
        self.lease_private(spec, layout, segment, charge, holder)
    }

    /// Publishes a copy of a tensor that is its process's alone.
    ///
    /// # Errors
    /// `Invalid` for one that another store lists; as [`TensorStore::reserve`].
    pub fn publish_private(&self, lease: &Lease, holder: &Holder) -> Result<Lease> {
        let bytes = lease.bytes().filter(|_| lease.is_private() && lease.layout().is_contiguous());
        let bytes = bytes.ok_or_else(|| {
            Error::invalid(format!("tensor {:?} is not in the daemon's store: publish it there first", lease.name()))
        })?;
        let mut reservation = self.reserve(TensorSpec::new(lease.name(), lease.dtype(), lease.shape()), holder)?;
        reservation.write(bytes, CopyReason::Put)?;
        reservation.publish()
    }

    fn charge_private(&self, layout: &Layout) -> Result<TensorCharge> {
        let charge = self.private.take(layout.size_bytes() as u64);
        charge.map(Into::into).ok_or_else(|| Error::new(ErrorKind::OverBudget, "no memory"))
    }

    fn lease_private(
        &self,
        spec: TensorSpec,
        layout: Layout,
        segment: Arc<dyn Segment>,
        charge: TensorCharge,
        holder: &Holder,
    ) -> Result<Lease> {
        let id = TensorId { slot: u64::MAX, version: self.opened.next_private() };
        let (created, private) = (Duration::ZERO, Some(holder.clone()));
        let parts = RecordParts { id, spec, layout, segment, charge, retained: false, private, key: None, created };
        let record = Record::new(parts, self.me.clone());
        record.lease(holder).ok_or_else(|| Error::new(ErrorKind::Conflict, "a new tensor is closed"))
    }

    fn home(&self) -> Result<Arc<dyn StoreBackend>> {
        let me = self.me.upgrade().ok_or_else(|| Error::new(ErrorKind::Conflict, "the store is closed"))?;
        Ok(me)
    }

    /// A report of the daemon's, as [`StoreReports`] has it without errors: there, a daemon that is gone looks empty.
    ///
    /// # Errors
    /// `Unreachable` or `Io` when the daemon is gone, `Corrupt` for an answer that is no `T`.
    pub fn report<M, T>(&self) -> Result<T>
    where
        M: Method<Params = p::Empty, Result = p::Report>,
        T: serde::de::DeserializeOwned,
    {
        self.copies.say(&self.link.live());
        let (report, _) = self.call::<M>(&p::Empty {})?;
        serde_json::from_value(report.fields.into())
            .map_err(|error| Error::corrupt(format!("the answer to {}: {error}", M::NAME)))
    }

    fn refuse(&self, spec: &TensorSpec, bytes: usize) -> Result<()> {
        match self.config.refuses(spec.kind, bytes as u64) {
            // Asked for all the same: the daemon counts what it refuses.
            Some(_) => self.call::<p::Reserve>(&reserve_params(spec, "")).map(drop),
            None => Ok(()),
        }
    }
}

fn reserve_params(spec: &TensorSpec, holder: &str) -> p::ReserveParams {
    p::ReserveParams { spec: Spec::from(spec), holder: holder.to_owned() }
}

impl StoreBackend for ClientStore {
    fn publish(&self, draft: UnpublishedTensor, key: Option<Key>) -> Result<Lease> {
        let UnpublishedTensor { spec, layout, segment, charge, holder, private, tag, .. } = draft;
        let segment = segment.freeze()?;
        if private {
            return self.lease_private(spec, layout, segment, charge, &holder);
        }
        let place = tag.downcast::<Place>().map_err(|_| Error::invalid("this tensor was reserved in another store"))?;
        let mut place = *place;
        self.attempt(|live| {
            // Tickets are this session's; whether it has one is looked up for each.
            let ticket = self.tickets.number(key)?;
            let terms = Terms { holder: holder.name().to_owned(), ticket, copies: self.copies.take() };
            let published = place.publish(live, &self.slabs, &spec, &segment, terms)?;
            let (id, index) = (published.id.into(), published.index);
            let (spec, layout, segment) = (spec.clone(), layout.clone(), Arc::clone(&segment));
            self.opened.enter(live, Opening { id, index, spec, layout, segment, key }, &holder, self.me.clone())
        })
    }

    fn finish_computation(&self, key: Key, results: &[&Lease]) {
        if let Some(ticket) = self.tickets.take(key) {
            let results = results.iter().map(|lease| lease.id().into()).collect();
            self.link.live().tell::<p::Finish>(&p::FinishParams { ticket, results });
        }
    }

    fn abandon_computation(&self, key: Key) {
        if let Some(ticket) = self.tickets.take(key) {
            self.link.live().tell::<p::Decline>(&p::TicketParams { ticket });
        }
    }
}

impl LeaseBackend for ClientStore {
    fn release(&self, record: &Arc<Record>) {
        if record.close() {
            self.opened.forget(record);
        }
    }

    fn holder_name(&self, id: u32) -> Arc<str> {
        self.holders.name(id)
    }

    fn count_copy(&self, tensor: &str, reason: CopyReason, bytes: usize) {
        self.record_copy(tensor, reason, bytes);
    }
}

impl TensorStore for ClientStore {
    fn holder(&self, name: &str) -> Holder {
        self.holders.holder(name, || self.opened.holders())
    }

    fn get(&self, name: &str, holder: &Holder) -> Result<Lease> {
        if let Some(lease) = self.opened.find_newest(name, holder) {
            return Ok(lease);
        }
        let params = p::GetParams { name: name.to_owned(), holder: holder.name().to_owned() };
        self.attempt(|live| {
            let (descriptor, fds) = live.call_long::<p::Get>(&params, Vec::new())?;
            self.open(live, (descriptor, &mut fds.into_iter()), holder)
        })
    }

    fn lease(&self, id: TensorId, holder: &Holder) -> Result<Lease> {
        if let Some(lease) = self.opened.find(id, holder) {
            return Ok(lease);
        }
        let params = p::LeaseParams { id: id.into(), holder: holder.name().to_owned() };
        self.attempt(|live| {
            let (descriptor, fds) = live.call_long::<p::Lease>(&params, Vec::new())?;
            self.open(live, (descriptor, &mut fds.into_iter()), holder)
        })
    }

    fn has(&self, id: TensorId) -> bool {
        self.call::<p::Has>(&p::IdParams { id: id.into() }).is_ok_and(|(there, _)| there.present)
    }

    fn reserve(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        self.reserve_in(spec, holder, |params, len| match len <= self.small_bytes_max && self.small_bytes_max > 0 {
            true => self.slabs.place(self, len),
            false => Place::reserved(self, params, |pool| pool.reserve(len)),
        })
    }

    /// In memory of its own, however small: in a slab, whoever kept the address could go on writing.
    fn reserve_aliased(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        self.reserve_in(spec, holder, |params, len| Place::reserved(self, params, |pool| pool.reserve_aliased(len)))
    }

    fn reserve_private(&self, spec: TensorSpec, holder: &Holder) -> Result<Reservation> {
        let layout = Layout::contiguous(spec.dtype, &spec.shape).map_err(|error| error.in_field(spec.name.as_str()))?;
        let segment = HeapMemory.reserve(layout.size_bytes())?;
        self.reserve_in_private(spec, layout, segment, holder)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let (params, mut again) = (p::NameParams { name: name.to_owned() }, false);
        self.attempt(|live| match live.call::<p::Remove>(&params, Vec::new()) {
            // Removed the first time, when the answer was lost.
            Err(error) if again && error.kind() == ErrorKind::NotFound => Ok(()),
            outcome => {
                again = true;
                outcome.map(drop)
            }
        })
    }
}

impl ComputationStore for ClientStore {
    fn claim_within(&self, key: &Key, holder: &Holder, wait: Duration) -> Result<Claim> {
        let timeout_ms = u64::try_from(wait.as_millis()).ok();
        let params = p::ClaimParams { key: key.0.to_string(), holder: holder.name().to_owned(), timeout_ms };
        self.attempt(|live| {
            let (claim, fds) = live.connection.call::<p::Claim>(&params, Vec::new(), Some(link::WORK_TIMEOUT))?;
            match claim {
                p::ClaimResult::Compute(ticket) => {
                    self.tickets.add(live, *key, ticket)?;
                    Ok(Claim::Compute(Ticket::new(*key, self.me.clone())))
                }
                p::ClaimResult::Ready(descriptors) => {
                    let mut fds = fds.into_iter();
                    let open = |descriptor| self.open(live, (descriptor, &mut fds), holder);
                    Ok(Claim::Ready(descriptors.into_iter().map(open).collect::<Result<_>>()?))
                }
            }
        })
    }

    fn is_computed(&self, key: &Key) -> bool {
        self.call::<p::IsComputed>(&p::KeyParams { key: key.0.to_string() }).is_ok_and(|(answer, _)| answer.computed)
    }
}

impl BlobStore for ClientStore {
    fn blobs(&self, specs: &[BlobSpec], source: &mut dyn BlobSource, holder: &Holder) -> Result<Vec<Lease>> {
        contents::lease(self, specs, source, holder)
    }

    fn get_note(&self, key: &ContentHash) -> Option<Vec<u8>> {
        let note = self.call::<p::Recall>(&p::KeyParams { key: key.to_string() }).ok()?.0.note?;
        crate::hex::decode(&note)
    }

    fn put_note(&self, key: &ContentHash, note: &[u8]) {
        let params = p::RememberParams { key: key.to_string(), note: crate::hex::encode(note) };
        self.link.live().tell::<p::Remember>(&params);
    }
}

impl MemoryControl for ClientStore {
    fn prefault(&self, _: Device, bytes: usize, count: usize) -> Result<usize> {
        // Small ones lie in slabs, which are ready anyway.
        if bytes > self.small_bytes_max { self.slabs.pool.memory().prefault(bytes, count) } else { Ok(count) }
    }

    fn limit_memory(&self, _: Device, _: u64) -> Result<()> {
        Err(Error::unsupported("the budget is the daemon's: `cotensor serve --max-memory`"))
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
        self.copies.add(&self.link.live(), tensor, reason, bytes);
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
