//! Requests that arrive while the model runs run together afterwards.

use super::embed::TextsError;
use cotensor_core::Result;
use cotensor_core::sync::lock;
use cotensor_model::pipeline::{EmbedderInput, TextEmbedder, TextEmbedding};
use cotensor_store::Holder;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::oneshot;

/// The most texts of one round. The texts of a long request take several rounds, between which others run.
const ROUND_TEXTS_MAX: usize = 64;
/// The most squared tokens of one round, on which its time and memory depend: 64 texts of 256 tokens. A longer text than that of 2,048
/// tokens has a round of its own.
const ROUND_SQUARES_MAX: usize = 64 * 256 * 256;

/// The embeddings of a request, once they are computed.
pub(super) type PendingEmbeddings = oneshot::Receiver<Result<Vec<TextEmbedding>, TextsError>>;

/// A request for embeddings.
struct Job {
    texts: Vec<EmbedderInput>,
    prompt_name: Option<String>,
    /// The embeddings so far.
    done: Vec<TextEmbedding>,
    reply: oneshot::Sender<Result<Vec<TextEmbedding>, TextsError>>,
}

/// The requests for embeddings of one model. One thread at a time runs their texts: that of a request that finds no other, for one round,
/// and then one of their own as long as requests wait.
///
/// A thread of their own for every round costs more than its wake-up. On virtual machines, the scheduler often leaves a thread on the core
/// of the one that woke it; the engine's threads then share that core for several milliseconds while another is idle.
pub(crate) struct Batches(Arc<Shared>);

struct Shared {
    embedder: TextEmbedder,
    cached_by: Option<Holder>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// The requests that no round has seen.
    arrived: VecDeque<Job>,
    /// Whether a [`Runner`] exists.
    is_running: bool,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }
}

impl Batches {
    /// With a holder, embeddings are results in the store.
    pub(crate) fn new(embedder: TextEmbedder, cached_by: Option<Holder>) -> Self {
        Self(Arc::new(Shared { embedder, cached_by, queue: Mutex::default() }))
    }

    /// The embeddings of texts. Blocks for a round if no other thread runs one, and not until a request of several rounds has ended: it
    /// ends early when its client has gone.
    ///
    /// # Errors
    /// As [`TextEmbedder::embed_each`], with the first text that has no embedding. The channel ends without an answer when the engine
    /// panics, or when the system has no thread for the next rounds.
    pub(crate) fn embed(&self, texts: Vec<EmbedderInput>, prompt_name: Option<String>) -> PendingEmbeddings {
        let (reply, answer) = oneshot::channel();
        let job = Job { texts, prompt_name, done: Vec::new(), reply };
        if let Some(mut runner) = self.push(job) {
            runner.round();
            if runner.has_next() {
                // If it cannot be started, the waiting requests end.
                let _ = std::thread::Builder::new().name("embed".to_owned()).spawn(move || runner.run());
            }
        }
        answer
    }

    /// Adds a request. Its rounds are the caller's if a runner is returned.
    fn push(&self, job: Job) -> Option<Runner> {
        let mut queue = self.0.queue();
        queue.arrived.push_back(job);
        if std::mem::replace(&mut queue.is_running, true) {
            return None;
        }
        let waiting = std::mem::take(&mut queue.arrived);
        Some(Runner { shared: Arc::clone(&self.0), waiting, is_done: false })
    }
}

/// Runs rounds. There is at most one for a model.
struct Runner {
    shared: Arc<Shared>,
    waiting: VecDeque<Job>,
    /// Whether the next request starts another one.
    is_done: bool,
}

impl Drop for Runner {
    fn drop(&mut self) {
        if !self.is_done {
            // After a panic: the requests end with the model's error, and later ones run.
            *self.shared.queue() = Queue::default();
        }
    }
}

impl Runner {
    fn run(mut self) {
        while self.has_next() {
            self.round();
        }
    }

    /// Takes the requests that have arrived. False when there is none: this was the last round.
    fn has_next(&mut self) -> bool {
        let mut queue = self.shared.queue();
        self.waiting.append(&mut queue.arrived);
        self.is_done = self.waiting.is_empty();
        queue.is_running = !self.is_done;
        !self.is_done
    }

    /// Embeds the next texts of the first requests with one prompt, in the order of arrival.
    fn round(&mut self) {
        // The clients of the others have gone.
        self.waiting.retain(|job| !job.reply.is_closed());
        let Some(first) = self.waiting.front() else { return };
        let prompt_name = first.prompt_name.clone();
        let mut room = Room::default();
        let mut parts = Vec::new();
        for (at, job) in self.waiting.iter().enumerate().filter(|(_, job)| job.prompt_name == prompt_name) {
            let rest = &job.texts[job.done.len()..];
            let count = rest.iter().take_while(|text| room.take(self.shared.embedder.estimated_tokens(text))).count();
            if count > 0 {
                parts.push((at, count));
            }
            if count < rest.len() {
                break;
            }
        }
        let all: Vec<&EmbedderInput> = parts
            .iter()
            .flat_map(|&(at, count)| {
                let job = &self.waiting[at];
                &job.texts[job.done.len()..][..count]
            })
            .collect();
        let Shared { embedder, cached_by, .. } = &*self.shared;
        let mut embedded = embedder.embed_each(&all, prompt_name.as_deref(), cached_by.as_ref()).map(Vec::into_iter);
        let mut finished = Vec::new();
        for (at, count) in parts {
            let job = &mut self.waiting[at];
            let error = match &mut embedded {
                Ok(rest) => rest.by_ref().take(count).fold(None, |failed, embedding| match (failed, embedding) {
                    (None, Ok(embedding)) => {
                        job.done.push(embedding);
                        None
                    }
                    // The text after those that are done.
                    (None, Err(error)) => Some(TextsError::of_text(job.done.len(), error)),
                    (failed, _) => failed,
                }),
                Err(error) => Some(error.clone().into()),
            };
            if error.is_some() || job.done.len() == job.texts.len() {
                finished.push((at, error));
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

/// What is left of a round.
struct Room {
    texts: usize,
    squares: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { texts: ROUND_TEXTS_MAX, squares: ROUND_SQUARES_MAX }
    }
}

impl Room {
    /// Takes a text of so many tokens into the round, if there is room. The first text always has room.
    fn take(&mut self, tokens: usize) -> bool {
        let (squares, is_first) = (tokens.saturating_mul(tokens), self.texts == ROUND_TEXTS_MAX);
        if self.texts == 0 || (squares > self.squares && !is_first) {
            return false;
        }
        self.texts -= 1;
        self.squares = self.squares.saturating_sub(squares);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts_of_round(tokens: impl Iterator<Item = usize>) -> usize {
        let mut room = Room::default();
        tokens.take_while(|&tokens| room.take(tokens)).count()
    }

    #[test]
    fn round_is_bounded_by_squared_tokens_and_by_texts() {
        for (tokens, texts) in [(1, 64), (256, 64), (512, 16), (1024, 4), (2048, 1), (8000, 1), (usize::MAX, 1)] {
            assert_eq!(texts_of_round(std::iter::repeat(tokens)), texts, "{tokens} tokens");
        }
        // Short texts before a long one do not wait for it.
        assert_eq!(texts_of_round([10, 10, 8000, 10].into_iter()), 2);
        assert_eq!(texts_of_round([8000, 10].into_iter()), 1);
    }
}
