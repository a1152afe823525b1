//! The counters of a store.

use super::CopyLog;
use crate::Refusal;
use cotensor_core::Result;
use cotensor_core::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a store has done since it exists. Apart from the fields of each lookup, so that counting does not slow lookups down.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) claim_hits: AtomicU64,
    pub(crate) claim_misses: AtomicU64,
    pub(crate) evictions: AtomicU64,
    pub(crate) evicted_bytes: AtomicU64,
    pub(crate) spills: AtomicU64,
    pub(crate) spilled_bytes: AtomicU64,
    pub(crate) restores: AtomicU64,
    pub(crate) refused: [AtomicU64; Refusal::ALL.len()],
    pub(crate) copies: CopyLog,
    pub(crate) cache_errors: AtomicU64,
    pub(crate) last_cache_error: Mutex<Option<String>>,
}

impl Counters {
    /// The answer of the cache. The store works without it, so its errors are only counted for the diagnostics.
    pub(crate) fn unless_cache_fails<T>(&self, answer: Result<T>) -> Option<T> {
        answer
            .inspect_err(|error| {
                self.cache_errors.fetch_add(1, Ordering::Relaxed);
                *lock(&self.last_cache_error) = Some(error.to_string());
            })
            .ok()
    }
}
