//! Hosting: methods for a service that keeps tensors for other processes. Those make the memory; claims wait without a
//! thread; blobs are published in two steps.

use crate::backend::{Charge, Record, TensorCharge};
use crate::blobs::BlobPack;
use crate::budget::SegmentCharge;
use crate::computations::{Found, Waiter};
use crate::local::LocalStore;
use crate::spill::SpilledSet;
use crate::{Claim, Holder, Key, Lease, Publication, SpilledTensorInfo, TensorId, TensorSpec, Ticket};
use cotensor_core::{Device, Error, Layout, Result, Segment};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::Duration;

impl LocalStore {
    /// Takes the bytes and the metadata of a tensor from the budget, for memory that another process makes. Evicts if
    /// needed.
    ///
    /// # Errors
    /// As [`TensorStore::reserve`](crate::TensorStore::reserve).
    pub fn grant(&self, spec: &TensorSpec) -> Result<TensorCharge> {
        let bytes = self.checked_bytes(spec)?;
        let charge = self.charge(spec.device, bytes).and_then(|segment| self.tensor_charge(&segment, spec));
        charge.map_err(|error| error.in_field(spec.name.as_str()))
    }

    /// Takes the metadata of one more tensor of a segment from the budget. Evicts if needed.
    ///
    /// # Errors
    /// `OverBudget` when eviction could not make room.
    pub fn grant_in(&self, segment: &Arc<Charge>, spec: &TensorSpec) -> Result<TensorCharge> {
        self.tensor_charge(segment, spec).map_err(|error| error.in_field(spec.name.as_str()))
    }

    /// As [`grant`](Self::grant) for memory that grows. Takes no bytes and evicts nothing, but refuses a tensor that
    /// can never fit. [`grant_more`](Self::grant_more) then takes the bytes.
    ///
    /// # Errors
    /// As [`grant`](Self::grant).
    pub fn grant_growing(&self, spec: &TensorSpec) -> Result<Arc<Charge>> {
        let bytes = self.checked_bytes(spec)?;
        let budget = self.devices.budget(spec.device)?;
        if bytes > budget.max() {
            return Err(self.over_budget(budget, bytes).in_field(spec.name.as_str()));
        }
        self.charge(spec.device, 0)
    }

    /// Adds `bytes` to an unshared charge. Evicts if needed.
    ///
    /// # Errors
    /// `OverBudget` when eviction could not make room.
    pub fn grant_more(&self, charge: Arc<Charge>, bytes: u64) -> Result<Arc<Charge>> {
        let more = self.charge(charge.budget().device(), bytes)?;
        charge.join(more).ok_or_else(|| Error::invalid("another tensor shares this charge"))
    }

    /// Takes `bytes` from the budget of `device` for a segment to which tensors are added one by one. While the
    /// returned charge exists, evicting those tensors frees no memory.
    ///
    /// # Errors
    /// `OverBudget` when eviction could not make room.
    pub fn charge_segment(&self, device: Device, bytes: u64) -> Result<SegmentCharge> {
        Ok(SegmentCharge::new(self.charge(device, bytes)?))
    }

    /// Refuses a tensor that the configuration does not share, and counts that; for tensors of an open segment.
    ///
    /// # Errors
    /// `Refused`.
    pub fn check_shared(&self, spec: &TensorSpec) -> Result<()> {
        self.checked_bytes(spec).map(|_| ())
    }

    /// The bytes of a tensor that the configuration shares. Counts one that it refuses.
    fn checked_bytes(&self, spec: &TensorSpec) -> Result<u64> {
        let layout = spec.layout().map_err(|error| error.in_field("shape"))?;
        let bytes = layout.size_bytes() as u64;
        self.refuse(spec, bytes)?;
        Ok(bytes)
    }

    /// Publishes a tensor whose memory another process made, and leases it. With a `key` it is a result of that
    /// computation, which [`Ticket::finish`] ends.
    ///
    /// # Errors
    /// `Invalid` when the layout reaches beyond the segment, or the segment is on another device than `spec` says;
    /// `Conflict` when the name has another newest version than the expected one.
    pub fn adopt(
        &self,
        spec: TensorSpec,
        layout: Layout,
        segment: Arc<dyn Segment>,
        charge: TensorCharge,
        terms: Publication,
        holder: &Holder,
    ) -> Result<Lease> {
        if layout.byte_range().end > segment.len() {
            return Err(Error::invalid(format!("{} reaches beyond its segment", spec.name)));
        }
        spec.check_device(&*segment)?;
        self.publish_named(spec, layout, segment, charge, terms, holder)
    }

    /// Claims a key. Where that waits, `waker` is woken for the next call, unless `waiter` is dropped before.
    ///
    /// # Errors
    /// As [`ComputationStore::claim`](crate::ComputationStore::claim), but for `TimedOut`.
    pub(crate) fn poll_claim(
        &self,
        key: &Key,
        holder: &Holder,
        waiter: &mut Waiter<'_>,
        waker: &Waker,
    ) -> Poll<Result<Claim>> {
        let _restored = self.restore_results(key, holder);
        match waiter.poll(*key, holder, waker) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(found) => Poll::Ready(Ok(self.claimed(*key, found))),
        }
    }

    /// The holder that computes a key or provides a blob at the moment.
    #[must_use]
    pub fn claim_holder(&self, key: &Key) -> Option<Holder> {
        self.claims.holder(key)
    }

    /// The error of a claim for which [`await_claim`](Self::await_claim) was pending too long.
    #[must_use]
    pub fn claim_timed_out(&self, key: &Key) -> Error {
        self.claims.timed_out(key)
    }

    pub(crate) fn claimed(&self, key: Key, found: Found) -> Claim {
        match found {
            Found::Ready(leases) => {
                self.counters.claim_hits.fetch_add(1, Ordering::Relaxed);
                let now = self.clock.recent();
                leases.iter().for_each(|lease| lease.record.set_last_used(now));
                Claim::Ready(leases)
            }
            Found::Compute => {
                self.counters.claim_misses.fetch_add(1, Ordering::Relaxed);
                Claim::Compute(Ticket::new(key, self.me.clone()))
            }
        }
    }

    /// The second half of [`BlobStore::blobs`](crate::BlobStore::blobs), after [`plan_upload`](Self::plan_upload): publishes and leases the blobs of `pack`, which `segment` holds. `took` is the time of
    /// providing them.
    ///
    /// # Errors
    /// `Invalid` for a segment of another length.
    pub fn publish_pack(&self, pack: BlobPack, segment: &Arc<dyn Segment>, took: Duration) -> Result<Vec<Lease>> {
        if segment.len() != pack.bytes() {
            return Err(Error::invalid(format!("the segment has {} bytes, the pack {}", segment.len(), pack.bytes())));
        }
        super::blobs::publish(self, pack, segment, took)
    }

    /// Time since a record was published.
    pub fn age(&self, record: &Record) -> Duration {
        self.clock.now().saturating_sub(record.created)
    }

    /// Every record whose name starts with `prefix`, by name and version.
    pub fn records(&self, prefix: &str) -> Vec<Arc<Record>> {
        let mut records = std::mem::take(&mut self.names.survey().records);
        records.retain(|record| record.name().starts_with(prefix));
        records
    }

    /// Every spilled tensor whose name starts with `prefix`, by name.
    pub fn spilled(&self, prefix: &str) -> Vec<SpilledTensorInfo> {
        let now = self.clock.now();
        let describe = |(set, id): (Arc<SpilledSet>, TensorId)| {
            let tensor = set.tensor(id)?.clone();
            let age = now.saturating_sub(self.created(tensor.created));
            Some(SpilledTensorInfo { tensor, age, lost: set.lost() })
        };
        let mut found: Vec<SpilledTensorInfo> = self.names.spilled(prefix).into_iter().filter_map(describe).collect();
        found.sort_by(|a, b| a.tensor.spec.name.cmp(&b.tensor.spec.name));
        found
    }

    /// Bytes of host memory in use, without the rest of the report: see [`crate::StoreReports::stats`].
    pub fn memory_usage_bytes(&self) -> u64 {
        self.devices.host().used()
    }
}
