//! Decoding: a decoder reads a prompt, then one token after the other. Its host runs the graphs, and keeps the values of the
//! tokens before.

use super::decoder::{Cached, DecoderPorts, cached, empty_cache, shape_of_one};
use super::image_tokens::merged;
use cotensor_core::{DType, Error, Result};
use cotensor_preprocess::Array;
use cotensor_preprocess::family::{DecoderDef, LOGITS, Source};
use cotensor_preprocess::generation::Settings;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// A graph of a decoder. Both may be the same graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Reads the prompt.
    Prompt,
    /// Reads one token.
    Step,
}

/// Runs the graphs of a decoder. A native host answers at once ([`at_once`]); a page waits for its engine.
#[allow(async_fn_in_trait, reason = "a host is used on the thread that polls it")]
pub trait DecoderHost {
    /// A tensor, in the form in which the host gives it to a graph.
    type Value: Clone + From<Array>;

    /// The names of the values that runs keep.
    fn def(&self) -> &DecoderDef;

    /// The inputs and outputs of a graph.
    fn graph(&self, half: Half) -> DecoderPorts<'_>;

    /// A value of another stage, or of a text.
    fn value(&self, source: &Source) -> Option<Self::Value>;

    /// The token that stands for an image, and the features of the image, `[1, rows, width]`.
    fn image(&self) -> Option<(i64, Self::Value)>;

    /// The embeddings of tokens, `[1, tokens, width]`.
    async fn embed(&self, tokens: &[i64]) -> Result<Self::Value>;

    /// Shape and elements of a `float32` value.
    async fn numbers<'v>(&self, value: &'v Self::Value) -> Result<(Vec<usize>, Cow<'v, [f32]>)>;

    /// Runs a graph on `inputs` and on the values that earlier runs kept. Keeps the outputs `keep` for later runs. Returns the
    /// last row of the logits, as [`last_row`](super::last_row) checks it.
    async fn run(&self, half: Half, inputs: &[(&str, Self::Value)], keep: &[&Cached]) -> Result<Vec<f32>>;

    /// Counts the bytes that were copied to embed an image.
    fn record_copy(&self, bytes: usize);
}

/// A decoder that has read some tokens.
#[derive(Debug)]
pub struct Decoder<H> {
    host: H,
    of_step: Vec<Cached>,
    /// The inputs whose values the host keeps.
    kept: BTreeSet<String>,
    rows: usize,
}

impl<H: DecoderHost> Decoder<H> {
    /// A decoder that has read nothing.
    ///
    /// # Errors
    /// `Unsupported` for a decoder without a cache; `Corrupt` when outputs and inputs of the graphs do not match.
    pub fn new(host: H) -> Result<Self> {
        let of_step = kept_by(&host, Half::Step)?;
        Ok(Self { host, of_step, kept: BTreeSet::new(), rows: 0 })
    }

    /// A decoder whose host has the cache of a prompt of `rows` tokens.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn resume(host: H, rows: usize) -> Result<Self> {
        let kept = kept_by(&host, Half::Prompt)?.into_iter().map(|each| each.input).collect();
        Ok(Self { kept, rows, ..Self::new(host)? })
    }

    /// The host.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Reads further tokens, and returns the scores of the next one. After an error, the decoder must not be used: its host may
    /// have the values of the tokens.
    ///
    /// # Errors
    /// `Unsupported` for an input that the family does not describe, `Corrupt` when the graphs do not match; the errors of the host.
    pub async fn read(&mut self, tokens: &[i64]) -> Result<Vec<f32>> {
        let is_first = self.rows == 0;
        let of_prompt = if is_first { kept_by(&self.host, Half::Prompt)? } else { Vec::new() };
        let (half, cached) = if is_first { (Half::Prompt, &of_prompt) } else { (Half::Step, &self.of_step) };
        // Fixed values are kept from the first run only.
        let keep: Vec<&Cached> = cached.iter().filter(|each| is_first || !each.fixed).collect();
        let inputs = bind(&self.host, half, tokens, self.rows, &self.kept).await?;
        let scores = self.host.run(half, &inputs, &keep).await?;
        if is_first {
            self.kept = of_prompt.into_iter().map(|each| each.input).collect();
        }
        self.rows += tokens.len();
        Ok(scores)
    }
}

/// The values that later runs read of a run of `half`, in the order of its outputs.
///
/// # Errors
/// As [`Decoder::new`].
pub fn kept_by<H: DecoderHost>(host: &H, half: Half) -> Result<Vec<Cached>> {
    cached(host.def(), host.graph(half), host.graph(Half::Step), half == Half::Prompt)
}

/// The inputs of a run that reads the first tokens, by name.
///
/// # Errors
/// As [`Decoder::read`].
pub async fn first_inputs<'h, H: DecoderHost>(host: &'h H, tokens: &[i64]) -> Result<Vec<(&'h str, H::Value)>> {
    bind(host, Half::Prompt, tokens, 0, &BTreeSet::new()).await
}

/// Decodes after `prompt`, which `decoder` has read; `scores` are the scores of the first token. Returns the tokens without the
/// end token. `on_token` gets each token as soon as it is chosen, and an error of it stops the decoding.
///
/// # Errors
/// As [`Decoder::read`]; `Corrupt` when no token is allowed, and when the numbers of scores differ; the errors of `on_token`.
pub async fn decode<H: DecoderHost>(
    decoder: &mut Decoder<H>,
    mut scores: Vec<f32>,
    prompt: &[i64],
    settings: &Settings,
    mut on_token: impl AsyncFnMut(i64) -> Result<()>,
) -> Result<Vec<i64>> {
    let (mut tokens, vocabulary) = (Vec::new(), scores.len());
    while tokens.len() < settings.max {
        let token = settings.next_token(&mut scores, prompt, &tokens)?;
        if settings.ends.contains(&token) {
            break;
        }
        tokens.push(token);
        on_token(token).await?;
        if tokens.len() < settings.max {
            scores = decoder.read(&[token]).await?;
            if scores.len() != vocabulary {
                let message =
                    format!("the decoder gives {} scores after {vocabulary} for the first token", scores.len());
                return Err(Error::corrupt(message).in_field(LOGITS));
            }
        }
    }
    Ok(tokens)
}

/// The result of a future whose host answers at once.
///
/// # Errors
/// `Unsupported` when the host would have to wait.
pub fn at_once<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(Error::unsupported("the host of a native program must answer at once")),
    }
}

/// The inputs of a run on `tokens` after `rows` tokens. The host has the values of `kept`.
async fn bind<'h, H: DecoderHost>(
    host: &'h H,
    half: Half,
    tokens: &[i64],
    rows: usize,
    kept: &BTreeSet<String>,
) -> Result<Vec<(&'h str, H::Value)>> {
    let DecoderPorts { ports, def } = host.graph(half);
    let count = tokens.len();
    let positions = || (rows..rows + count).map(|row| row as i64).collect::<Vec<_>>();
    let mut bound = Vec::new();
    for port in ports.inputs.iter().filter(|port| !kept.contains(&port.name)) {
        let name = port.name.as_str();
        let value = match def.source(name) {
            Some(Source::TokenIds) => Array::i64([1, count], tokens.to_vec())?.into(),
            Some(Source::TokenEmbeds) => embeddings(host, tokens).await?,
            Some(Source::TokenMask) => Array::i64([1, rows + count], vec![1; rows + count])?.into(),
            Some(Source::TokenPositions) => Array::i64([1, count], positions())?.into(),
            Some(Source::TokenCachePositions) => Array::i64([count], positions())?.into(),
            Some(Source::TokenLogits) => Array::i64(shape_of_one(port), vec![1])?.into(),
            Some(Source::CacheFilled) => Array::new(DType::Bool, shape_of_one(port), vec![u8::from(rows > 0)])?.into(),
            Some(source) => host
                .value(source)
                .ok_or_else(|| Error::invalid(format!("stage {:?} needs {source}, which no stage made", def.role)))?,
            None if rows == 0 && name.starts_with(host.def().past.as_str()) => empty_cache(port)?.into(),
            None => {
                let message = format!("the family does not describe this input of {:?}", def.role);
                return Err(Error::unsupported(message).in_field(name));
            }
        };
        bound.push((name, value));
    }
    Ok(bound)
}

/// The embeddings of tokens: those of the graph, and for image tokens the features, in order.
async fn embeddings<H: DecoderHost>(host: &H, ids: &[i64]) -> Result<H::Value> {
    let Some((token, features)) = host.image().filter(|(token, _)| ids.contains(token)) else {
        return host.embed(ids).await;
    };
    let words: Vec<i64> = ids.iter().copied().filter(|id| *id != token).collect();
    let embedded = host.embed(&words).await?;
    let (shape, of_words) = host.numbers(&embedded).await?;
    let (of_features, of_image) = host.numbers(&features).await?;
    let width = shape.last().copied().unwrap_or_default();
    let rows = ids.len() - words.len();
    if of_features != [1, rows, width] || shape != [1, words.len(), width] {
        let message =
            format!("{rows} image tokens and embeddings of width {width}; the image has features {of_features:?}");
        return Err(Error::corrupt(message).in_field("embeddings"));
    }
    let all = merged(ids, token, &of_words, &of_image, width);
    host.record_copy(size_of_val(all.as_slice()));
    Ok(Array::f32([1, ids.len(), width], all)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::StagePorts;
    use cotensor_core::ErrorKind;
    use cotensor_graph::Port;
    use cotensor_preprocess::family::{Family, family_of};
    use std::cell::{Cell, RefCell};

    /// A language model on one graph, whose next token is the number of tokens that it has read.
    struct Counting {
        family: &'static Family,
        ports: [Vec<Port>; 2],
        read: RefCell<Vec<Read>>,
        rows: Cell<usize>,
        waits: bool,
        /// The scores of a run after the first one.
        of_step: usize,
    }

    /// A run: its graph, the names of its inputs, its tokens.
    type Read = (Half, Vec<String>, Vec<i64>);

    const VOCABULARY: usize = 16;

    fn host(waits: bool) -> Counting {
        let port = |name: &str, dtype, dims: &[Option<usize>]| Port {
            name: name.into(),
            dtype: Some(dtype),
            dims: Some(dims.to_vec()),
        };
        let cache = |name: &str| port(name, DType::F32, &[None, Some(2), None, Some(4)]);
        let inputs = vec![port("input_ids", DType::I64, &[None, None]), cache("past_key_values.0.key")];
        let outputs = vec![port("logits", DType::F32, &[None, None, Some(VOCABULARY)]), cache("present.0.key")];
        let family = family_of("llama").unwrap();
        Counting {
            family,
            ports: [inputs, outputs],
            read: RefCell::default(),
            rows: Cell::new(0),
            waits,
            of_step: VOCABULARY,
        }
    }

    impl DecoderHost for Counting {
        type Value = Array;

        fn def(&self) -> &DecoderDef {
            self.family.decoder.as_ref().unwrap()
        }

        fn graph(&self, _half: Half) -> DecoderPorts<'_> {
            let [inputs, outputs] = &self.ports;
            DecoderPorts {
                ports: StagePorts { role: "decoder", inputs, outputs },
                def: self.family.stage("decoder").unwrap(),
            }
        }

        fn value(&self, _source: &Source) -> Option<Array> {
            None
        }

        fn image(&self) -> Option<(i64, Array)> {
            None
        }

        async fn embed(&self, _tokens: &[i64]) -> Result<Array> {
            Err(Error::unsupported("no graph embeds tokens"))
        }

        async fn numbers<'v>(&self, value: &'v Array) -> Result<(Vec<usize>, Cow<'v, [f32]>)> {
            Ok((value.shape().to_vec(), value.as_f32()?.into()))
        }

        async fn run(&self, half: Half, inputs: &[(&str, Array)], keep: &[&Cached]) -> Result<Vec<f32>> {
            if self.waits {
                std::future::pending::<()>().await;
            }
            assert_eq!(keep.iter().map(|each| each.input.as_str()).collect::<Vec<_>>(), ["past_key_values.0.key"]);
            let ids = inputs[0].1.as_i64()?.to_vec();
            self.rows.set(self.rows.get() + ids.len());
            self.read.borrow_mut().push((half, inputs.iter().map(|(name, _)| (*name).to_owned()).collect(), ids));
            let mut scores = vec![0.0; if half == Half::Prompt { VOCABULARY } else { self.of_step }];
            scores[self.rows.get()] = 1.0;
            Ok(scores)
        }

        fn record_copy(&self, _bytes: usize) {}
    }

    fn decoded(waits: bool, settings: &Settings) -> Result<(Vec<i64>, Decoder<Counting>)> {
        decoded_by(host(waits), settings)
    }

    fn decoded_by(host: Counting, settings: &Settings) -> Result<(Vec<i64>, Decoder<Counting>)> {
        let mut decoder = Decoder::new(host)?;
        at_once(async {
            let scores = decoder.read(&[7, 8]).await?;
            decode(&mut decoder, scores, &[7, 8], settings, async |_| Ok(())).await
        })
        .map(|tokens| (tokens, decoder))
    }

    #[test]
    fn each_token_is_read_once_and_the_cache_is_kept() {
        let (tokens, decoder) = decoded(false, &Settings::greedy(3)).unwrap();
        assert_eq!(tokens, [2, 3, 4]);
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let read = [
            (Half::Prompt, names(&["input_ids", "past_key_values.0.key"]), vec![7, 8]),
            (Half::Step, names(&["input_ids"]), vec![2]),
            (Half::Step, names(&["input_ids"]), vec![3]),
        ];
        assert_eq!(*decoder.host().read.borrow(), read);
    }

    #[test]
    fn end_token_ends_the_text_and_is_no_part_of_it() {
        let settings = Settings { ends: vec![4], ..Settings::greedy(9) };
        assert_eq!(decoded(false, &settings).unwrap().0, [2, 3]);
    }

    #[test]
    fn graph_with_another_vocabulary_is_refused() {
        let host = Counting { of_step: VOCABULARY - 1, ..host(false) };
        let error = decoded_by(host, &Settings::greedy(3)).err().unwrap();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Corrupt, Some(LOGITS)));
    }

    #[test]
    fn native_host_that_waits_is_an_error() {
        let error = decoded(true, &Settings::greedy(1)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}
