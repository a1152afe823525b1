use super::open_model::{Model, StageSource};
use crate::engine::{EngineOptions, Engines};
use crate::graph::Graph;
use crate::graph::key::space_of;
use crate::quantize::GraphReport;
use crate::stage::{RunsOn, Sharing, Stage};
use crate::weights::{HashedWeights, StoredCodes};
use cotensor_core::{ContentHash, Kind, Result, Space};
use cotensor_hub::{Hub, ModelId};
use cotensor_memory::process::check_memory;
use cotensor_store::Store;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Instant;

/// A store, an engine and the models that are open over them. Each model is loaded once.
pub struct Runtime {
    store: Arc<dyn Store>,
    engines: Engines,
    hub: Arc<Hub>,
    models: Mutex<HashMap<FolderVariant, Weak<Model>>>,
    /// Loaded graphs by space: two folders with equal content load one graph.
    stages: Mutex<HashMap<(Space, String), Weak<Stage>>>,
    observer: OnceLock<LoadObserver>,
    memory: OnceLock<MemoryCheck>,
}

/// Answers an error when the process has fewer bytes left.
type MemoryCheck = fn(u64) -> Result<()>;

/// A model's folder, and the variant of its graphs; `None` for any.
type FolderVariant = (PathBuf, Option<String>);

/// Called with the role and the model when a stage begins to load.
type LoadObserver = Box<dyn Fn(&str, &str) + Send + Sync>;

/// Where a graph is from.
pub(crate) struct Origin<'a> {
    /// The producer of its weights: the model.
    pub(crate) producer: &'a str,
    /// What is known of its quantized weights.
    pub(crate) report: Option<&'a GraphReport>,
}

impl Runtime {
    /// A runtime over `store` that runs each graph on the first of `engines` that supports it. Models are found by the hub
    /// of the environment.
    pub fn new(store: Arc<dyn Store>, engines: impl Into<Engines>) -> Arc<Self> {
        Self::with_hub(store, engines, Hub::from_env())
    }

    /// As [`new`](Self::new), with another hub.
    pub fn with_hub(store: Arc<dyn Store>, engines: impl Into<Engines>, hub: Hub) -> Arc<Self> {
        Self::with_shared_hub(store, engines.into(), Arc::new(hub))
    }

    fn with_shared_hub(store: Arc<dyn Store>, engines: Engines, hub: Arc<Hub>) -> Arc<Self> {
        let (models, stages) = (Mutex::default(), Mutex::default());
        let (observer, memory) = (OnceLock::new(), OnceLock::new());
        Arc::new(Self { store, engines, hub, models, stages, observer, memory })
    }

    /// A runtime over `store` with the engines of [`Engines::auto`]. `threads` is the number of threads of the engine;
    /// `None` lets the engine choose. Over a client of the daemon, weights and results are shared with every process
    /// that uses the daemon.
    pub fn over(store: Arc<dyn Store>, threads: Option<usize>) -> Arc<Self> {
        Self::new(store, Engines::auto(threads))
    }

    /// As [`over`](Self::over) with the engine of this name; without a name, as [`Engines::of_environment`].
    ///
    /// # Errors
    /// As [`Engines::open`].
    pub fn with_engine(
        store: Arc<dyn Store>,
        engine: Option<&str>,
        options: impl Into<EngineOptions>,
    ) -> Result<Arc<Self>> {
        let options = options.into();
        let engines = match engine {
            Some(name) => Engines::open(name, options),
            None => Engines::of_environment(options),
        };
        Ok(Self::new(store, engines?))
    }

    /// A runtime with other engines over the same store and hub. Models that are open here stay as they are, and are opened anew there.
    pub fn with_engines(&self, engines: Engines) -> Arc<Self> {
        let next = Self::with_shared_hub(Arc::clone(&self.store), engines, Arc::clone(&self.hub));
        if let Some(check) = self.memory.get() {
            next.limit_memory(*check);
        }
        next
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The engines, best first.
    pub fn engines(&self) -> &Engines {
        &self.engines
    }

    /// The hub that finds models by name.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Sets the observer of loads: it is called with the role and the model when a stage begins to load. A second call
    /// has no effect.
    pub fn observe_loads(&self, observer: impl Fn(&str, &str) + Send + Sync + 'static) {
        // The first observer stays.
        let _ = self.observer.set(Box::new(observer));
    }

    /// Sets the check of memory before a run that needs much: it is called with the bytes, and answers `OverBudget` when fewer
    /// are left. Without it, no run is refused. A second call has no effect.
    pub fn limit_memory(&self, check: fn(u64) -> Result<()>) {
        // The first check stays.
        let _ = self.memory.set(check);
    }

    /// As [`limit_memory`](Self::limit_memory), with the memory that the system and the control groups of this process have left.
    pub fn limit_to_free_memory(&self) {
        self.limit_memory(|bytes| check_memory(usize::try_from(bytes).unwrap_or(usize::MAX)).map(drop));
    }

    /// # Errors
    /// That of the check of memory.
    pub(crate) fn check_memory(&self, bytes: u64) -> Result<()> {
        self.memory.get().map_or(Ok(()), |check| check(bytes))
    }

    /// The model `model`: the open copy, or a new one if none is open or the size or times of a file changed. An open
    /// model never changes. Graphs are loaded at their first use. `model` is a folder, or the id of a model on the hub
    /// (`openai/whisper-base`), whose files are downloaded if the hub's cache lacks them.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Invalid` or `Unsupported`; the error names file and field. By name, as [`Hub::find`].
    pub fn open(self: &Arc<Self>, model: &Path) -> Result<Arc<Model>> {
        self.open_relative(model, Path::new(""))
    }

    /// As [`open`](Self::open), with a folder that is relative to `base`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_relative(self: &Arc<Self>, model: &Path, base: &Path) -> Result<Arc<Model>> {
        self.open_variant(model, base, None)
    }

    /// As [`open_relative`](Self::open_relative), with the graphs of this variant, such as `fp16`; see
    /// [`Model::open_variant`].
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`Model::open_variant`].
    pub fn open_variant(self: &Arc<Self>, model: &Path, base: &Path, variant: Option<&str>) -> Result<Arc<Model>> {
        self.open_folder(&self.hub.folder(model, base, variant)?, variant)
    }

    /// As [`open_variant`](Self::open_variant), for the id of a model only.
    ///
    /// # Errors
    /// `Invalid` for a text that is no id; as [`Hub::find`] and [`Model::open_variant`].
    pub fn open_named(self: &Arc<Self>, id: &str, variant: Option<&str>) -> Result<Arc<Model>> {
        self.open_folder(&self.hub.find(&ModelId::parse(id)?, variant)?, variant)
    }

    fn open_folder(self: &Arc<Self>, folder: &Path, variant: Option<&str>) -> Result<Arc<Model>> {
        let path = crate::folder::canonical_folder(folder)?;
        let key = (path, variant.map(str::to_owned));
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(model) = models.get(&key).and_then(Weak::upgrade)
            && model.is_current()?
        {
            return Ok(model);
        }
        let model = Arc::new(Model::open_variant(&key.0, StageSource::Shared(Arc::clone(self)), variant)?);
        models.retain(|_, model| model.strong_count() > 0);
        models.insert(key, Arc::downgrade(&model));
        Ok(model)
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
                let mut stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
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
