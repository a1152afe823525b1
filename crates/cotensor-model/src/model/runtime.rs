use super::open_model::{Model, StageSource};
use super::stage_loader::StageLoader;
use crate::engine::{EngineOptions, Engines};
use cotensor_core::Result;
use cotensor_core::sync::lock;
use cotensor_hub::{Hub, ModelId};
use cotensor_memory::process::check_memory;
use cotensor_store::Store;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

/// A store, an engine and the models that are open over them. Each model is loaded once.
pub struct Runtime {
    loader: Arc<StageLoader>,
    hub: Arc<Hub>,
    models: Mutex<HashMap<FolderVariant, Weak<Model>>>,
}

/// A model's folder, and the variant of its graphs; `None` for any.
type FolderVariant = (PathBuf, Option<String>);

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
        Self::with_loader(StageLoader::new(store, engines), hub)
    }

    fn with_loader(loader: StageLoader, hub: Arc<Hub>) -> Arc<Self> {
        Arc::new(Self { loader: Arc::new(loader), hub, models: Mutex::default() })
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
        Self::with_loader(self.loader.with_engines(engines), Arc::clone(&self.hub))
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        self.loader.store()
    }

    /// The engines, best first.
    pub fn engines(&self) -> &Engines {
        self.loader.engines()
    }

    /// The loader of the graphs of all models.
    pub fn loader(&self) -> &Arc<StageLoader> {
        &self.loader
    }

    /// The hub that finds models by name.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Sets the observer of loads: it is called with the role and the model when a stage begins to load. A second call
    /// has no effect.
    pub fn observe_loads(&self, observer: impl Fn(&str, &str) + Send + Sync + 'static) {
        self.loader.observe(Box::new(observer));
    }

    /// Sets the check of memory before a run that needs much: it is called with the bytes, and answers `OverBudget` when fewer
    /// are left. Without it, no run is refused. A second call has no effect.
    pub fn limit_memory(&self, check: fn(u64) -> Result<()>) {
        self.loader.limit_memory(check);
    }

    /// As [`limit_memory`](Self::limit_memory), with the memory that the system and the control groups of this process have left.
    pub fn limit_to_free_memory(&self) {
        self.limit_memory(|bytes| check_memory(usize::try_from(bytes).unwrap_or(usize::MAX)).map(drop));
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
    /// `Invalid` for a text that is not an id; as [`Hub::find`] and [`Model::open_variant`].
    pub fn open_named(self: &Arc<Self>, id: &str, variant: Option<&str>) -> Result<Arc<Model>> {
        self.open_folder(&self.hub.find(&ModelId::parse(id)?, variant)?, variant)
    }

    fn open_folder(self: &Arc<Self>, folder: &Path, variant: Option<&str>) -> Result<Arc<Model>> {
        let path = crate::folder::canonical_folder(folder)?;
        let key = (path, variant.map(str::to_owned));
        let mut models = lock(&self.models);
        if let Some(model) = models.get(&key).and_then(Weak::upgrade)
            && model.is_current()?
        {
            return Ok(model);
        }
        let model = Arc::new(Model::open_variant(&key.0, StageSource::Shared(Arc::clone(&self.loader)), variant)?);
        models.retain(|_, model| model.strong_count() > 0);
        models.insert(key, Arc::downgrade(&model));
        Ok(model)
    }
}
