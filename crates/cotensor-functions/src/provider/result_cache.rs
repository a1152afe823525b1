//! The result cache of one function.

use crate::{Cache, Value};
use cotensor_core::ContentHash;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Results by the content hashes of their calls. Evicts the least recently used result.
pub(super) struct ResultCache {
    options: Cache,
    results: HashMap<ContentHash, CachedResult>,
    /// Ordered by the last use.
    used: BTreeMap<u64, ContentHash>,
    /// The number of uses.
    uses: u64,
}

struct CachedResult {
    value: Arc<Value>,
    expires: Duration,
    used: u64,
}

impl ResultCache {
    pub(super) fn new(options: Cache) -> Self {
        Self { options, results: HashMap::new(), used: BTreeMap::new(), uses: 0 }
    }

    /// The result of the call `key`, unless it has expired at the time `now`.
    pub(super) fn get(&mut self, key: &ContentHash, now: Duration) -> Option<Arc<Value>> {
        let cached = self.results.get_mut(key)?;
        if cached.expires <= now {
            self.used.remove(&cached.used);
            self.results.remove(key);
            return None;
        }
        self.uses += 1;
        self.used.remove(&cached.used);
        self.used.insert(self.uses, *key);
        cached.used = self.uses;
        Some(Arc::clone(&cached.value))
    }

    /// Adds a result. Returns the results that it replaces, which the caller drops without a lock.
    pub(super) fn insert(&mut self, key: ContentHash, value: Arc<Value>, now: Duration) -> Vec<Arc<Value>> {
        let mut removed = Vec::new();
        if self.options.capacity == 0 {
            return removed;
        }
        removed.extend(self.remove(&key));
        while self.results.len() >= self.options.capacity {
            let Some((_, oldest)) = self.used.pop_first() else { break };
            removed.extend(self.results.remove(&oldest).map(|cached| cached.value));
        }
        self.uses += 1;
        self.used.insert(self.uses, key);
        let expires = now.saturating_add(self.options.ttl);
        self.results.insert(key, CachedResult { value, expires, used: self.uses });
        removed
    }

    /// Removes and returns the results that have expired at the time `now`.
    pub(super) fn sweep(&mut self, now: Duration) -> Vec<Arc<Value>> {
        let expired = self.results.iter().filter(|(_, cached)| cached.expires <= now);
        let expired: Vec<ContentHash> = expired.map(|(key, _)| *key).collect();
        expired.iter().filter_map(|key| self.remove(key)).collect()
    }

    fn remove(&mut self, key: &ContentHash) -> Option<Arc<Value>> {
        let removed = self.results.remove(key)?;
        self.used.remove(&removed.used);
        Some(removed.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_expire_and_least_recently_used_is_evicted() {
        let mut cache = ResultCache::new(Cache { ttl: Duration::from_secs(10), capacity: 2 });
        let key = |name: &str| ContentHash::of(name.as_bytes());
        let (at, value) = (Duration::from_secs, || Arc::new(Value::Int(1)));
        cache.insert(key("a"), value(), at(0));
        cache.insert(key("b"), value(), at(1));
        assert!(cache.get(&key("a"), at(2)).is_some());
        assert_eq!(cache.insert(key("c"), value(), at(3)).len(), 1, "the least recently used result");
        assert!(cache.get(&key("b"), at(3)).is_none() && cache.get(&key("a"), at(3)).is_some());
        assert!(cache.get(&key("a"), at(10)).is_none(), "ten seconds old");
        assert_eq!(cache.sweep(at(13)).len(), 1);
        assert!(cache.results.is_empty() && cache.used.is_empty());
        let mut disabled = ResultCache::new(Cache { ttl: Duration::from_secs(10), capacity: 0 });
        disabled.insert(key("a"), value(), at(0));
        assert!(disabled.get(&key("a"), at(0)).is_none());
    }
}
