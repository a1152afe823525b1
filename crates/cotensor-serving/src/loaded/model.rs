//! One model that is loaded.

use super::batches::Batches;
use cotensor_core::sync::lock;
use cotensor_core::{Error, Result};
use cotensor_model::Runtime;
use cotensor_model::family::AnswerKind;
use cotensor_model::model::Model;
use cotensor_model::pipeline::{Inputs, TextEmbedder, User, run_user};
use cotensor_model::stage::Stage;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

/// The score of a text for a query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Score {
    pub(crate) score: f32,
    /// What the score is made of; the order of different texts is that of their logits.
    pub(crate) logit: f32,
    /// The tokens of the query and the text that the model read.
    pub(crate) tokens: usize,
    /// Whether the query or the text was cut off.
    pub(crate) is_truncated: bool,
}

/// A model in requests: the absolute path of a folder or a name on the hub, and the variant of its graphs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ModelKey {
    pub(crate) name: String,
    pub(crate) variant: Option<String>,
}

impl ModelKey {
    pub(crate) fn new(name: &str, variant: Option<&str>) -> Self {
        Self { name: name.to_owned(), variant: variant.map(str::to_owned) }
    }

    pub(super) fn open(&self, runtime: &Arc<Runtime>) -> Result<Arc<Model>> {
        let path = Path::new(&self.name);
        if path.is_absolute() {
            runtime.open_variant(path, Path::new(""), self.variant.as_deref())
        } else {
            runtime.open_named(&self.name, self.variant.as_deref())
        }
    }
}

/// A model that is loaded, in one version of its files.
pub(crate) struct LoadedModel {
    pub(crate) key: ModelKey,
    pub(crate) model: Arc<Model>,
    /// The threads that embed, by the pooling that replaces that of the model's files.
    batches: Mutex<HashMap<Option<String>, Arc<Batches>>>,
    created: SystemTime,
    usage: Mutex<Usage>,
    /// Counts the ends of requests, for all models of the table.
    uses: Arc<AtomicU64>,
}

#[derive(Clone, Copy)]
pub(super) struct Usage {
    last: Instant,
    requests: u64,
    /// It is unloaded after this time without requests. `None`: never.
    pub(super) ttl: Option<Duration>,
}

/// A request that runs.
pub(crate) struct Request<'a>(&'a LoadedModel);

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.0.touch();
        self.0.uses.fetch_add(1, Ordering::Relaxed);
    }
}

/// A loaded model, for lists.
pub(crate) struct ModelInfo {
    pub(crate) key: ModelKey,
    pub(crate) model: Arc<Model>,
    /// When it was loaded, in seconds since 1970.
    pub(crate) created: u64,
    pub(crate) requests: u64,
    /// Whether a request or a reference uses it now.
    pub(crate) in_use: bool,
    /// The time since the last request.
    pub(crate) idle: Duration,
    /// The time without requests after which it is unloaded. `None`: never.
    pub(crate) ttl: Option<Duration>,
    /// Its loaded graphs.
    pub(crate) stages: Vec<Arc<Stage>>,
}

impl ModelInfo {
    /// Whether the model has a task with answers of this kind.
    pub(crate) fn does(&self, kind: AnswerKind) -> bool {
        self.model.family().tasks().any(|task| task.answer == kind)
    }
}

impl LoadedModel {
    pub(super) fn new(key: ModelKey, model: Arc<Model>, ttl: Option<Duration>, uses: Arc<AtomicU64>) -> Self {
        let usage = Mutex::new(Usage { last: Instant::now(), requests: 0, ttl });
        Self { key, model, batches: Mutex::default(), created: SystemTime::now(), usage, uses }
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        lock(&self.usage)
    }

    /// Counts a request. It ends when the result is dropped.
    pub(crate) fn request(&self) -> Request<'_> {
        self.usage().requests += 1;
        self.touch();
        Request(self)
    }

    /// The model is in use now.
    pub(crate) fn touch(&self) {
        self.usage().last = Instant::now();
    }

    pub(super) fn keep_for(&self, ttl: Option<Duration>) {
        self.usage().ttl = ttl;
    }

    pub(super) fn ttl(&self) -> Option<Duration> {
        self.usage().ttl
    }

    pub(super) fn idle(&self) -> Duration {
        self.usage().last.elapsed()
    }

    pub(super) fn info(&self, in_use: bool) -> ModelInfo {
        let Usage { last, requests, ttl } = *self.usage();
        ModelInfo {
            key: self.key.clone(),
            model: Arc::clone(&self.model),
            created: self.created.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            requests,
            in_use,
            idle: last.elapsed(),
            ttl,
            stages: self.model.loaded_stages(),
        }
    }

    /// Loads all graphs that requests need, except heads.
    pub(super) fn load(&self, runtime: &Runtime, caches_results: bool) -> Result<()> {
        let family = self.model.family();
        if family.tasks().any(|task| task.answer == AnswerKind::Sentence) {
            self.batches(runtime, caches_results, None)?;
        }
        self.model.load_stages()
    }

    /// The requests of a pooling, or with that of the model's files. The first call opens its graph.
    pub(super) fn batches(
        &self,
        runtime: &Runtime,
        caches_results: bool,
        pooling: Option<&str>,
    ) -> Result<Arc<Batches>> {
        let mut started = lock(&self.batches);
        let pooling = pooling.map(str::to_owned);
        if let Some(batches) = started.get(&pooling) {
            return Ok(Arc::clone(batches));
        }
        let embedder = TextEmbedder::open_pooled(&self.model, pooling.as_deref())?;
        let holder = caches_results.then(|| runtime.store().holder(&self.key.name));
        let batches = Arc::new(Batches::new(embedder, holder));
        started.insert(pooling, Arc::clone(&batches));
        Ok(batches)
    }

    pub(super) fn rerank(&self, runtime: &Runtime, query: String, texts: Vec<String>) -> Result<Vec<Score>> {
        let model = &self.model;
        let family = model.family();
        let task = family.tasks().find(|task| task.answer == AnswerKind::Scores).ok_or_else(|| {
            let message = "ranks no texts; cross-encoders do, and causal language models with the module LogitScore";
            Error::unsupported(format!("{} {message}", family.title)).in_file(model.folder())
        })?;
        let (name, task) = (self.key.name.clone(), task.name.clone());
        let user = User { name: "rerank".to_owned(), model: name, task, texts, ..User::default() };
        let holder = runtime.store().holder(&self.key.name);
        let report = run_user(model, &user, &Inputs::default().with_text(query), &holder)?;
        let [scores, logits, tokens, truncated] = report.outputs.as_slice() else {
            return Err(Error::corrupt("the model gave no scores"));
        };
        let numbers = scores.values.iter().zip(&logits.values).zip(tokens.values.iter().zip(&truncated.values));
        let score = |((&score, &logit), (&tokens, &truncated))| Score {
            score,
            logit,
            tokens: tokens as usize,
            is_truncated: truncated != 0.0,
        };
        Ok(numbers.map(score).collect())
    }
}
