//! Sentence embeddings of many texts at a time.

use super::attention::check_attention;
use crate::model::Model;
use crate::stage::{Claimed, Made, Stage};
use crate::tensor::{Array, TensorRef, Value};
use cotensor_core::{ContentHash, Error, ErrorKind, Hasher, Result};
use cotensor_pipeline::{
    AttentionMemory, SENTENCE_LABEL as LABEL, SentenceOutput, SentencePrompt as Prompt, check_vocabulary, empty_cache,
    output_of, run_length, task_value, text_values, tokens_key,
};
use cotensor_preprocess::family::{AnswerKind, Source, StageDef};
use cotensor_preprocess::text::TextTokens;
use cotensor_preprocess::{SentenceProcessor, positions_depend_on_length};
use cotensor_store::{Holder, Ticket};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// The bytes of a token of usual text.
const BYTES_PER_TOKEN: usize = 4;
/// Embeddings are published together, when there are so many, and at the end of a call.
const PUBLISH_TEXTS_MIN: usize = 64;

/// A model that embeds texts, as sentence-transformers does: prompt, tokens, graph, pooling, length.
pub struct TextEmbedder {
    model: Arc<Model>,
    stage: Arc<Stage>,
    def: &'static StageDef,
    output: &'static str,
    sentence: SentenceProcessor,
    /// Whether the output is the embedding, and not a row for each token.
    is_pooled: bool,
    /// The number of tokens that the graph reads, if it is fixed.
    length: Option<usize>,
    /// Whether each text runs alone: the graph reads a cache, or a fixed number of texts, or joins its rows, or positions depend
    /// on the longest text of a batch.
    reads_one: bool,
    /// Whether the graph reads the number of a task.
    reads_task: bool,
    /// What each embedding has to say: how the pooling was found, and that code of the model is not known.
    notice: Option<Arc<str>>,
    /// The most tokens of a text that the model reads, if they are bounded.
    tokens_max: Option<usize>,
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
    /// How the pooling was found, if no file of the model states it, and whether the model has code that is not known.
    pub notice: Option<Arc<str>>,
}

/// What is embedded.
#[derive(Clone, Debug, PartialEq)]
pub enum EmbedderInput {
    /// A text.
    Text(String),
    /// The tokens of a text: ids of the model's own tokenizer, with those that it adds at the beginning and the end.
    Tokens(Vec<u32>),
}

impl From<&str> for EmbedderInput {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// The texts of a call by their positions. A text without tokens to compute is an error of that text only.
type Texts = [Result<TextTokens>];

impl TextEmbedder {
    /// Opens the graph of a model.
    ///
    /// # Errors
    /// As [`open_pooled`](Self::open_pooled).
    pub fn open(model: &Arc<Model>) -> Result<Self> {
        Self::open_pooled(model, None)
    }

    /// Opens the graph of a model; `pooling` replaces the pooling of its files: `mean`, `cls`, `max`, `mean_sqrt_len_tokens`,
    /// `weightedmean` or `lasttoken`.
    ///
    /// # Errors
    /// `Unsupported` for a model without sentence embeddings, and for a pooling of a graph that pools itself; `Invalid` for an
    /// unknown pooling; as [`Model::stage`].
    pub fn open_pooled(model: &Arc<Model>, pooling: Option<&str>) -> Result<Self> {
        let family = model.family();
        let task = family.tasks().find(|task| task.answer == AnswerKind::Sentence).ok_or_else(|| {
            Error::unsupported(format!("{} embeds no sentences: a model of BERT's family does", family.title))
                .in_file(model.folder())
        })?;
        let role = task.stages.first().map_or("", String::as_str);
        let def = family.stage(role)?;
        let stage = model.stage(role)?;
        let output = output_of(task, def, stage.ports(), false)?;
        if let Some(missing) = def.inputs.keys().find(|name| stage.ports().input(name).is_none()) {
            let message = format!("the graph has no input {missing}; export the model with it");
            return Err(Error::unsupported(message).in_file(model.folder()).in_field(missing));
        }
        let port = stage.ports().input_of(def, &Source::TextIds);
        let has_fixed_count = port.and_then(|port| port.dims.as_ref()?.first().copied().flatten()).is_some();
        let reads = |source: Source| stage.ports().input_of(def, &source).is_some();
        let depends_on_length = positions_depend_on_length(model.config());
        // Without a mask, a text may depend on the padding of its row.
        let is_masked = reads(Source::TextMask);
        let length = stage.ports().fixed_length(def);
        if length.is_some() && !is_masked {
            let message =
                "the graph reads texts of one length without a mask of their tokens; export the model with a mask";
            return Err(Error::unsupported(message).in_file(model.folder()));
        }
        let (_, tokenizer) = model.sentence()?;
        let sentence = model.sentence_pooled(pooling)?;
        sentence.check_input()?;
        let is_pooled = task.result.as_deref() == Some(output);
        if is_pooled && pooling.is_some() {
            return Err(Error::unsupported("the graph pools itself").in_file(model.folder()).in_field("pooling"));
        }
        if !is_pooled {
            // Results are found by modules that can be applied.
            sentence.check()?;
        }
        let pooling_notice = sentence.notice().filter(|_| !is_pooled).map(str::to_owned);
        let notice = [pooling_notice, model.model_config().code_notice()]
            .into_iter()
            .flatten()
            .reduce(|a, b| format!("{a}; {b}"));
        let mut hasher = Hasher::new(LABEL);
        hasher
            .field(sentence.fingerprint(is_pooled).as_bytes())
            .field(tokenizer.fingerprint().as_bytes())
            .field(output.as_bytes());
        Ok(Self {
            model: Arc::clone(model),
            is_pooled,
            sentence,
            length,
            reads_one: has_fixed_count
                || !is_masked
                || reads(Source::CacheEmpty)
                || depends_on_length
                || stage.joins_rows()?.is_some(),
            reads_task: reads(Source::TextTask),
            notice: notice.map(|notice| notice.into()),
            tokens_max: tokenizer.max_tokens(),
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

    /// The number of tokens of a text, estimated from its bytes without the tokenizer.
    pub fn estimated_tokens(&self, text: &EmbedderInput) -> usize {
        let tokens = match text {
            EmbedderInput::Text(text) => text.len() / BYTES_PER_TOKEN,
            EmbedderInput::Tokens(ids) => ids.len(),
        };
        tokens.min(self.tokens_max.unwrap_or(usize::MAX))
    }

    /// The embeddings of texts, in their order. Texts of similar length run together, and equal ones once. `prompt_name` is as in
    /// sentence-transformers. With a holder, each embedding is a result in the store, which later calls reuse.
    ///
    /// # Errors
    /// As [`embed_each`](Self::embed_each), and the first error of a text, with its position.
    pub fn embed(
        &self,
        texts: &[&str],
        prompt_name: Option<&str>,
        cached_by: Option<&Holder>,
    ) -> Result<Vec<TextEmbedding>> {
        let texts: Vec<EmbedderInput> = texts.iter().map(|text| (*text).into()).collect();
        let each = self.embed_each(&texts.iter().collect::<Vec<_>>(), prompt_name, cached_by)?;
        let at =
            |(at, embedding): (usize, Result<_>)| embedding.map_err(|error| error.prefixed(format_args!("text {at}")));
        each.into_iter().enumerate().map(at).collect()
    }

    /// As [`embed`](Self::embed), with an error for each text that has none.
    ///
    /// The error of a text is `Invalid` without tokens, for more bytes than are read, for tokens of another tokenizer and for
    /// a tokenizer of another model; `Engine` for numbers that overflow; `OverBudget` when the memory is too small for its
    /// length; and as [`LoadedGraph::run`](crate::engine::LoadedGraph::run).
    ///
    /// # Errors
    /// `Invalid` for an unknown prompt.
    pub fn embed_each(
        &self,
        texts: &[&EmbedderInput],
        prompt_name: Option<&str>,
        cached_by: Option<&Holder>,
    ) -> Result<Vec<Result<TextEmbedding>>> {
        let (_, tokenizer) = self.model.sentence()?;
        let prompt = self.sentence.prompt(prompt_name)?;
        let task = self.sentence.task(prompt_name, self.reads_task).map_err(|error| self.model.at_folder(error))?;
        let tokens: Vec<Result<TextTokens>> = texts.iter().map(|text| self.tokenize(text, prompt)).collect();
        let before = if prompt.is_empty() { 0 } else { tokenizer.prefix_tokens(prompt)? };
        let prompt = Prompt { tokens: before, task };
        let mut rows: Vec<Option<Result<Vec<f32>>>> = (0..texts.len()).map(|_| None).collect();
        let (distinct, firsts) = self.distinct(&tokens, prompt);
        let (mut missing, mut tickets) = self.claim(distinct, cached_by, &mut rows);
        missing.sort_by_key(|&at| count(&tokens, at));
        let counts: Vec<usize> = missing.iter().map(|&at| count(&tokens, at)).collect();
        let mut made = Vec::new();
        let mut rest = missing.as_slice();
        while !rest.is_empty() {
            let counts = &counts[counts.len() - rest.len()..];
            let (run, later) = rest.split_at(if self.reads_one { 1 } else { run_length(counts, self.length) });
            let start = Instant::now();
            let computed = self.run_each(run, &tokens, prompt);
            let recompute = start.elapsed() / u32::try_from(run.len()).unwrap_or(1);
            for (&at, row) in run.iter().zip(computed) {
                // The ticket of a text that failed passes to another caller.
                if let (Some(ticket), Ok(row)) = (tickets.remove(&at), &row) {
                    made.push(Made { ticket, array: Array::f32([row.len()], row.clone())?, recompute });
                }
                rows[at] = Some(row);
            }
            rest = later;
            // Other callers may wait for these.
            if let Some(holder) = cached_by
                && (made.len() >= PUBLISH_TEXTS_MIN || rest.is_empty())
            {
                match self.stage.publish_each(LABEL, holder, std::mem::take(&mut made)) {
                    // The tickets pass to other callers; these callers have their rows.
                    Err(error) if error.kind() != ErrorKind::OverBudget => return Err(error),
                    _ => {}
                }
            }
        }
        let embedding = |at: usize, row: Option<Result<Vec<f32>>>, equal: Option<&Result<TextEmbedding>>| {
            let found = tokens[at].as_ref().map_err(Clone::clone)?;
            let values = match (equal, row.transpose()?, cached_by) {
                (Some(equal), ..) => equal.as_ref().map_err(Clone::clone)?.values.clone(),
                (None, None, Some(holder)) => match self.run_once(at, &tokens, prompt, holder) {
                    Err(error) if error.kind() == ErrorKind::OverBudget => self.run_alone(at, &tokens, prompt)?,
                    row => row?,
                },
                (None, row, _) => row.ok_or_else(|| Error::corrupt("the graph gave no row"))?,
            };
            Ok(TextEmbedding {
                values,
                tokens: found.ids().len(),
                is_truncated: found.is_truncated(),
                notice: self.notice.clone(),
            })
        };
        let mut results = Vec::with_capacity(texts.len());
        for (at, row) in rows.into_iter().enumerate() {
            // The results so far have that of an earlier text with the same tokens.
            let result = embedding(at, row, results.get(firsts[at]));
            results.push(result);
        }
        Ok(results)
    }

    /// The texts with tokens that differ, with what identifies their embeddings; and for each text of the call the first with the same tokens.
    fn distinct(&self, tokens: &Texts, prompt: Prompt) -> (Vec<(usize, [ContentHash; 2])>, Vec<usize>) {
        let (mut seen, mut distinct) = (HashMap::new(), Vec::new());
        let first = |(at, tokens): (usize, &Result<TextTokens>)| {
            let Ok(tokens) = tokens else { return at };
            let key = self.key(tokens, prompt);
            *seen.entry(key).or_insert_with(|| {
                distinct.push((at, key));
                at
            })
        };
        let firsts = tokens.iter().enumerate().map(first).collect();
        (distinct, firsts)
    }

    /// Claims the embeddings of texts that differ. Puts those that the store has into `rows`, and returns the texts to compute, with their
    /// tickets.
    fn claim(
        &self,
        distinct: Vec<(usize, [ContentHash; 2])>,
        cached_by: Option<&Holder>,
        rows: &mut [Option<Result<Vec<f32>>>],
    ) -> (Vec<usize>, HashMap<usize, Ticket>) {
        let (known, keys): (Vec<usize>, Vec<_>) = distinct.into_iter().unzip();
        let Some(holder) = cached_by else { return (known, HashMap::new()) };
        let (mut missing, mut tickets) = (Vec::new(), HashMap::new());
        for (at, claim) in known.into_iter().zip(self.stage.claim_each(LABEL, &keys, holder)) {
            match claim {
                Claimed::Ready(outputs) => rows[at] = Some(row_of(&outputs)),
                Claimed::Compute(ticket) => {
                    missing.push(at);
                    tickets.extend(ticket.map(|ticket| (at, ticket)));
                }
                Claimed::Elsewhere => {}
            }
        }
        (missing, tickets)
    }

    fn tokenize(&self, text: &EmbedderInput, prompt: &str) -> Result<TextTokens> {
        let (_, tokenizer) = self.model.sentence()?;
        let tokens = match text {
            EmbedderInput::Text(text) if prompt.is_empty() => tokenizer.tokenize(text, self.length)?,
            EmbedderInput::Text(text) => tokenizer.tokenize(&format!("{prompt}{text}"), self.length)?,
            EmbedderInput::Tokens(ids) if prompt.is_empty() => tokenizer.tokens(ids, self.length)?,
            EmbedderInput::Tokens(_) => {
                return Err(Error::invalid(format!(
                    "no prompt can be put before tokens, and this is {prompt:?}: send texts"
                )));
            }
        };
        check_vocabulary(&self.model.model_config(), tokens.ids().iter().map(|&id| i64::from(id)))?;
        Ok(tokens)
    }

    /// The embedding of a text that another caller computes, if that does not give up.
    fn run_once(&self, at: usize, tokens: &Texts, prompt: Prompt, holder: &Holder) -> Result<Vec<f32>> {
        let key = self.key(tokens[at].as_ref().map_err(Clone::clone)?, prompt);
        let run = self.stage.run_once(LABEL, &key, holder, |_| {
            let row = self.run_alone(at, tokens, prompt)?;
            Ok(vec![Array::f32([row.len()], row)?.into()])
        })?;
        row_of(&run.outputs)
    }

    /// The embedding of one text, which other callers do not get.
    fn run_alone(&self, at: usize, tokens: &Texts, prompt: Prompt) -> Result<Vec<f32>> {
        let row = self.run_each(&[at], tokens, prompt).pop();
        row.ok_or_else(|| Error::corrupt("the graph gave no row"))?
    }

    /// What identifies the embedding of a text: the settings, and its tokens.
    fn key(&self, tokens: &TextTokens, prompt: Prompt) -> [ContentHash; 2] {
        [self.settings, tokens_key(tokens, prompt)]
    }

    /// Runs the graph on some texts, and pools. If it fails on several texts, each runs alone, so that the others have theirs.
    fn run_each(&self, texts: &[usize], tokens: &Texts, prompt: Prompt) -> Vec<Result<Vec<f32>>> {
        match self.run(texts, tokens, prompt) {
            Ok(rows) => rows,
            Err(error) if texts.len() == 1 => vec![Err(error)],
            Err(_) => texts.iter().flat_map(|&at| self.run_each(&[at], tokens, prompt)).collect(),
        }
    }

    /// # Errors
    /// An error of the graph, on any of the texts. That of the pooling is an error of one text.
    fn run(&self, texts: &[usize], tokens: &Texts, prompt: Prompt) -> Result<Vec<Result<Vec<f32>>>> {
        let (_, tokenizer) = self.model.sentence()?;
        let list = texts.iter().map(|&at| tokens[at].as_ref().map_err(Clone::clone));
        let batch = &tokenizer.batch(&list.collect::<Result<Vec<_>>>()?, self.length)?;
        let width = batch.added.len() / texts.len();
        let memory = AttentionMemory::of(&self.model.model_config(), texts.len(), width);
        check_attention(&memory, &self.model)?;
        let graph = self.stage.graph();
        let of_texts = text_values(batch);
        let mut bound: Vec<(&str, Value)> = Vec::new();
        for port in graph.inputs() {
            let array = match self.def.source(&port.name) {
                Some(Source::CacheEmpty) => empty_cache(port)?,
                Some(Source::TextTask) => task_value(port, prompt.task, texts.len())?,
                source => {
                    let found = of_texts.iter().find(|(known, _)| Some(known) == source);
                    let none = || Error::unsupported("no text gives this input").in_field(port.name.as_str());
                    found.map(|(_, array)| array.clone()).ok_or_else(none)?
                }
            };
            bound.push((&port.name, Value::from(array)));
        }
        let inputs: Vec<(&str, TensorRef<'_>)> =
            bound.iter().map(|(name, value)| Ok((*name, value.tensor()?))).collect::<Result<_>>()?;
        let output = graph.run_alone(&inputs, &[self.output]).map_err(|error| memory.explain(error))?.pop();
        let output = Value::from(output.ok_or_else(|| Error::corrupt("the graph gave no output"))?);
        let (shape, values) = (output.shape(), output.to_f32()?);
        let output = SentenceOutput { name: self.output, shape, values: &values, is_pooled: self.is_pooled };
        let pooled = output.pooled(&self.sentence, batch, prompt.tokens)?;
        Ok(pooled.into_iter().map(|row| row.map_err(|error| self.model.at_folder(error))).collect())
    }
}

/// The number of tokens of a text.
fn count(tokens: &Texts, at: usize) -> usize {
    tokens[at].as_ref().map_or(0, |tokens| tokens.ids().len())
}

/// The embedding among the outputs of its computation.
fn row_of(outputs: &[Value]) -> Result<Vec<f32>> {
    let value = outputs.first().ok_or_else(|| Error::corrupt("the store lost an embedding"))?;
    Ok(value.to_f32()?.into_owned())
}
