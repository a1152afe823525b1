use super::batches::{Batches, PendingEmbeddings};
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_model::Runtime;
use cotensor_model::family::AnswerKind;
use cotensor_model::model::Model;
use cotensor_model::pipeline::{Inputs, TextEmbedder, TextEmbedding, User, run_user};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// The most models that are loaded at a time.
const MODELS_MAX: usize = 64;

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

/// The loaded models by name. A model is loaded at its first request, once for all concurrent ones.
pub struct LoadedModels {
    runtime: Arc<Runtime>,
    options: ServingOptions,
    models: Mutex<HashMap<String, Arc<LoadedModel>>>,
}

/// A model by the name in requests.
pub(crate) struct LoadedModel {
    name: String,
    opened: OnceLock<Result<Arc<Model>>>,
    batches: OnceLock<Result<Batches>>,
    created: SystemTime,
    used: Mutex<Instant>,
}

/// A loaded model, for lists.
pub(crate) struct ModelInfo {
    pub(crate) name: String,
    /// When it was loaded, in seconds since 1970.
    pub(crate) created: u64,
}

impl LoadedModels {
    /// No model yet.
    pub fn new(runtime: Arc<Runtime>, options: ServingOptions) -> Arc<Self> {
        Arc::new(Self { runtime, options, models: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<LoadedModel>>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model of this name: an absolute path of a folder, or a name on the hub. Blocks while it is loaded.
    ///
    /// # Errors
    /// `OverBudget` when too many are loaded; as [`Runtime::open_variant`].
    pub(crate) fn get(&self, name: &str) -> Result<Arc<LoadedModel>> {
        let loaded = {
            let mut models = self.lock();
            let full = models.len() >= MODELS_MAX;
            match models.get(name) {
                Some(loaded) => Arc::clone(loaded),
                None if full => {
                    let message = format!("{MODELS_MAX} models are loaded: wait until one is unloaded");
                    return Err(Error::new(ErrorKind::OverBudget, message));
                }
                None => {
                    let loaded = Arc::new(LoadedModel::new(name));
                    models.insert(name.to_owned(), Arc::clone(&loaded));
                    loaded
                }
            }
        };
        loaded.touch();
        if let Err(error) = loaded.open(&self.runtime) {
            self.forget(&loaded);
            return Err(error);
        }
        Ok(loaded)
    }

    /// The embeddings of texts, together with those of concurrent requests. Loads the model if needed.
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`TextEmbedder::embed`].
    pub(crate) async fn embed(
        self: &Arc<Self>,
        name: &str,
        texts: Vec<String>,
        prompt_name: Option<String>,
    ) -> Result<Vec<TextEmbedding>> {
        let (this, name) = (Arc::clone(self), name.to_owned());
        let (answer, loaded) = blocking(move || this.submit(&name, texts, prompt_name)).await?;
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
        texts: Vec<String>,
        prompt_name: Option<String>,
    ) -> Result<Vec<TextEmbedding>> {
        let (answer, loaded) = self.submit(name, texts, prompt_name)?;
        let answer = answer.blocking_recv().unwrap_or_else(|_| Err(failed()));
        loaded.touch();
        answer
    }

    fn submit(
        &self,
        name: &str,
        texts: Vec<String>,
        prompt_name: Option<String>,
    ) -> Result<(PendingEmbeddings, Arc<LoadedModel>)> {
        let loaded = self.get(name)?;
        match loaded.batches(self) {
            Ok(batches) => Ok((batches.embed(texts, prompt_name), loaded)),
            Err(error) => {
                self.forget(&loaded);
                Err(error)
            }
        }
    }

    /// The store and the engines of the models.
    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// The score of each text for a query, in the order of the texts.
    ///
    /// # Errors
    /// `Unsupported` for a model that is no reranker; as [`get`](Self::get) and [`run_user`].
    pub(crate) async fn rerank(self: &Arc<Self>, name: &str, query: String, texts: Vec<String>) -> Result<Vec<f32>> {
        let (this, name) = (Arc::clone(self), name.to_owned());
        blocking(move || {
            let loaded = this.get(&name)?;
            let scores = loaded.rerank(&this.runtime, query, texts);
            loaded.touch();
            scores
        })
        .await
    }

    /// The loaded models, by name.
    pub(crate) fn list(&self) -> Vec<ModelInfo> {
        let mut list: Vec<ModelInfo> = self.lock().values().filter_map(|loaded| loaded.info()).collect();
        list.sort_by(|a, b| a.name.cmp(&b.name));
        list
    }

    /// Unloads the models without a request for the configured time.
    pub(crate) fn unload_idle(&self) {
        let Some(ttl) = self.options.model_ttl else { return };
        let mut gone = Vec::new();
        self.lock().retain(|_, loaded| {
            // Requests hold a reference.
            let stays = Arc::strong_count(loaded) > 1 || loaded.idle() < ttl;
            if !stays {
                gone.push(Arc::clone(loaded));
            }
            stays
        });
        // Dropped without the lock.
        drop(gone);
    }

    /// Unloads every model.
    pub fn clear(&self) {
        let gone: Vec<_> = self.lock().drain().collect();
        drop(gone);
    }

    fn forget(&self, failed: &Arc<LoadedModel>) {
        let mut models = self.lock();
        if models.get(&failed.name).is_some_and(|known| Arc::ptr_eq(known, failed)) {
            models.remove(&failed.name);
        }
    }
}

impl LoadedModel {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            opened: OnceLock::new(),
            batches: OnceLock::new(),
            created: SystemTime::now(),
            used: Mutex::new(Instant::now()),
        }
    }

    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn idle(&self) -> Duration {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    fn info(&self) -> Option<ModelInfo> {
        self.opened.get()?.as_ref().ok()?;
        let created = self.created.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Some(ModelInfo { name: self.name.clone(), created })
    }

    fn open(&self, runtime: &Arc<Runtime>) -> Result<Arc<Model>> {
        let open = || {
            let path = Path::new(&self.name);
            match path.is_absolute() {
                true => runtime.open(path),
                false => runtime.open_named(&self.name, None),
            }
        };
        self.opened.get_or_init(open).clone()
    }

    /// The thread that embeds; its graph is opened at the first call.
    fn batches(&self, models: &LoadedModels) -> Result<&Batches> {
        let start = || {
            let embedder = TextEmbedder::open(&self.open(&models.runtime)?)?;
            let holder = models.options.caches_results.then(|| models.runtime.store().holder(&self.name));
            Batches::start(embedder, holder)
        };
        self.batches.get_or_init(start).as_ref().map_err(Clone::clone)
    }

    fn rerank(&self, runtime: &Arc<Runtime>, query: String, texts: Vec<String>) -> Result<Vec<f32>> {
        let model = self.open(runtime)?;
        let family = model.family();
        let task = family.tasks().find(|task| task.answer == AnswerKind::Scores).ok_or_else(|| {
            Error::unsupported(format!("{} ranks no texts: a cross-encoder of BERT's family does", family.title))
                .in_file(model.folder())
        })?;
        let (model_name, task) = (self.name.clone(), task.name.clone());
        let user = User { name: "rerank".to_owned(), model: model_name, task, texts, ..User::default() };
        let report = run_user(&model, &user, &Inputs::default().with_text(query), &runtime.store().holder(&self.name))?;
        let scores = report.outputs.into_iter().next().ok_or_else(|| Error::corrupt("the model gave no scores"))?;
        Ok(scores.values)
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
