use super::batches::PendingEmbeddings;
use super::embed::{EmbedOptions, Embedded, TextsError};
use super::model::{LoadedModel, ModelInfo, ModelKey, Score};
use cotensor_core::sync::{lock, read, write};
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_model::Runtime;
use cotensor_model::engine::{EngineInfo, add_libraries};
use cotensor_model::family::AnswerKind;
use cotensor_model::pipeline::EmbedderInput;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, Weak};
use std::time::{Duration, SystemTime};

/// The most models that are loaded at a time.
const MODELS_MAX: usize = 64;
/// The interval between two checks for models without requests.
const UNLOAD_INTERVAL: Duration = Duration::from_secs(1);

/// The answers of tasks with endpoints of their own.
const SERVED: [AnswerKind; 2] = [AnswerKind::Sentence, AnswerKind::Scores];
/// The file without which no text can be read.
const TOKENIZER_FILE: &str = "tokenizer.json";

/// How models are served.
#[derive(Clone, Copy, Debug)]
pub struct ServingOptions {
    /// A model is unloaded after this time without requests. `None`: never.
    pub model_ttl: Option<Duration>,
    /// Whether embeddings are results in the store, which later requests of equal texts reuse.
    pub caches_results: bool,
    /// Called after requests when none has arrived for a second, such as to return memory to the system.
    pub on_idle: Option<fn()>,
}

/// A model in the hub's cache, for lists.
pub(crate) struct InstalledModel {
    pub(crate) name: String,
    /// When its files came, in seconds since 1970.
    pub(crate) created: u64,
}

impl Default for ServingOptions {
    fn default() -> Self {
        Self { model_ttl: Some(Duration::from_secs(600)), caches_results: true, on_idle: None }
    }
}

/// The loaded models. A model is loaded at its first request, once for all concurrent ones, and unloaded after a time without
/// requests.
pub struct LoadedModels {
    /// Replaced by one with a better engine; models that are loaded stay on theirs until their next request.
    runtime: RwLock<(Arc<Runtime>, EngineInfo)>,
    options: ServingOptions,
    models: Mutex<HashMap<ModelKey, Arc<LoadedModel>>>,
    /// The number of times at which a model was opened, loaded or unloaded, or a request ended.
    uses: Arc<AtomicU64>,
    /// Locked while a library is loaded.
    adding: Mutex<()>,
}

impl LoadedModels {
    /// No model yet. A thread unloads models as long as the result exists.
    ///
    /// # Errors
    /// `Io` when the thread cannot be started.
    pub fn new(runtime: Arc<Runtime>, options: ServingOptions) -> Result<Arc<Self>> {
        let engine = runtime.engines().describe();
        let runtime = RwLock::new((runtime, engine));
        let models = Arc::new(Self {
            runtime,
            options,
            models: Mutex::default(),
            uses: Arc::default(),
            adding: Mutex::default(),
        });
        let weak = Arc::downgrade(&models);
        let thread = std::thread::Builder::new().name("unload".to_owned()).spawn(move || unload_idle(&weak));
        thread.map_err(|error| Error::io("starting the thread that unloads models", &error))?;
        Ok(models)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ModelKey, Arc<LoadedModel>>> {
        lock(&self.models)
    }

    fn runtime(&self) -> Arc<Runtime> {
        Arc::clone(&read(&self.runtime).0)
    }

    /// The engine that models get.
    pub fn engine(&self) -> EngineInfo {
        read(&self.runtime).1.clone()
    }

    /// Adds libraries of the fast engine. If one of them can be loaded and no better engine was in use, models get it from their next request
    /// on: as after a change of their files, requests that run and references keep what they have. Blocks while a library is loaded.
    pub fn add_libraries(&self, libraries: &[PathBuf]) -> EngineInfo {
        add_libraries(libraries);
        // One library at a time; requests continue meanwhile.
        let _adding = lock(&self.adding);
        let current = self.runtime();
        if let Some(engines) = current.engines().again() {
            let engine = engines.describe();
            let next =
                if engine.name == current.engines().first().name() { current } else { current.with_engines(engines) };
            *write(&self.runtime) = (next, engine);
        }
        self.engine()
    }

    /// The model of this name: an absolute path of a folder, or a name on the hub. Blocks while it is downloaded. A model whose
    /// files have changed is another one.
    ///
    /// # Errors
    /// `OverBudget` when too many are in use; as [`Runtime::open_variant`].
    pub(crate) fn get(&self, name: &str, variant: Option<&str>) -> Result<Arc<LoadedModel>> {
        let key = ModelKey::new(name, variant);
        self.count_use();
        // The copy that is open, unless a file changed.
        let current = key.open(&self.runtime())?;
        let mut models = self.lock();
        let known = models.get(&key);
        if let Some(loaded) = known.filter(|loaded| Arc::ptr_eq(&loaded.model, &current)) {
            return Ok(Arc::clone(loaded));
        }
        let ttl = known.map_or(self.options.model_ttl, |loaded| loaded.ttl());
        let mut gone = None;
        if known.is_none() && models.len() >= MODELS_MAX {
            let idle = models.iter().filter_map(|(key, loaded)| Some((idle_time(loaded)?, key.clone())));
            let longest = idle.max_by_key(|(time, _)| *time).ok_or_else(|| {
                let message = format!("{MODELS_MAX} models are in use or pinned: unload one");
                Error::new(ErrorKind::OverBudget, message)
            })?;
            gone = models.remove(&longest.1);
        }
        let loaded = Arc::new(LoadedModel::new(key.clone(), current, ttl, Arc::clone(&self.uses)));
        let replaced = models.insert(key, Arc::clone(&loaded));
        drop(models);
        // Their memory is released without the lock.
        drop((gone, replaced));
        Ok(loaded)
    }

    /// Loads the graphs of a model and keeps it for `ttl` after its last request; for ever with `Some(None)`.
    ///
    /// # Errors
    /// As [`Model::load_stages`](cotensor_model::model::Model::load_stages).
    pub(crate) fn load(&self, model: &Arc<LoadedModel>, ttl: Option<Option<Duration>>) -> Result<ModelInfo> {
        model.load(&self.runtime(), self.options.caches_results).inspect_err(|_| self.forget_empty(model))?;
        if let Some(ttl) = ttl {
            model.keep_for(ttl);
        }
        model.touch();
        // The graphs may take longer to load than the interval in which the use of `get` is reported.
        self.count_use();
        Ok(model.info(false))
    }

    /// Unloads the model of this name in all variants; every model without a name. Requests that run continue. Returns the names.
    pub(crate) fn unload(&self, name: Option<&str>) -> Vec<String> {
        let (mut gone, mut names) = (Vec::new(), Vec::new());
        self.lock().retain(|key, loaded| {
            let stays = name.is_some_and(|name| name != key.name);
            if !stays {
                names.push(key.name.clone());
                gone.push(Arc::clone(loaded));
            }
            stays
        });
        drop(gone);
        self.count_use();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// As [`embed_now`](Self::embed_now), without blocking.
    ///
    /// # Errors
    /// As [`embed_now`](Self::embed_now).
    pub(crate) async fn embed(
        self: &Arc<Self>,
        name: &str,
        texts: Vec<EmbedderInput>,
        options: EmbedOptions,
    ) -> Result<Embedded, TextsError> {
        let (this, name, submitted) = (Arc::clone(self), name.to_owned(), options.clone());
        let (answer, loaded) = blocking(move || this.submit(&name, texts, &submitted)).await?;
        let _request = loaded.request();
        let embeddings = answer.await.unwrap_or_else(|_| Err(failed()))?;
        Embedded::of(&loaded.model, embeddings, &options)
    }

    /// The embeddings of texts, together with those of concurrent requests. Loads the model if needed, and blocks.
    ///
    /// # Errors
    /// `OverBudget` when too many models are in use; `Invalid` for more dimensions than the model has, and for a text that is too
    /// long if the request refuses it; as [`Runtime::open_variant`] and
    /// [`TextEmbedder::embed_each`](cotensor_model::pipeline::TextEmbedder::embed_each).
    pub fn embed_now(
        &self,
        name: &str,
        texts: Vec<EmbedderInput>,
        options: &EmbedOptions,
    ) -> Result<Embedded, TextsError> {
        let (answer, loaded) = self.submit(name, texts, options)?;
        let _request = loaded.request();
        let embeddings = answer.blocking_recv().unwrap_or_else(|_| Err(failed()))?;
        Embedded::of(&loaded.model, embeddings, options)
    }

    fn submit(
        &self,
        name: &str,
        texts: Vec<EmbedderInput>,
        options: &EmbedOptions,
    ) -> Result<(PendingEmbeddings, Arc<LoadedModel>)> {
        let loaded = self.get(name, options.variant.as_deref())?;
        let batches = loaded.batches(&self.runtime(), self.options.caches_results, options.pooling.as_deref());
        let batches = batches.inspect_err(|_| self.forget_empty(&loaded))?;
        Ok((batches.embed(texts, options.prompt_name.clone()), loaded))
    }

    /// The time without requests after which a model is unloaded, unless its own is set.
    pub(crate) fn model_ttl(&self) -> Option<Duration> {
        self.options.model_ttl
    }

    /// The score of each text for a query, in the order of the texts.
    ///
    /// # Errors
    /// `Unsupported` for a model that is not a reranker; as [`get`](Self::get) and
    /// [`run_user`](cotensor_model::pipeline::run_user).
    pub(crate) async fn rerank(self: &Arc<Self>, name: &str, query: String, texts: Vec<String>) -> Result<Vec<Score>> {
        let (this, name) = (Arc::clone(self), name.to_owned());
        blocking(move || {
            let loaded = this.get(&name, None)?;
            let _request = loaded.request();
            loaded.rerank(&this.runtime(), query, texts).inspect_err(|_| this.forget_empty(&loaded))
        })
        .await
    }

    /// The models in the hub's cache that a request can name without a download, if they embed or rank texts.
    ///
    /// # Errors
    /// As [`Hub::cached`](cotensor_model::Runtime::hub).
    pub(crate) async fn installed(self: &Arc<Self>) -> Result<Vec<InstalledModel>> {
        let this = Arc::clone(self);
        blocking(move || {
            let cached = this.runtime().hub().cached()?.into_iter();
            let served = cached.filter(|model| {
                model.family.as_ref().is_ok_and(|family| family.tasks().any(|task| SERVED.contains(&task.answer)))
                    && model.folder.join(TOKENIZER_FILE).is_file()
            });
            let created = |folder: &Path| {
                let time = std::fs::metadata(folder).and_then(|folder| folder.modified()).ok()?;
                Some(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs())
            };
            Ok(served
                .map(|model| InstalledModel { created: created(&model.folder).unwrap_or(0), name: model.name })
                .collect())
        })
        .await
    }

    /// The loaded models, by name.
    pub(crate) fn list(&self) -> Vec<ModelInfo> {
        let models: Vec<Arc<LoadedModel>> = self.lock().values().cloned().collect();
        // One reference is the table's, one is of this list.
        let mut list: Vec<ModelInfo> = models.iter().map(|model| model.info(Arc::strong_count(model) > 2)).collect();
        list.sort_by(|a, b| a.key.cmp(&b.key));
        list
    }

    fn count_use(&self) {
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    fn unload_idle(&self) {
        let mut gone = Vec::new();
        self.lock().retain(|_, loaded| {
            let expired = loaded.ttl().is_some_and(|ttl| idle_time(loaded).is_some_and(|idle| idle >= ttl));
            if expired {
                gone.push(Arc::clone(loaded));
            }
            !expired
        });
        if !gone.is_empty() {
            self.count_use();
        }
    }

    /// Removes a model of which nothing could be loaded, so that lists do not have it.
    fn forget_empty(&self, failed: &Arc<LoadedModel>) {
        let mut models = self.lock();
        // The table and this request hold it.
        if Arc::strong_count(failed) == 2
            && failed.model.loaded_stages().is_empty()
            && models.get(&failed.key).is_some_and(|known| Arc::ptr_eq(known, failed))
        {
            models.remove(&failed.key);
        }
    }
}

/// How long a model has had no request; `None` for one that is in use or pinned.
fn idle_time(model: &Arc<LoadedModel>) -> Option<Duration> {
    // Requests and references hold the model.
    (Arc::strong_count(model) == 1).then_some(())?;
    model.ttl().map(|_| model.idle())
}

fn unload_idle(models: &Weak<LoadedModels>) {
    // The uses at the last check, and those of which the end was reported.
    let (mut last, mut reported) = (0, 0);
    loop {
        std::thread::sleep(UNLOAD_INTERVAL);
        let Some(models) = models.upgrade() else { return };
        models.unload_idle();
        let uses = models.uses.load(Ordering::Relaxed);
        if uses == last && uses != reported {
            reported = uses;
            if let Some(on_idle) = models.options.on_idle {
                on_idle();
            }
        }
        last = uses;
    }
}

/// The error of a request that another thread ran, and whose round panicked.
fn failed() -> TextsError {
    Error::new(ErrorKind::Engine, "the model failed on this request").into()
}

/// Runs `work` on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let ended = |error: tokio::task::JoinError| Error::new(ErrorKind::Engine, format!("the model failed: {error}"));
    tokio::task::spawn_blocking(work).await.map_err(ended)?
}
