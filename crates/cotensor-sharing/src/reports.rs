//! Reports of a manager: the store's reports with the manager's unpublished and private tensors.

use crate::manager::{Registry, TensorSharingManager};
use cotensor_store::LISTED;
use cotensor_store::{OptimizeReport, Recommendations, Stats, TensorInfo};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

impl TensorSharingManager {
    /// Frees every tensor without holders.
    pub fn optimize_memory_usage(&self) -> OptimizeReport {
        // Locked first: no tensor is registered or acquired between freeing and pruning.
        let mut registry = self.lock();
        let mut report = self.store.optimize();
        registry.prune();
        report.remaining_tensor_count += registry.unlisted().len();
        report
    }

    /// The store's counters, with this manager's lookups and its unpublished and private tensors. `models` omits views.
    /// `sharing_opportunities` are those of
    /// [`analyze_sharing_opportunities`](TensorSharingManager::analyze_sharing_opportunities).
    pub fn get_stats(&self) -> Stats {
        let mut registry = self.lock();
        registry.prune();
        let mut stats = self.store.stats();
        let (models, views) = registry.holders();
        // Views are holders, but not models.
        stats.models.retain(|name| models.contains(name) || !views.contains(name));
        stats.models = models.into_iter().chain(stats.models).collect::<BTreeSet<String>>().into_iter().collect();
        stats.total_models = stats.models.len();
        stats.total_tensors += registry.unlisted().len();
        stats.cache_hits += self.hits.load(Ordering::Relaxed);
        stats.cache_misses += self.misses.load(Ordering::Relaxed);
        let lookups = stats.cache_hits + stats.cache_misses;
        stats.hit_rate = if lookups == 0 { 0.0 } else { stats.cache_hits as f64 / lookups as f64 };
        stats.sharing_opportunities = registry.opportunities();
        stats
    }

    /// For every registered tensor that is not private, the consumers that do not hold it yet.
    pub fn analyze_sharing_opportunities(&self) -> BTreeMap<String, Vec<String>> {
        let mut registry = self.lock();
        registry.prune();
        registry.opportunities()
    }

    /// The store's recommendations, with the tensors, lookups and opportunities of this manager.
    pub fn get_optimization_recommendations(&self) -> Recommendations {
        let stats = self.get_stats();
        let mut found = self.store.recommendations();
        for info in self.lock().unlisted() {
            let acquires: u32 = info.holders.values().sum();
            if acquires <= 1 {
                found.low_reference_tensors.push((info.name.clone(), u64::from(acquires)));
            }
            found.largest_tensors.push((info.name, info.bytes));
        }
        found.largest_tensors.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        found.largest_tensors.truncate(LISTED);
        found.low_reference_tensors.sort_by(|a, b| a.1.cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
        found.low_reference_tensors.truncate(LISTED);
        Recommendations {
            sharing_opportunities: stats.sharing_opportunities,
            cache_efficiency: stats.hit_rate,
            ..found
        }
    }
}

impl Registry {
    /// The tensors that the store does not list because they are unpublished or private.
    pub(crate) fn unlisted(&self) -> Vec<TensorInfo> {
        self.tensors.values().filter_map(|registered| registered.tensor.0.unlisted()).collect()
    }

    /// The models that hold a tensor, and the holder names of views.
    fn holders(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let (mut models, mut views) = (BTreeSet::new(), BTreeSet::new());
        for registered in self.tensors.values() {
            models.extend(registered.tensor.holders().into_keys());
            views.extend(registered.tensor.0.read().view_holders().into_keys());
        }
        (models, views)
    }

    fn opportunities(&self) -> BTreeMap<String, Vec<String>> {
        let mut open = BTreeMap::new();
        for (name, registered) in &self.tensors {
            let missing = |model: &&String| !registered.tensor.is_held_by(model);
            let models: Vec<String> = registered.consumers.iter().filter(missing).cloned().collect();
            if !models.is_empty() && !registered.tensor.is_private() {
                open.insert(name.clone(), models);
            }
        }
        open
    }
}
