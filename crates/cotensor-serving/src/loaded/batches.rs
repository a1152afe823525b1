//! Requests that arrive while the model runs run together afterwards.

use super::embed::TextsError;
use cotensor_core::{Error, Result};
use cotensor_model::pipeline::{EmbedderInput, TextEmbedder, TextEmbedding};
use cotensor_store::Holder;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
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
    /// As [`TextEmbedder::embed_each`], with the first text that has no embedding.
    pub(crate) fn embed(&self, texts: Vec<EmbedderInput>, prompt_name: Option<String>) -> PendingEmbeddings {
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
        let mut room = Room::default();
        let mut parts = Vec::new();
        for (at, job) in self.waiting.iter().enumerate().filter(|(_, job)| job.prompt_name == prompt_name) {
            let rest = &job.texts[job.done.len()..];
            let count = rest.iter().take_while(|text| room.take(self.embedder.estimated_tokens(text))).count();
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
        let mut embedded =
            self.embedder.embed_each(&all, prompt_name.as_deref(), self.cached_by.as_ref()).map(Vec::into_iter);
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
