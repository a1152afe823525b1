//! Tensors whose memory was wanted and that are somewhere slower, until they are asked for again.
//!
//! The store decides what goes there and when; where "there" is, a service says. What nobody leases can go, in the order of
//! eviction, and the tensors of one segment together. A tensor keeps its name and its identity.

use crate::backend::{LeaseBackend, Record, RecordParts};
use crate::budget::{Budget, Charge, SpilledCharge};
use crate::eviction::Group;
use crate::{CopyReason, EmbeddedStore, Holder, Key, Lease, TensorId, TensorSpec};
use cotensor_core::sync::lock;
use cotensor_core::{Device, Error, ErrorKind, HeapMemory, Layout, Memory, Result, Segment};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// What is said to be made again faster than this is read back, in bytes a second, is dropped rather than spilled.
const READ_BYTES_PER_SECOND: f64 = (1u64 << 30) as f64;

/// Where segments go when their memory is wanted. Must not call the store.
pub trait SpillStorage: Send + Sync {
    /// Keeps the content of `segment`, all of its descriptor if it has one.
    ///
    /// # Errors
    /// Whatever keeps it from doing so, such as a full disk; the segment's tensors then stay where they are.
    fn spill(&self, segment: &dyn Segment) -> Result<Arc<dyn SpilledSegment>>;

    /// Runs `work`, which may take as long as writing or reading a segment does.
    fn blocking(&self, work: &mut dyn FnMut()) {
        work();
    }
}

/// A segment that was spilled; dropping it ends that.
pub trait SpilledSegment: Send + Sync {
    /// Which it is, among those of its [`SpillStorage`].
    fn number(&self) -> u64;

    /// What its memory takes from the budget, in bytes.
    fn bytes(&self) -> u64;

    /// Whether it can be read, as far as that is known without reading it.
    ///
    /// # Errors
    /// Why it cannot be.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Its content in new memory, at the offsets that it had.
    ///
    /// # Errors
    /// `Corrupt` when it is not what was spilled, `NotFound` when it is no longer there; `OverBudget` for lack of anything but memory, such as descriptors: others
    /// are spilled then, and this is asked again; `Io`.
    fn restore(&self) -> Result<Arc<dyn Segment>>;
}

/// A tensor without memory.
#[derive(Clone, Debug)]
pub struct SpilledTensor {
    /// Which it is.
    pub id: TensorId,
    /// What was published.
    pub spec: TensorSpec,
    /// How its elements lie in the spilled segment.
    pub layout: Layout,
    /// The claim whose result it is part of.
    pub key: Option<Key>,
    /// When it was published, by the store's clock; `None` if that is not known.
    pub created: Option<Duration>,
}

impl SpilledTensor {
    fn of(record: &Record) -> Result<Self> {
        let layout = record.layout.moved(record.layout.offset_bytes() + offset_in_file(&*record.segment))?;
        let (id, spec, key, created) = (record.id, record.spec(), record.key(), Some(record.created));
        Ok(Self { id, spec, layout, key, created })
    }
}

/// The tensors of one spilled segment. Their names hold it; with the last of them it goes.
pub(crate) struct Away {
    /// Taken when they come back.
    place: Mutex<Option<Arc<dyn SpilledSegment>>>,
    pub(crate) bytes: u64,
    pub(crate) tensors: Vec<SpilledTensor>,
    /// What is known about them.
    _charge: SpilledCharge,
    /// Why they could not be read when they were asked for last.
    lost: Mutex<Option<String>>,
}

/// A tensor that is away, for a list.
#[derive(Clone, Debug)]
pub struct SpilledTensorInfo {
    /// What it is.
    pub tensor: SpilledTensor,
    /// Time since it was published.
    pub age: Duration,
    /// Why it cannot be read any more, if it cannot: it is published anew or removed, and nothing else brings it back.
    pub lost: Option<String>,
}

impl Away {
    pub(crate) fn tensor(&self, id: TensorId) -> Option<&SpilledTensor> {
        self.tensors.iter().find(|tensor| tensor.id == id)
    }

    /// The device that its tensors were on, and will be on again.
    pub(crate) fn device(&self) -> Device {
        self.tensors.first().map(|tensor| tensor.spec.device).unwrap_or_default()
    }

    fn new(spilled: Arc<dyn SpilledSegment>, tensors: Vec<SpilledTensor>, charge: SpilledCharge) -> Self {
        let (bytes, place) = (spilled.bytes(), Mutex::new(Some(spilled)));
        Self { bytes, place, tensors, lost: Mutex::default(), _charge: charge }
    }

    fn place(&self) -> MutexGuard<'_, Option<Arc<dyn SpilledSegment>>> {
        lock(&self.place)
    }

    /// Why it cannot be read. A place that is in use at the moment is not looked at.
    fn lost(&self) -> Option<String> {
        let known = lock(&self.lost).clone();
        known.or_else(|| self.place.try_lock().ok()?.as_ref()?.check().err().map(|error| error.to_string()))
    }

    /// Remembers why it could not be read, unless another attempt may succeed.
    fn note_lost(&self, error: &Error) {
        if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) {
            *lock(&self.lost) = Some(error.to_string());
        }
    }
}

/// What a store that spills remembers.
pub(crate) struct Spilling {
    pub(crate) spill: Arc<dyn SpillStorage>,
    /// One at a time: others would write the same.
    turn: Mutex<()>,
    /// Results of claims of which some are away.
    claims: Mutex<HashMap<Key, Vec<TensorId>>>,
}

impl Spilling {
    pub(crate) fn new(spill: Arc<dyn SpillStorage>) -> Self {
        Self { spill, turn: Mutex::default(), claims: Mutex::default() }
    }

    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.turn)
    }

    pub(crate) fn claims(&self) -> MutexGuard<'_, HashMap<Key, Vec<TensorId>>> {
        lock(&self.claims)
    }
}

/// Where a tensor is that cannot be leased.
pub(crate) enum Whereabouts {
    Nowhere,
    /// Closed, and about to go or to be spilled.
    Leaving,
    Away(Arc<Away>),
}

impl Group {
    /// The memory that all of the group lies in, unless it can be dropped: what is said to be made again in less time than
    /// it takes to read it back. What nothing is said of is not dropped.
    pub(crate) fn worth_spilling(&self) -> Option<&Arc<dyn Segment>> {
        let said = self.recompute.as_secs_f64();
        let first = &self.records.first()?.segment;
        let same = |segment: &Arc<dyn Segment>| Arc::ptr_eq(segment, first) || same_file(&**segment, &**first);
        let dropped = said > 0.0 && said < self.bytes as f64 / READ_BYTES_PER_SECOND;
        (!dropped && self.records.iter().all(|record| same(&record.segment))).then_some(first)
    }
}

/// Whether two segments are parts of one.
#[cfg(unix)]
fn same_file(a: &dyn Segment, b: &dyn Segment) -> bool {
    let number = |segment: &dyn Segment| segment.fd().map(|fd| std::os::fd::AsRawFd::as_raw_fd(&fd));
    number(a).is_some() && number(a) == number(b)
}

#[cfg(unix)]
fn offset_in_file(segment: &dyn Segment) -> usize {
    segment.fd_offset()
}

#[cfg(not(unix))]
fn same_file(_: &dyn Segment, _: &dyn Segment) -> bool {
    false
}

#[cfg(not(unix))]
fn offset_in_file(_: &dyn Segment) -> usize {
    0
}

impl EmbeddedStore {
    /// Spills the memory of a group that nobody leases; false when somebody does by now.
    pub(crate) fn put_away(&self, spilling: &Spilling, group: &Group, segment: &Arc<dyn Segment>) -> Result<bool> {
        let tensors = group.records.iter().map(|record| SpilledTensor::of(record)).collect::<Result<Vec<_>>>()?;
        // Its content cannot change, so it can be written before it is known that nobody wants it.
        let spilled = match segment.device().is_host() {
            true => spilling.spill.spill(&**segment)?,
            false => spilling.spill.spill(&*self.copied_to_host(group, &**segment)?)?,
        };
        if !group.close() {
            return Ok(false);
        }
        let charge = self.spilled_charge(&tensors);
        let away = Arc::new(Away::new(Arc::clone(&spilled), tensors, charge));
        for record in &group.records {
            if let Some(key) = &record.key()
                && let Some(results) = self.claims.results(key)
            {
                spilling.claims().insert(*key, results);
            }
            self.names.put_away(record, &away, |stays| match stays {
                true => self.tell(|observer| observer.on_spill(record, &*spilled)),
                false => {
                    if let Some(key) = &record.key() {
                        spilling.claims().remove(key);
                    }
                    self.tell(|observer| observer.on_free(record));
                }
            });
            if let Some(key) = &record.key() {
                self.claims.forget(key, record);
            }
        }
        self.counters.spills.fetch_add(group.records.len() as u64, Ordering::Relaxed);
        self.counters.spilled_bytes.fetch_add(spilled.bytes(), Ordering::Relaxed);
        Ok(true)
    }

    /// A copy in host memory of a device's segment, which is counted.
    fn copied_to_host(&self, group: &Group, segment: &dyn Segment) -> Result<Arc<dyn Segment>> {
        let mut copy = HeapMemory.reserve(segment.len())?;
        if let Some(bytes) = copy.bytes_mut() {
            segment.read_at(0, bytes)?;
        }
        self.count_transfer(group.records.first().map(|record| record.name()), segment.len());
        copy.freeze()
    }

    /// A copy of a host's segment in the memory of `device`, which is counted.
    fn copied_to_device(&self, away: &Away, segment: &dyn Segment) -> Result<Arc<dyn Segment>> {
        /// Bytes that are copied at a time.
        const PIECE_BYTES: usize = 1 << 20;
        let mut copy = self.devices.memory(away.device())?.reserve(segment.len())?;
        let mut piece = vec![0; segment.len().min(PIECE_BYTES)];
        for offset in (0..segment.len()).step_by(PIECE_BYTES) {
            let piece = &mut piece[..PIECE_BYTES.min(segment.len() - offset)];
            segment.read_at(offset, piece)?;
            copy.write_at(offset, piece)?;
        }
        self.count_transfer(away.tensors.first().map(|tensor| tensor.spec.name.as_str()), segment.len());
        copy.freeze()
    }

    fn count_transfer(&self, tensor: Option<&str>, bytes: usize) {
        self.count_copy(tensor.unwrap_or_default(), CopyReason::DeviceTransfer, bytes);
    }

    fn spilled_charge(&self, tensors: &[SpilledTensor]) -> SpilledCharge {
        self.devices.host().take_spilled_unchecked(self.metadata_of_all(tensors))
    }

    /// What is known about tensors without memory, in bytes.
    pub(crate) fn metadata_of_all(&self, tensors: &[SpilledTensor]) -> u64 {
        tensors.iter().map(|tensor| self.metadata_of(&tensor.spec)).sum()
    }

    /// Finds what could not be found at once: brings it back if it is away. `None` when it is nowhere.
    pub(crate) fn find_away(
        &self,
        holder: &Holder,
        whereabouts: impl Fn() -> Whereabouts,
        find: impl Fn() -> Option<Lease>,
    ) -> Result<Option<Lease>> {
        let Some(spilling) = &self.spilling else { return Ok(None) };
        if matches!(whereabouts(), Whereabouts::Nowhere) {
            return Ok(None);
        }
        let mut found = Ok(None);
        let mut round = 0;
        spilling.spill.blocking(&mut || {
            while round < crate::eviction::ROUNDS_MAX {
                round += 1;
                let held = match whereabouts() {
                    Whereabouts::Nowhere => return,
                    Whereabouts::Leaving => {
                        crate::eviction::pause(round);
                        Ok(Vec::new())
                    }
                    Whereabouts::Away(away) => self.bring_back(&away, holder),
                };
                // Held until it is found, so that its memory is not wanted again at once.
                found = held.map(|_held| find());
                if !matches!(found, Ok(None)) {
                    return;
                }
            }
        });
        found
    }

    /// Gives tensors memory again; the leases keep it from being wanted at once.
    fn bring_back(&self, away: &Arc<Away>, holder: &Holder) -> Result<Vec<Lease>> {
        let mut place = away.place();
        // Somebody else was faster.
        let Some(spilled) = place.as_ref() else { return Ok(Vec::new()) };
        // Nothing has to go for what cannot be read.
        let room = spilled.check().and_then(|()| self.restored_charge(away.device(), away.bytes));
        let back = match room {
            Ok(charge) => {
                let segment = self.restored(away, &**spilled);
                segment.and_then(|segment| self.list_again(away, &segment, &charge, holder))
            }
            Err(refused) if refused.kind() == ErrorKind::OverBudget => self.swap_in(away, &mut place, holder, refused),
            Err(error) => Err(error),
        };
        match back {
            Ok(leases) => {
                *place = None;
                self.counters.restores.fetch_add(leases.len() as u64, Ordering::Relaxed);
                Ok(leases)
            }
            Err(error) => {
                away.note_lost(&error);
                let name = away.tensors.first().map(|tensor| tensor.spec.name.as_str()).unwrap_or_default();
                Err(error.in_field(name))
            }
        }
    }

    /// Lists the tensors of a segment that was brought back.
    pub(crate) fn list_again(
        &self,
        away: &Arc<Away>,
        segment: &Arc<dyn Segment>,
        charge: &Arc<Charge>,
        holder: &Holder,
    ) -> Result<Vec<Lease>> {
        if let Some(tensor) = away.tensors.iter().find(|tensor| tensor.layout.byte_range().end > segment.len()) {
            return Err(Error::corrupt(format!("{} reaches beyond what was spilled", tensor.spec.name)));
        }
        let mut leases = Vec::with_capacity(away.tensors.len());
        for tensor in &away.tensors {
            let SpilledTensor { id, spec, layout, key, created } = tensor.clone();
            let home: Weak<dyn LeaseBackend> = self.me.clone();
            let (segment, created) = (Arc::clone(segment), self.created(created));
            let charge = self.devices.host().take_metadata_unchecked(charge, self.metadata_of(&spec));
            let record = self.names.bring_back(&tensor.spec.name, id, away, || {
                let parts =
                    RecordParts { id, spec, layout, segment, charge, retained: true, private: None, key, created };
                let record = Record::new(parts, home);
                record.leases.acquire(holder.id);
                self.tell(|observer| observer.on_publish(&record));
                record
            });
            // One that was published anew, or removed, meanwhile is not needed any more.
            leases.extend(record.map(|record| Lease { record, holder: holder.id, reinterpreted: None }));
        }
        Ok(leases)
    }

    /// What was spilled. Where it lacks anything but memory, others go for it.
    fn restored(&self, away: &Away, spilled: &dyn SpilledSegment) -> Result<Arc<dyn Segment>> {
        let lacking =
            |restored: &Result<_>| restored.as_ref().is_err_and(|error: &Error| error.kind() == ErrorKind::OverBudget);
        let mut restored = spilled.restore();
        if lacking(&restored) {
            self.shed_until(&mut || {
                restored = spilled.restore();
                !lacking(&restored)
            })?;
        }
        self.on_its_device(away, restored?)
    }

    /// A restored segment, copied to the device that its tensors were on.
    pub(crate) fn on_its_device(&self, away: &Away, segment: Arc<dyn Segment>) -> Result<Arc<dyn Segment>> {
        match segment.device() == away.device() {
            true => Ok(segment),
            false => self.copied_to_device(away, &*segment),
        }
    }

    /// Makes results of a claim that are away its results again, as long as the leases live.
    pub(crate) fn bring_claim_back(&self, key: &Key, holder: &Holder) -> Vec<Lease> {
        let Some(spilling) = &self.spilling else { return Vec::new() };
        let Some(results) = spilling.claims().get(key).cloned() else { return Vec::new() };
        let leases: Result<Vec<Lease>> =
            results.iter().map(|id| crate::TensorStore::lease(self, *id, holder)).collect();
        // Computed again if one of them is gone.
        let leases = leases.unwrap_or_default();
        if !leases.is_empty() {
            self.claims.restore(*key, leases.iter().map(|lease| Arc::downgrade(&lease.record)).collect());
        }
        // Afterwards: whoever claims it meanwhile finds it here or there.
        spilling.claims().remove(key);
        leases
    }

    pub(crate) fn claim_is_away(&self, key: &Key) -> bool {
        self.spilling.as_ref().is_some_and(|spilling| spilling.claims().contains_key(key))
    }

    /// A name lost this version while it was away.
    pub(crate) fn drop_away(&self, away: &Away, id: TensorId) {
        self.tell(|observer| observer.on_spilled_free(id));
        if let (Some(spilling), Some(tensor)) = (&self.spilling, away.tensor(id))
            && let Some(key) = &tensor.key
        {
            spilling.claims().remove(key);
        }
    }

    /// How many tensors are spilled, and the bytes of their segments.
    pub(crate) fn spilled_now(&self) -> (usize, u64) {
        let Some(_) = &self.spilling else { return (0, 0) };
        let aways = self.names.aways("");
        let by_segment: HashMap<_, u64> = aways.iter().map(|(away, _)| (Arc::as_ptr(away), away.bytes)).collect();
        (aways.len(), by_segment.into_values().sum())
    }

    /// Every spilled tensor whose name starts with `prefix`, by name.
    pub fn spilled(&self, prefix: &str) -> Vec<SpilledTensorInfo> {
        let now = self.clock.now();
        let describe = |(away, id): (Arc<Away>, TensorId)| {
            let tensor = away.tensor(id)?.clone();
            let age = now.saturating_sub(self.created(tensor.created));
            Some(SpilledTensorInfo { tensor, age, lost: away.lost() })
        };
        let mut found: Vec<SpilledTensorInfo> = self.names.aways(prefix).into_iter().filter_map(describe).collect();
        found.sort_by(|a, b| a.tensor.spec.name.cmp(&b.tensor.spec.name));
        found
    }

    /// Lists again, with the number of versions that their names had, what a former store of the same
    /// [seed](crate::EmbeddedStoreBuilder::seed) spilled. The [`StoreObserver`](crate::StoreObserver) is not told.
    ///
    /// # Errors
    /// `Conflict` when one of the names is there already.
    pub fn restore_spilled(&self, tensors: Vec<(SpilledTensor, u64)>, spilled: Arc<dyn SpilledSegment>) -> Result<()> {
        let created = |tensor: &SpilledTensor| Some(self.created(tensor.created));
        let (tensors, versions): (Vec<_>, Vec<u64>) = tensors
            .into_iter()
            .map(|(tensor, versions)| (SpilledTensor { created: created(&tensor), ..tensor }, versions))
            .unzip();
        let charge = self.spilled_charge(&tensors);
        let away = Arc::new(Away::new(spilled, tensors, charge));
        for (tensor, versions) in away.tensors.iter().zip(versions) {
            self.names.restore_away(&tensor.spec.name, tensor.id, versions, &away)?;
        }
        Ok(())
    }

    /// Makes tensors, of which some are spilled, the results of a claim again.
    pub fn restore_spilled_claim(&self, key: Key, results: Vec<TensorId>) {
        if let Some(spilling) = &self.spilling {
            spilling.claims().insert(key, results);
        }
    }

    /// As [`over_budget`](Self::over_budget), and why spilling did not help.
    pub(crate) fn not_spilled(&self, budget: &Arc<Budget>, bytes: u64, error: &Error) -> Error {
        let over = self.over_budget(budget, bytes);
        Error::new(ErrorKind::OverBudget, format!("{}; spilling failed: {error}", over.message()))
    }
}
