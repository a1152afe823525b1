//! Loading graphs as stages, with weights and results in a store.

use crate::engine::Engines;
use crate::graph::Graph;
use crate::graph::key::space_of;
use crate::quantized::GraphReport;
use crate::stage::{RunsOn, Sharing, Stage};
use crate::weights::{HashedWeights, StoredCodes};
use cotensor_core::sync::lock;
use cotensor_core::{ContentHash, Kind, Result, Space};
use cotensor_store::Store;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

/// A store, an engine and the graphs that are loaded over them. Graphs with equal content are loaded once.
pub struct StageLoader {
    store: Arc<dyn Store>,
    engines: Engines,
    /// Loaded graphs by space: two folders with equal content load one graph.
    stages: Mutex<HashMap<(Space, String), Weak<Stage>>>,
    observer: OnceLock<LoadObserver>,
    memory: OnceLock<MemoryCheck>,
}

/// Answers an error when the process has fewer bytes left.
type MemoryCheck = fn(u64) -> Result<()>;

/// Called with the role and the model when a stage begins to load.
pub(super) type LoadObserver = Box<dyn Fn(&str, &str) + Send + Sync>;

/// Where a graph is from.
pub(crate) struct Origin<'a> {
    /// The producer of its weights: the model.
    pub(crate) producer: &'a str,
    /// What is known of its quantized weights.
    pub(crate) report: Option<&'a GraphReport>,
}

impl StageLoader {
    pub(super) fn new(store: Arc<dyn Store>, engines: Engines) -> Self {
        let (stages, observer, memory) = (Mutex::default(), OnceLock::new(), OnceLock::new());
        Self { store, engines, stages, observer, memory }
    }

    /// A loader with other engines over the same store, with the same check of memory.
    pub(super) fn with_engines(&self, engines: Engines) -> Self {
        Self { memory: self.memory.clone(), ..Self::new(Arc::clone(&self.store), engines) }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The engines, best first.
    pub fn engines(&self) -> &Engines {
        &self.engines
    }

    /// Sets the observer of loads. The first one stays.
    pub(super) fn observe(&self, observer: LoadObserver) {
        let _ = self.observer.set(observer);
    }

    /// Sets the check of memory. The first one stays.
    pub(super) fn limit_memory(&self, check: MemoryCheck) {
        let _ = self.memory.set(check);
    }

    /// # Errors
    /// That of the check of memory.
    pub(crate) fn check_memory(&self, bytes: u64) -> Result<()> {
        self.memory.get().map_or(Ok(()), |check| check(bytes))
    }

    /// Loads `graph` as a stage with shared weights. `preprocessing` has the fingerprints of the preprocessing of its
    /// inputs; the load time counts from `start`. The weights have the producer and the errors of `origin`.
    pub(crate) fn load_stage(
        &self,
        role: &str,
        kind: Kind,
        mut graph: Graph,
        preprocessing: &[ContentHash],
        origin: &Origin<'_>,
        start: Instant,
    ) -> Result<Arc<Stage>> {
        let Origin { producer, report } = origin;
        if let Some(observer) = self.observer.get() {
            observer(role, producer.trim_start_matches("model:"));
        }
        let codes = StoredCodes::of(&graph, *report);
        self.engines.place(graph.has_codes(), |engine, reasons| {
            graph.check_repeatable()?;
            engine.check(&graph)?;
            engine.capabilities().fit(&mut graph);
            let weights = HashedWeights::of(&graph, &*self.store)?;
            let fingerprint = graph.fingerprint(weights.hashes());
            let space = space_of(fingerprint, preprocessing);
            let mut leases = None;
            loop {
                // The lock is held while the engine loads: a concurrent call waits for this copy and does not load its
                // own.
                let mut stages = lock(&self.stages);
                if let Some(stage) = stages.get(&(space, role.to_owned())).and_then(Weak::upgrade) {
                    return Ok(stage);
                }
                let loaded = match leases.take() {
                    Some(leases) => Some(engine.load(&graph, leases)?),
                    None => engine.load_derived(&graph, &weights, &fingerprint),
                };
                let Some(loaded) = loaded else {
                    drop(stages);
                    leases = Some(weights.lease_described(&self.store.holder(producer), producer, &codes)?);
                    continue;
                };
                let sizes = graph.weights().iter().map(|weight| weight.size_bytes());
                let sharing = Sharing {
                    store: Arc::clone(&self.store),
                    space,
                    engine: (engine.name(), engine.version()),
                    weights: weights.hashes().iter().copied().zip(sizes).collect(),
                    joins_rows: graph.joins_rows(),
                };
                let runs_on = RunsOn::new(&**engine, &*loaded, reasons);
                let stage = Stage::new(role, kind, graph.path(), loaded, Some(sharing), runs_on, start.elapsed());
                let stage = Arc::new(stage);
                stages.retain(|_, stage| stage.strong_count() > 0);
                stages.insert((space, role.to_owned()), Arc::downgrade(&stage));
                return Ok(stage);
            }
        })
    }

    /// The space of `graph` as a stage, without loading it.
    pub(crate) fn space(&self, mut graph: Graph, preprocessing: &[ContentHash]) -> Result<Space> {
        self.engines.place(graph.has_codes(), |engine, _| {
            engine.check(&graph)?;
            engine.capabilities().fit(&mut graph);
            let weights = HashedWeights::of(&graph, &*self.store)?;
            Ok(space_of(graph.fingerprint(weights.hashes()), preprocessing))
        })
    }
}
