use super::batches::PendingEmbeddings;
use super::model::{LoadedModel, ModelInfo, ModelKey};
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_model::Runtime;
use cotensor_model::pipeline::TextEmbedding;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// The most models that are loaded at a time.
const MODELS_MAX: usize = 64;
/// The interval between two checks for models without requests.
const UNLOAD_INTERVAL: Duration = Duration::from_secs(1);

/// How models are served.
#[derive(Clone, Copy, Debug)]
pub struct ServingOptions {
    /// A model is unloaded after this time without requests; never without one.
    pub model_ttl: Option<Duration>,
    /// Whether embeddings are results in the store, which later requests of equal texts reuse.
    pub caches_results: bool,
}

impl Default for ServingOptions {
    fn default() -> Self {
        Self { model_ttl: Some(Duration::from_secs(600)), caches_results: true }
    }
}

/// The loaded models. A model is loaded at its first request, once for all concurrent ones, and unloaded after a time without
/// requests.
pub struct LoadedModels {
    runtime: Arc<Runtime>,
    options: ServingOptions,
    models: Mutex<HashMap<ModelKey, Arc<Slot>>>,
}

/// The place of a model, which its first request fills.
type Slot = OnceLock<Result<Arc<LoadedModel>>>;

impl LoadedModels {
    /// No model yet. A thread unloads models as long as the result exists.
    ///
    /// # Errors
    /// `Io` when the thread cannot be started.
    pub fn new(runtime: Arc<Runtime>, options: ServingOptions) -> Result<Arc<Self>> {
        let models = Arc::new(Self { runtime, options, models: Mutex::default() });
        let weak = Arc::downgrade(&models);
        let thread = std::thread::Builder::new().name("unload".to_owned()).spawn(move || unload_idle(&weak));
        thread.map_err(|error| Error::io("starting the thread that unloads models", &error))?;
        Ok(models)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ModelKey, Arc<Slot>>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model of this name: an absolute path of a folder, or a name on the hub. Blocks while it is loaded. A model whose files
    /// have changed is loaded again.
    ///
    /// # Errors
    /// `OverBudget` when too many are in use; as [`Runtime::open_variant`].
    pub(crate) fn get(&self, name: &str, variant: Option<&str>) -> Result<Arc<LoadedModel>> {
        let key = ModelKey::new(name, variant);
        let slot = self.slot(&key)?;
        let open = || {
            let model = key.open(&self.runtime)?;
            Ok(Arc::new(LoadedModel::new(key.clone(), model, self.options.model_ttl)))
        };
        let mut loaded = slot.get_or_init(open).clone().inspect_err(|_| self.forget(&key, &slot))?;
        let current = key.open(&self.runtime)?;
        if !Arc::ptr_eq(&current, &loaded.model) {
            loaded = Arc::new(LoadedModel::new(key.clone(), current, loaded.ttl()));
            self.lock().insert(key, Arc::new(OnceLock::from(Ok(Arc::clone(&loaded)))));
        }
        Ok(loaded)
    }

    fn slot(&self, key: &ModelKey) -> Result<Arc<Slot>> {
        let mut models = self.lock();
        if let Some(slot) = models.get(key) {
            return Ok(Arc::clone(slot));
        }
        let mut evicted = None;
        if models.len() >= MODELS_MAX {
            let idle = |(key, slot): (&ModelKey, &Arc<Slot>)| Some((idle_time(slot)?, key.clone()));
            let longest = models.iter().filter_map(idle).max_by_key(|(time, _)| *time).ok_or_else(|| {
                let message = format!("{MODELS_MAX} models are in use or pinned: unload one");
                Error::new(ErrorKind::OverBudget, message)
            })?;
            evicted = models.remove(&longest.1);
        }
        let slot = Arc::<Slot>::default();
        models.insert(key.clone(), Arc::clone(&slot));
        drop(models);
        // Its memory is released without the lock.
        drop(evicted);
        Ok(slot)
    }

    /// Loads the graphs of a model and keeps it for `ttl` after its last request; for ever with `Some(None)`.
    ///
    /// # Errors
    /// As [`Model::load_stages`](cotensor_model::model::Model::load_stages).
    pub(crate) fn load(&self, model: &LoadedModel, ttl: Option<Option<Duration>>) -> Result<ModelInfo> {
        if let Some(ttl) = ttl {
            model.keep_for(ttl);
        }
        model.load(&self.runtime, self.options.caches_results)?;
        model.touch();
        Ok(model.info(false))
    }

    /// Unloads the model of this name in all variants; every model without a name. Requests that run continue. Returns the names.
    pub(crate) fn unload(&self, name: Option<&str>) -> Vec<String> {
        let (mut gone, mut names) = (Vec::new(), Vec::new());
        self.lock().retain(|key, slot| {
            let stays = name.is_some_and(|name| name != key.name);
            if !stays {
                names.push(key.name.clone());
                gone.push(Arc::clone(slot));
            }
            stays
        });
        drop(gone);
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The embeddings of texts, together with those of concurrent requests. Loads the model if needed.
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`TextEmbedder::embed`](cotensor_model::pipeline::TextEmbedder::embed).
    pub(crate) async fn embed(
        self: &Arc<Self>,
        name: &str,
        texts: Vec<String>,
        prompt_name: Option<String>,
    ) -> Result<Vec<TextEmbedding>> {
        let (this, name) = (Arc::clone(self), name.to_owned());
        let (answer, loaded) = blocking(move || this.submit(&name, None, texts, prompt_name)).await?;
        let answer = answer.await.unwrap_or_else(|_| Err(failed()));
        loaded.touch();
        answer
    }

    /// As [`embed`](Self::embed), on a thread that may block.
    ///
    /// # Errors
    /// As [`embed`](Self::embed).
    pub(crate) fn embed_now(
        &self,
        name: &str,
        variant: Option<&str>,
        texts: Vec<String>,
        prompt_name: Option<String>,
    ) -> Result<Vec<TextEmbedding>> {
        let (answer, loaded) = self.submit(name, variant, texts, prompt_name)?;
        let answer = answer.blocking_recv().unwrap_or_else(|_| Err(failed()));
        loaded.touch();
        answer
    }

    fn submit(
        &self,
        name: &str,
        variant: Option<&str>,
        texts: Vec<String>,
        prompt_name: Option<String>,
    ) -> Result<(PendingEmbeddings, Arc<LoadedModel>)> {
        let loaded = self.get(name, variant)?;
        loaded.count();
        let pending = loaded.batches(&self.runtime, self.options.caches_results)?.embed(texts, prompt_name);
        Ok((pending, loaded))
    }

    /// The time without requests after which a model is unloaded, unless its own is set.
    pub(crate) fn model_ttl(&self) -> Option<Duration> {
        self.options.model_ttl
    }

    /// The score of each text for a query, in the order of the texts.
    ///
    /// # Errors
    /// `Unsupported` for a model that is no reranker; as [`get`](Self::get) and
    /// [`run_user`](cotensor_model::pipeline::run_user).
    pub(crate) async fn rerank(self: &Arc<Self>, name: &str, query: String, texts: Vec<String>) -> Result<Vec<f32>> {
        let (this, name) = (Arc::clone(self), name.to_owned());
        blocking(move || {
            let loaded = this.get(&name, None)?;
            loaded.count();
            let scores = loaded.rerank(&this.runtime, query, texts);
            loaded.touch();
            scores
        })
        .await
    }

    /// The loaded models, by name.
    pub(crate) fn list(&self) -> Vec<ModelInfo> {
        let models: Vec<Arc<LoadedModel>> = self.lock().values().filter_map(|slot| loaded(slot).cloned()).collect();
        // One reference is the table's, one is of this list.
        let mut list: Vec<ModelInfo> = models.iter().map(|model| model.info(Arc::strong_count(model) > 2)).collect();
        list.sort_by(|a, b| a.key.cmp(&b.key));
        list
    }

    fn unload_idle(&self) {
        let mut gone = Vec::new();
        self.lock().retain(|_, slot| {
            let expired = loaded(slot).is_some_and(|model| model.ttl().is_some_and(|ttl| model.idle() >= ttl));
            let stays = !expired || idle_time(slot).is_none();
            if !stays {
                gone.push(Arc::clone(slot));
            }
            stays
        });
    }

    fn forget(&self, key: &ModelKey, failed: &Arc<Slot>) {
        let mut models = self.lock();
        if models.get(key).is_some_and(|known| Arc::ptr_eq(known, failed)) {
            models.remove(key);
        }
    }
}

fn loaded(slot: &Slot) -> Option<&Arc<LoadedModel>> {
    slot.get()?.as_ref().ok()
}

/// How long a model has had no request; `None` for one that is in use or pinned.
fn idle_time(slot: &Slot) -> Option<Duration> {
    // Requests and references hold the model.
    let model = loaded(slot).filter(|model| Arc::strong_count(model) == 1)?;
    model.ttl().map(|_| model.idle())
}

fn unload_idle(models: &Weak<LoadedModels>) {
    loop {
        std::thread::sleep(UNLOAD_INTERVAL);
        let Some(models) = models.upgrade() else { return };
        models.unload_idle();
    }
}

/// The error for a request whose thread ended.
fn failed() -> Error {
    Error::new(ErrorKind::Engine, "the model failed on this request")
}

/// Runs `work` on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let ended = |error: tokio::task::JoinError| Error::new(ErrorKind::Engine, format!("the model failed: {error}"));
    tokio::task::spawn_blocking(work).await.map_err(ended)?
}
