//! Sentence embeddings of many texts at a time.

use super::answer::numbers;
use super::decode::empty_cache;
use super::outputs::output_of;
use super::run::fixed_length;
use super::vocabulary::check_vocabulary;
use crate::model::Model;
use crate::stage::{Claimed, Made, Stage};
use crate::tensor::{Array, TensorRef, Value};
use cotensor_core::{ContentHash, Error, Hasher, Result};
use cotensor_preprocess::TokenBatch;
use cotensor_preprocess::family::{AnswerKind, StageDef};
use cotensor_store::Holder;
use std::sync::Arc;
use std::time::Instant;

/// The most texts of one run of the graph.
const RUN_TEXTS_MAX: usize = 32;
/// The most tokens of one run, padding included.
const RUN_TOKENS_MAX: usize = 4096;
/// Texts of one run have similar numbers of tokens, because a CPU computes the padding, too: at most this much more than the
/// shortest, in percent.
const RUN_SPREAD_PERCENT: usize = 25;
/// In tokens.
const RUN_SPREAD_MIN: usize = 8;
/// Embeddings are published together, when there are so many, and at the end of a call.
const PUBLISH_TEXTS_MIN: usize = 64;
/// The label of results in the store.
const LABEL: &str = "sentence embedding v2";

/// A model that embeds texts, as sentence-transformers does: prompt, tokens, graph, pooling, length.
pub struct TextEmbedder {
    model: Arc<Model>,
    stage: Arc<Stage>,
    def: &'static StageDef,
    output: &'static str,
    /// Whether the output is the embedding, and not a row for each token.
    is_pooled: bool,
    /// The number of tokens that the graph reads, if it is fixed.
    length: Option<usize>,
    /// Whether each text runs alone: the graph reads a cache, or a fixed number of texts, or joins its rows.
    reads_one: bool,
    settings: ContentHash,
}

/// The embedding of one text.
#[derive(Clone, Debug, PartialEq)]
pub struct TextEmbedding {
    /// One number for each dimension.
    pub values: Vec<f32>,
    /// The number of tokens that the model read.
    pub tokens: usize,
    /// Whether the end of the text was cut off.
    pub is_truncated: bool,
}

/// A text with its tokens.
struct Tokenized<'t> {
    text: &'t str,
    batch: TokenBatch,
    count: usize,
}

impl TextEmbedder {
    /// Opens the graph of a model.
    ///
    /// # Errors
    /// `Unsupported` for a model without sentence embeddings; as [`Model::stage`].
    pub fn open(model: &Arc<Model>) -> Result<Self> {
        let family = model.family();
        let task = family.tasks().find(|task| task.answer == AnswerKind::Sentence).ok_or_else(|| {
            Error::unsupported(format!("{} embeds no sentences: a model of BERT's family does", family.title))
                .in_file(model.folder())
        })?;
        let role = task.stages.first().map_or("", String::as_str);
        let def = family.stage(role)?;
        let stage = model.stage(role)?;
        let output = output_of(task, def, &stage, false)?;
        let ids = def.inputs.iter().find(|(_, source)| *source == "text.ids").map_or("", |(name, _)| name);
        let port = stage.graph().inputs().iter().find(|port| port.name == ids);
        let has_fixed_count = port.and_then(|port| port.dims.as_ref()?.first().copied().flatten()).is_some();
        let reads_cache = stage.graph().inputs().iter().any(|port| def.source(&port.name) == Some("cache.empty"));
        let (sentence, tokenizer) = model.sentence()?;
        let mut hasher = Hasher::new(LABEL);
        hasher
            .field(format!("{sentence:?}").as_bytes())
            .field(tokenizer.fingerprint().as_bytes())
            .field(output.as_bytes());
        Ok(Self {
            model: Arc::clone(model),
            is_pooled: task.result.as_deref() == Some(output),
            length: fixed_length(def, &stage),
            reads_one: has_fixed_count || reads_cache || stage.joins_rows()?.is_some(),
            settings: hasher.finish(),
            stage,
            def,
            output,
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The embeddings of texts, in their order. Texts of similar length run together. `prompt_name` is as in sentence-transformers.
    /// With a holder, each embedding is a result in the store, which later calls reuse.
    ///
    /// # Errors
    /// `Invalid` for a text without tokens, for a tokenizer of another model and for an unknown prompt; as [`LoadedGraph::run`](crate::engine::LoadedGraph::run).
    pub fn embed(
        &self,
        texts: &[&str],
        prompt_name: Option<&str>,
        cached_by: Option<&Holder>,
    ) -> Result<Vec<TextEmbedding>> {
        let (sentence, tokenizer) = self.model.sentence()?;
        let prompt = sentence.prompt(prompt_name)?;
        let prompt_tokens = if prompt.is_empty() { 0 } else { tokenizer.prefix_tokens(prompt)? };
        let prompted: Vec<String> = texts.iter().map(|text| format!("{prompt}{text}")).collect();
        let tokenized = prompted.iter().map(|text| {
            let batch = tokenizer.encode_to(&[text], self.length)?;
            check_vocabulary(&self.model, batch.ids.as_i64()?)?;
            let count = batch.mask.as_i64()?.iter().filter(|&&kept| kept != 0).count();
            Ok(Tokenized { text, batch, count })
        });
        let tokenized: Vec<Tokenized<'_>> = tokenized.collect::<Result<_>>()?;
        let keys: Vec<[ContentHash; 2]> =
            tokenized.iter().map(|text| self.key(&text.batch, prompt_tokens)).collect::<Result<_>>()?;
        let mut rows: Vec<Option<Vec<f32>>> = vec![None; texts.len()];
        let (mut missing, mut tickets) = (Vec::new(), Vec::new());
        let claims = match cached_by {
            Some(holder) => self.stage.claim_each(LABEL, &keys, holder),
            None => texts.iter().map(|_| Claimed::Compute(None)).collect(),
        };
        for (at, claim) in claims.into_iter().enumerate() {
            let mut ticket = None;
            match claim {
                Claimed::Ready(outputs) => rows[at] = Some(row_of(&outputs)?),
                Claimed::Compute(claimed) => {
                    missing.push(at);
                    ticket = claimed;
                }
                Claimed::Elsewhere => {}
            }
            tickets.push(ticket);
        }
        missing.sort_by_key(|&at| tokenized[at].count);
        let mut made = Vec::new();
        let mut rest = missing.as_slice();
        while !rest.is_empty() {
            let (run, later) = rest.split_at(self.run_length(rest, &tokenized));
            let start = Instant::now();
            let computed = self.run(run, &tokenized, prompt_tokens)?;
            let recompute = start.elapsed() / u32::try_from(run.len()).unwrap_or(1);
            for (&at, row) in run.iter().zip(computed) {
                if let Some(ticket) = tickets[at].take() {
                    made.push(Made { ticket, array: Array::f32([row.len()], row.clone())?, recompute });
                }
                rows[at] = Some(row);
            }
            rest = later;
            // Other callers may wait for these.
            if let Some(holder) = cached_by
                && (made.len() >= PUBLISH_TEXTS_MIN || rest.is_empty())
            {
                self.stage.publish_each(LABEL, holder, std::mem::take(&mut made))?;
            }
        }
        let results = rows.into_iter().enumerate().map(|(at, row)| {
            let values = match (row, cached_by) {
                (None, Some(holder)) => self.run_once(at, &tokenized, prompt_tokens, &keys[at], holder)?,
                (row, _) => row.ok_or_else(|| Error::corrupt("the graph gave no row"))?,
            };
            let Tokenized { batch, count, .. } = &tokenized[at];
            Ok(TextEmbedding { values, tokens: *count, is_truncated: batch.truncated.contains(&true) })
        });
        results.collect()
    }

    /// The embedding of a text that another caller computes, if that does not give up.
    fn run_once(
        &self,
        at: usize,
        tokenized: &[Tokenized<'_>],
        prompt_tokens: usize,
        key: &[ContentHash],
        holder: &Holder,
    ) -> Result<Vec<f32>> {
        let run = self.stage.run_once(LABEL, key, holder, |_| {
            let row = self.run(&[at], tokenized, prompt_tokens)?.pop();
            let row = row.ok_or_else(|| Error::corrupt("the graph gave no row"))?;
            Ok(vec![Array::f32([row.len()], row)?.into()])
        })?;
        row_of(&run.outputs)
    }

    /// What identifies the embedding of a text: the settings, and its tokens.
    fn key(&self, batch: &TokenBatch, prompt_tokens: usize) -> Result<[ContentHash; 2]> {
        let mut hasher = Hasher::new("tokens of a sentence");
        for (&id, &kept) in batch.ids.as_i64()?.iter().zip(batch.mask.as_i64()?) {
            hasher.number(id as u64).number(kept as u64);
        }
        Ok([self.settings, hasher.number(prompt_tokens as u64).finish()])
    }

    /// How many of these texts, which are sorted by length, run together.
    fn run_length(&self, texts: &[usize], tokenized: &[Tokenized<'_>]) -> usize {
        if self.reads_one {
            return 1;
        }
        let shortest = tokenized[texts[0]].count;
        let longest = (shortest + shortest * RUN_SPREAD_PERCENT / 100).max(shortest + RUN_SPREAD_MIN);
        let fits = |&(before, &at): &(usize, &usize)| {
            let count = self.length.unwrap_or(tokenized[at].count);
            tokenized[at].count <= longest && (before + 1) * count <= RUN_TOKENS_MAX
        };
        texts.iter().enumerate().take(RUN_TEXTS_MAX).take_while(fits).count().max(1)
    }

    /// Runs the graph on some texts, and pools.
    fn run(&self, texts: &[usize], tokenized: &[Tokenized<'_>], prompt_tokens: usize) -> Result<Vec<Vec<f32>>> {
        let (sentence, tokenizer) = self.model.sentence()?;
        let together;
        let batch = match texts {
            [only] => &tokenized[*only].batch,
            _ => {
                let list: Vec<&str> = texts.iter().map(|&at| tokenized[at].text).collect();
                together = tokenizer.encode_to(&list, self.length)?;
                &together
            }
        };
        let graph = self.stage.graph();
        let mut bound: Vec<(&str, Value)> = Vec::new();
        for port in graph.inputs() {
            let source = self.def.source(&port.name);
            let array = match source {
                Some("text.ids") => &batch.ids,
                Some("text.mask") => &batch.mask,
                Some("text.types") => &batch.type_ids,
                Some("text.positions") => &batch.positions,
                Some("cache.empty") => {
                    bound.push((&port.name, empty_cache(Some(port))?));
                    continue;
                }
                _ => return Err(Error::unsupported("no text gives this input").in_field(port.name.as_str())),
            };
            bound.push((&port.name, Value::from(array.clone())));
        }
        let inputs: Vec<(&str, TensorRef<'_>)> =
            bound.iter().map(|(name, value)| Ok((*name, value.tensor()?))).collect::<Result<_>>()?;
        let output = graph.run_alone(&inputs, &[self.output])?.pop();
        let output = Value::from(output.ok_or_else(|| Error::corrupt("the graph gave no output"))?);
        let (count, tokens) = (texts.len(), batch.added.len() / texts.len());
        let width = match (output.shape(), self.is_pooled) {
            (&[rows, width], true) if rows == count && width > 0 => width,
            (&[rows, found, width], false) if rows == count && found == tokens && width > 0 => width,
            (shape, _) => {
                let message = format!("the graph gives {shape:?} for {count} texts of {tokens} tokens");
                return Err(Error::unsupported(message).in_field(self.output));
            }
        };
        let values = output.to_f32()?;
        numbers(&values)?;
        if self.is_pooled {
            let pooled = values.chunks_exact(width).map(|row| {
                let mut row = row.to_vec();
                sentence.truncate(&mut row);
                row
            });
            return Ok(pooled.collect());
        }
        let rows = values.chunks_exact(tokens * width).zip(batch.mask.as_i64()?.chunks_exact(tokens));
        rows.map(|(rows, mask)| sentence.pool(rows, width, mask, prompt_tokens)).collect()
    }
}

/// The embedding among the outputs of its computation.
fn row_of(outputs: &[Value]) -> Result<Vec<f32>> {
    let value = outputs.first().ok_or_else(|| Error::corrupt("the store lost an embedding"))?;
    Ok(value.to_f32()?.into_owned())
}
