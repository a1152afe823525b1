//! Results that are kept for equal calls.

use crate::{Cache, Value};
use cotensor_core::ContentHash;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// The results of one function, by their calls' contents.
pub(super) struct Results {
    options: Cache,
    kept: HashMap<ContentHash, Kept>,
    /// By when they were used.
    used: BTreeMap<u64, ContentHash>,
    turn: u64,
}

struct Kept {
    value: Arc<Value>,
    until: Duration,
    used: u64,
}

impl Results {
    pub(super) fn new(options: Cache) -> Self {
        Self { options, kept: HashMap::new(), used: BTreeMap::new(), turn: 0 }
    }

    /// The result of the call `key`, if it is kept at the time `now`.
    pub(super) fn get(&mut self, key: &ContentHash, now: Duration) -> Option<Arc<Value>> {
        let kept = self.kept.get_mut(key)?;
        if kept.until <= now {
            self.used.remove(&kept.used);
            self.kept.remove(key);
            return None;
        }
        self.turn += 1;
        self.used.remove(&kept.used);
        self.used.insert(self.turn, *key);
        kept.used = self.turn;
        Some(Arc::clone(&kept.value))
    }

    /// Keeps a result. What has to go for it is returned, to be dropped outside of locks.
    pub(super) fn insert(&mut self, key: ContentHash, value: Arc<Value>, now: Duration) -> Vec<Arc<Value>> {
        let mut gone = Vec::new();
        if self.options.capacity == 0 {
            return gone;
        }
        if let Some(before) = self.kept.remove(&key) {
            self.used.remove(&before.used);
            gone.push(before.value);
        }
        while self.kept.len() >= self.options.capacity {
            let Some((_, oldest)) = self.used.pop_first() else { break };
            gone.extend(self.kept.remove(&oldest).map(|kept| kept.value));
        }
        self.turn += 1;
        self.used.insert(self.turn, key);
        self.kept.insert(key, Kept { value, until: now.saturating_add(self.options.ttl), used: self.turn });
        gone
    }

    /// Takes out what is too old at the time `now`.
    pub(super) fn sweep(&mut self, now: Duration) -> Vec<Arc<Value>> {
        let old: Vec<ContentHash> =
            self.kept.iter().filter(|(_, kept)| kept.until <= now).map(|(key, _)| *key).collect();
        let mut gone = Vec::new();
        for key in old {
            if let Some(kept) = self.kept.remove(&key) {
                self.used.remove(&kept.used);
                gone.push(kept.value);
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_expire_and_least_recently_used_is_evicted() {
        let mut results = Results::new(Cache { ttl: Duration::from_secs(10), capacity: 2 });
        let key = |name: &str| ContentHash::of(name.as_bytes());
        let (at, value) = (Duration::from_secs, || Arc::new(Value::Int(1)));
        results.insert(key("a"), value(), at(0));
        results.insert(key("b"), value(), at(1));
        assert!(results.get(&key("a"), at(2)).is_some());
        assert_eq!(results.insert(key("c"), value(), at(3)).len(), 1, "the one that was used longest ago");
        assert!(results.get(&key("b"), at(3)).is_none() && results.get(&key("a"), at(3)).is_some());
        assert!(results.get(&key("a"), at(10)).is_none(), "ten seconds old");
        assert_eq!(results.sweep(at(13)).len(), 1);
        assert!(results.kept.is_empty() && results.used.is_empty());
        let mut none = Results::new(Cache { ttl: Duration::from_secs(10), capacity: 0 });
        none.insert(key("a"), value(), at(0));
        assert!(none.get(&key("a"), at(0)).is_none());
    }
}
