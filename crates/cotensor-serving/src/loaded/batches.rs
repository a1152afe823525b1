//! Requests that arrive while the model runs run together afterwards.

use cotensor_core::{Error, Result};
use cotensor_model::pipeline::{TextEmbedder, TextEmbedding};
use cotensor_store::Holder;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;

/// The most texts of one round. The texts of a long request take several rounds, between which others run.
const ROUND_TEXTS_MAX: usize = 64;

/// The embeddings of a request, once they are computed.
pub(super) type PendingEmbeddings = oneshot::Receiver<Result<Vec<TextEmbedding>>>;

/// A request for embeddings.
struct Job {
    texts: Vec<String>,
    prompt_name: Option<String>,
    /// The embeddings so far.
    done: Vec<TextEmbedding>,
    reply: oneshot::Sender<Result<Vec<TextEmbedding>>>,
}

/// The thread of one model, which embeds the texts of all requests. It ends with the last sender.
pub(crate) struct Batches {
    jobs: Sender<Job>,
}

impl Batches {
    /// Starts the thread. With a holder, embeddings are results in the store.
    ///
    /// # Errors
    /// `Io` when the thread cannot be started.
    pub(crate) fn start(embedder: TextEmbedder, cached_by: Option<Holder>) -> Result<Self> {
        let (jobs, arriving) = channel();
        let thread = std::thread::Builder::new().name("embed".to_owned());
        let run = move || Worker { embedder, cached_by, waiting: VecDeque::new() }.run(&arriving);
        thread.spawn(run).map_err(|error| Error::io("starting the thread of a model", &error))?;
        Ok(Self { jobs })
    }

    /// The embeddings of texts.
    ///
    /// # Errors
    /// As [`TextEmbedder::embed`].
    pub(crate) fn embed(&self, texts: Vec<String>, prompt_name: Option<String>) -> PendingEmbeddings {
        let (reply, answer) = oneshot::channel();
        // The thread ends after the last sender; if it has panicked, the answer is the end of the channel.
        let _ = self.jobs.send(Job { texts, prompt_name, done: Vec::new(), reply });
        answer
    }
}

struct Worker {
    embedder: TextEmbedder,
    cached_by: Option<Holder>,
    waiting: VecDeque<Job>,
}

impl Worker {
    fn run(mut self, arriving: &Receiver<Job>) {
        loop {
            if self.waiting.is_empty() {
                let Ok(job) = arriving.recv() else { return };
                self.waiting.push_back(job);
            }
            self.waiting.extend(arriving.try_iter());
            self.round();
        }
    }

    /// Embeds the next texts of the first requests with one prompt, in the order of arrival.
    fn round(&mut self) {
        // The clients of the others have gone.
        self.waiting.retain(|job| !job.reply.is_closed());
        let Some(first) = self.waiting.front() else { return };
        let prompt_name = first.prompt_name.clone();
        let mut room = ROUND_TEXTS_MAX;
        let mut parts = Vec::new();
        for (at, job) in self.waiting.iter().enumerate().filter(|(_, job)| job.prompt_name == prompt_name) {
            let count = room.min(job.texts.len() - job.done.len());
            parts.push((at, count));
            room -= count;
            if room == 0 {
                break;
            }
        }
        let texts = |&(at, count): &(usize, usize)| {
            let job = &self.waiting[at];
            job.texts[job.done.len()..][..count].iter().map(String::as_str).collect::<Vec<_>>()
        };
        let embed = |texts: &[&str]| self.embedder.embed(texts, prompt_name.as_deref(), self.cached_by.as_ref());
        let all: Vec<&str> = parts.iter().flat_map(texts).collect();
        let outcomes: Vec<Result<Vec<TextEmbedding>>> = match embed(&all) {
            Ok(mut embeddings) => {
                let mut rest = embeddings.drain(..);
                parts.iter().map(|&(_, count)| Ok(rest.by_ref().take(count).collect())).collect()
            }
            // The error is of one request.
            Err(error) if parts.len() == 1 => vec![Err(error)],
            Err(_) => parts.iter().map(|part| embed(&texts(part))).collect(),
        };
        let mut finished = Vec::new();
        for (&(at, _), outcome) in parts.iter().zip(outcomes) {
            let job = &mut self.waiting[at];
            match outcome {
                Ok(embeddings) => {
                    job.done.extend(embeddings);
                    if job.done.len() == job.texts.len() {
                        finished.push((at, None));
                    }
                }
                Err(error) => finished.push((at, Some(error))),
            }
        }
        // From the last to the first, so that positions stay.
        for (at, error) in finished.into_iter().rev() {
            if let Some(job) = self.waiting.remove(at) {
                let _ = job.reply.send(error.map_or(Ok(job.done), Err));
            }
        }
        // A long request continues after those that arrived meanwhile.
        if self.waiting.len() > 1 && self.waiting.front().is_some_and(|job| !job.done.is_empty()) {
            self.waiting.rotate_left(1);
        }
    }
}
