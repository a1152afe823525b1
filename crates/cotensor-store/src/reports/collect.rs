//! The reports of a store. Every figure is counted, none is estimated.

use crate::TensorId;
use crate::budget::{Budget, Devices};
use crate::eviction::{Candidate, candidates};
use crate::leases::Record;
use crate::names::Names;
use crate::reports::Counters;
use crate::{DeviceStats, Diagnostics, KeptTensors, OptimizeReport, Recommendations, Refusal, Stats, TensorInfo};
use cotensor_core::sync::lock;
use cotensor_core::{ContentHash, Kind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const MIB: f64 = (1 << 20) as f64;
/// The most entries of a list in a report.
pub const LISTED: usize = 10;

/// The tensors that [`optimize`](crate::MemoryControl::optimize) freed.
#[derive(Default)]
pub(crate) struct Freed {
    tensors: Vec<String>,
    bytes: u64,
}

impl Freed {
    pub(crate) fn add(&mut self, candidate: &Candidate) {
        self.bytes += candidate.bytes;
        self.tensors.extend(candidate.records.iter().map(|record| record.name().to_owned()));
    }

    /// The report. The store used `before` bytes and uses `now` bytes with the `remaining` tensors.
    pub(crate) fn report(self, before: u64, now: u64, remaining: usize) -> OptimizeReport {
        OptimizeReport {
            initial_memory_bytes: before,
            current_memory_bytes: now,
            freed_memory_bytes: self.bytes,
            freed_tensors_count: self.tensors.len(),
            memory_reduction_percent: if before == 0 { 0.0 } else { 100.0 * self.bytes as f64 / before as f64 },
            remaining_tensor_count: remaining,
            freed_tensors: self.tensors,
        }
    }
}

/// The parts of a store that its reports are made of.
pub(crate) struct Figures<'a> {
    pub(crate) names: &'a Names,
    pub(crate) devices: &'a Devices,
    pub(crate) counters: &'a Counters,
    /// The time by the store's clock.
    pub(crate) now: Duration,
    /// The time of the store's creation.
    pub(crate) started: Duration,
}

impl Figures<'_> {
    pub(crate) fn stats(&self) -> Stats {
        self.stats_of(&self.names.survey().records)
    }

    fn stats_of(&self, records: &[Arc<Record>]) -> Stats {
        let models: BTreeSet<String> = records.iter().flat_map(|record| holders(record).into_keys()).collect();
        let (name_hits, name_misses) = self.names.hits_and_misses();
        let cache_hits = name_hits + self.counters.claim_hits.load(Ordering::Relaxed);
        let cache_misses = name_misses + self.counters.claim_misses.load(Ordering::Relaxed);
        let lookups = cache_hits + cache_misses;
        let budget = self.devices.host();
        let used = budget.used();
        let (spilled_now, spilled_now_bytes) = self.names.count_spilled();
        let (unshared_bytes, saved_bytes) = holder_copies(records);
        let mut kept_by = kept(records);
        let (kept_tensors, kept_bytes) =
            kept_by.iter().fold((0, 0), |(tensors, bytes), kept| (tensors + kept.tensors, bytes + kept.bytes));
        kept_by.truncate(LISTED);
        Stats {
            kept_tensors,
            kept_bytes,
            kept_by,
            unshared_bytes,
            saved_bytes,
            total_tensors: records.len(),
            spilled_now,
            spilled_now_bytes,
            counted_seconds: self.now.saturating_sub(self.started).as_secs_f64(),
            total_models: models.len(),
            memory_usage_bytes: used,
            max_memory_bytes: limit(budget),
            metadata_bytes: budget.metadata(),
            ready_bytes: 0,
            memory_usage_mb: used as f64 / MIB,
            peak_memory_bytes: budget.peak(),
            devices: self.devices.budgets().map(|budget| device_stats(budget, records)).collect(),
            cache_hits,
            cache_misses,
            hit_rate: if lookups == 0 { 0.0 } else { cache_hits as f64 / lookups as f64 },
            models: models.into_iter().collect(),
            sharing_opportunities: opportunities(records),
            refused: Refusal::ALL
                .iter()
                .map(|&refusal| {
                    (refusal.name().to_owned(), self.counters.refused[refusal as usize].load(Ordering::Relaxed))
                })
                .filter(|(_, count)| *count > 0)
                .collect(),
            copies: self.counters.copies.totals(),
            evictions: self.counters.evictions.load(Ordering::Relaxed),
            evicted_bytes: self.counters.evicted_bytes.load(Ordering::Relaxed),
            spills: self.counters.spills.load(Ordering::Relaxed),
            spilled_bytes: self.counters.spilled_bytes.load(Ordering::Relaxed),
            restores: self.counters.restores.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn recommendations(&self) -> Recommendations {
        let survey = self.names.survey();
        let records = &survey.records;
        let mut largest_tensors: Vec<(String, u64)> =
            records.iter().map(|record| (record.name().to_owned(), record.layout.size_bytes() as u64)).collect();
        largest_tensors.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        largest_tensors.truncate(LISTED);
        let mut low_reference_tensors: Vec<(String, u64)> = records
            .iter()
            .map(|record| (record.name().to_owned(), record.leases.total()))
            .filter(|(_, leases)| *leases <= 1)
            .collect();
        low_reference_tensors.sort_by(|a, b| a.1.cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
        low_reference_tensors.truncate(LISTED);
        let savings = savings(records);
        let stats = self.stats_of(records);
        Recommendations {
            largest_tensors,
            low_reference_tensors,
            sharing_opportunities: stats.sharing_opportunities,
            total_memory_mb: self.devices.used() as f64 / MIB,
            potential_savings_mb: savings as f64 / MIB,
            cache_efficiency: stats.hit_rate,
        }
    }

    pub(crate) fn diagnostics(&self) -> Diagnostics {
        let now = self.now;
        let info = |record: &Arc<Record>| TensorInfo {
            name: record.name().to_owned(),
            version: record.id.version,
            dtype: record.layout.dtype().to_string(),
            shape: record.layout.shape().to_vec(),
            bytes: record.layout.size_bytes() as u64,
            device: record.device().to_string(),
            memory: record.segment.kind().to_string(),
            kind: record.kind.name().to_owned(),
            space: record.space().map(|space| space.to_string()),
            producer: record.producer().to_owned(),
            holders: holders(record),
            age_seconds: now.saturating_sub(record.created).as_secs_f64(),
            hits: record.leases.hits(),
            cached: record.is_retained(),
            member_count: record.members().map_or(0, |members| members.len()),
        };
        Diagnostics {
            tensors: self.names.survey().records.iter().map(info).collect(),
            copies: self.counters.copies.totals(),
            recent_copies: self.counters.copies.recent(now),
            cache_errors: self.counters.cache_errors.load(Ordering::Relaxed),
            last_cache_error: lock(&self.counters.last_cache_error).clone(),
        }
    }
}

/// The bytes of the tensors if each holder had a copy, and the bytes of the copies that sharing avoids.
fn holder_copies(records: &[Arc<Record>]) -> (u64, u64) {
    records.iter().fold((0, 0), |(unshared, saved), record| {
        let (bytes, holders) = (record.layout().size_bytes() as u64, record.holders().len() as u64);
        (unshared + bytes * holders.max(1), saved + bytes * holders.saturating_sub(1))
    })
}

/// The tensors without leases by producer, the most bytes first.
fn kept(records: &[Arc<Record>]) -> Vec<KeptTensors> {
    let mut producers: BTreeMap<&str, KeptTensors> = BTreeMap::new();
    for record in records.iter().filter(|record| record.leases.total() == 0) {
        let kept = producers.entry(record.producer()).or_default();
        kept.tensors += 1;
        kept.bytes += record.layout().size_bytes() as u64;
    }
    let mut kept: Vec<_> =
        producers.into_iter().map(|(name, kept)| KeptTensors { producer: name.to_owned(), ..kept }).collect();
    kept.sort_by_key(|kept| std::cmp::Reverse(kept.bytes));
    kept
}

fn device_stats(budget: &Arc<Budget>, records: &[Arc<Record>]) -> DeviceStats {
    let is_there = |record: &&Arc<Record>| Arc::ptr_eq(record.charge.segment().budget(), budget);
    DeviceStats {
        device: budget.device().to_string(),
        tensors: records.iter().filter(is_there).count(),
        memory_usage_bytes: budget.used(),
        max_memory_bytes: limit(budget),
        peak_memory_bytes: budget.peak(),
    }
}

fn limit(budget: &Budget) -> Option<u64> {
    Some(budget.max()).filter(|&max| max != u64::MAX)
}

/// The bytes that [`optimize`](crate::MemoryControl::optimize) would free, and those of tensors that stay with the identity of another one that stays.
fn savings(records: &[Arc<Record>]) -> u64 {
    let unleased = candidates(records.iter().filter(|record| record.leases.is_empty()).cloned().collect());
    let freed: BTreeSet<TensorId> =
        unleased.iter().flat_map(|candidate| &candidate.records).map(|record| record.id).collect();
    let mut seen: BTreeSet<ContentHash> = BTreeSet::new();
    let repeated = records.iter().filter(|record| {
        !freed.contains(&record.id) && record.known_identity().is_some_and(|identity| !seen.insert(identity))
    });
    unleased
        .iter()
        .map(|candidate| candidate.bytes)
        .chain(repeated.map(|record| record.layout.size_bytes() as u64))
        .sum()
}

fn holders(record: &Record) -> BTreeMap<String, u32> {
    record.leases.holders().into_iter().map(|(holder, count)| (holder.name().to_owned(), count)).collect()
}

/// Kinds with two or more leased tensors and two or more holders: these holders may share a tensor if its space is
/// equal. Holders of one tensor share it already. Weights and `other` are left out.
fn opportunities(records: &[Arc<Record>]) -> BTreeMap<String, Vec<String>> {
    let mut by_kind: BTreeMap<&str, (usize, BTreeSet<String>)> = BTreeMap::new();
    for record in records.iter().filter(|record| !matches!(record.kind, Kind::Weight | Kind::Other)) {
        let held = holders(record);
        if !held.is_empty() {
            let (tensors, holders) = by_kind.entry(record.kind.name()).or_default();
            *tensors += 1;
            holders.extend(held.into_keys());
        }
    }
    by_kind.retain(|_, (tensors, holders)| *tensors > 1 && holders.len() > 1);
    by_kind.into_iter().map(|(kind, (_, holders))| (kind.to_owned(), holders.into_iter().collect())).collect()
}
