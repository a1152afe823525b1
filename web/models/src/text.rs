//! Tokenization.

use crate::arrays::ArrayHandle;
use crate::errors::Result;
use crate::family::ModelFamily;
use crate::files::ConfigFiles;
use crate::sentence::SentencePooling;
use cotensor_core::{Error, size};
use cotensor_pipeline::check_vocabulary;
use cotensor_preprocess::TokenBatch;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// The most texts of a call.
const TEXTS_MAX: usize = 10_000;
/// The most bytes of all texts of a call.
const TEXT_BYTES_MAX: usize = 64 << 20;

/// The tokenizer of a model, with its truncation and padding.
#[wasm_bindgen]
pub struct TextProcessor {
    pub(crate) text: Rc<cotensor_preprocess::TextProcessor>,
    family: Rc<ModelFamily>,
}

#[wasm_bindgen]
impl TextProcessor {
    /// Reads tokenizer.json and, for the limits, tokenizer_config.json and the positions of the model.
    ///
    /// # Errors
    /// `NotFound` without a tokenizer.json, `Corrupt` when it is not a tokenizer, `Invalid` for a limit without room for text.
    #[wasm_bindgen(constructor)]
    pub fn new(files: &ConfigFiles, family: &ModelFamily) -> Result<TextProcessor> {
        let text = cotensor_preprocess::TextProcessor::open_for(files, &family.config())?;
        Ok(Self { text: Rc::new(text), family: Rc::new(family.clone()) })
    }

    /// This tokenizer with the limits of sentence embeddings.
    ///
    /// # Errors
    /// `Invalid` when the limit leaves no room for text.
    #[wasm_bindgen(js_name = forSentences)]
    pub fn for_sentences(&self, sentence: &SentencePooling) -> Result<TextProcessor> {
        let pooling = &sentence.0;
        let text = self.text.for_sentences(pooling.max_tokens(self.text.max_tokens()), pooling.lowercases())?;
        Ok(Self { text: Rc::new(text), family: Rc::clone(&self.family) })
    }

    /// The tokens of texts, truncated to the model's limit and padded to the longest text, or to `length` for graphs that read
    /// a fixed number of tokens.
    ///
    /// # Errors
    /// `Invalid` when the tokenizer refuses a text, when no text has a token, and when a row needs padding and no padding token
    /// is configured, and for a token beyond the vocabulary in config.json.
    pub fn encode(&self, texts: Vec<String>, length: Option<u32>) -> Result<Tokens> {
        check(&[&texts])?;
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        self.checked(self.text.encode_to(&texts, length.map(|length| length as usize))?)
    }

    /// As [`encode`](Self::encode), with a row for each pair of texts.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); `Invalid` for lists of different lengths, and when the limit leaves no room for a pair.
    #[wasm_bindgen(js_name = encodePairs)]
    pub fn encode_pairs(&self, first: Vec<String>, second: Vec<String>, length: Option<u32>) -> Result<Tokens> {
        check(&[&first, &second])?;
        if first.len() != second.len() {
            let message = format!("{} texts and {} texts", first.len(), second.len());
            return Err(Error::invalid(message).in_field("texts").into());
        }
        let pairs: Vec<_> = first.iter().map(String::as_str).zip(second.iter().map(String::as_str)).collect();
        self.checked(self.text.encode_pairs(&pairs, length.map(|length| length as usize))?)
    }

    /// The number of tokens of a prefix, with the tokens that the tokenizer adds before it and without those after it.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    #[wasm_bindgen(js_name = prefixTokens)]
    pub fn prefix_tokens(&self, text: &str) -> Result<usize> {
        Ok(self.text.prefix_tokens(text)?)
    }

    /// The text of token ids, without special tokens.
    ///
    /// # Errors
    /// `Invalid` when the tokenizer cannot decode them.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        Ok(self.text.decode(ids)?)
    }

    /// The token with this id, as the vocabulary has it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.text.token(id.into())
    }

    /// The most tokens of a text, if the configuration limits them.
    #[wasm_bindgen(getter, js_name = maxTokens)]
    pub fn max_tokens(&self) -> Option<usize> {
        self.text.max_tokens()
    }

    /// The hash of every setting that affects the ids of a text, 64 hexadecimal digits.
    #[wasm_bindgen(getter)]
    pub fn fingerprint(&self) -> String {
        self.text.fingerprint().to_string()
    }
}

impl TextProcessor {
    /// The tokens of a text without the tokens that the tokenizer adds to a text.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub(crate) fn encode_plain(&self, text: String) -> Result<Tokens> {
        let texts = [text];
        check(&[&texts])?;
        self.checked(self.text.encode_plain(&texts[0])?)
    }

    /// Refuses tokens beyond the model's vocabulary.
    fn checked(&self, batch: TokenBatch) -> Result<Tokens> {
        check_vocabulary(&self.family.config(), batch.ids.as_i64()?.iter().copied())?;
        Ok(Tokens(batch))
    }
}

/// Texts as tokens: each array is `[texts, tokens of the longest text]`, `int64`.
#[wasm_bindgen]
pub struct Tokens(pub(crate) TokenBatch);

#[wasm_bindgen]
impl Tokens {
    /// Token ids.
    pub fn ids(&self) -> ArrayHandle {
        self.0.ids.clone().into()
    }

    /// 1 for a token, 0 for padding.
    pub fn mask(&self) -> ArrayHandle {
        self.0.mask.clone().into()
    }

    /// The segment of each token.
    pub fn types(&self) -> ArrayHandle {
        self.0.type_ids.clone().into()
    }

    /// The number of tokens before each token; padding counts as nothing.
    pub fn positions(&self) -> ArrayHandle {
        self.0.positions.clone().into()
    }

    /// For each token, 1 if it is padding or was added around the text by the tokenizer.
    pub fn added(&self) -> Vec<u8> {
        self.0.added.iter().map(|&added| added.into()).collect()
    }

    /// For each text, 1 if it was longer than the limit.
    pub fn truncated(&self) -> Vec<u8> {
        self.0.truncated.iter().map(|&truncated| truncated.into()).collect()
    }
}

/// How many of the first texts run together. `counts` are their tokens, in ascending order; `fixed` is the number of tokens
/// that the graph reads, if it is fixed.
#[wasm_bindgen(js_name = runLength)]
pub fn run_length(counts: &[u32], fixed: Option<usize>) -> usize {
    let counts: Vec<usize> = counts.iter().map(|&count| count as usize).collect();
    cotensor_pipeline::run_length(&counts, fixed)
}

fn check(lists: &[&[String]]) -> Result<()> {
    let (count, bytes) = lists.iter().fold((0, 0), |(count, bytes), texts| {
        (count.max(texts.len()), bytes + texts.iter().map(String::len).sum::<usize>())
    });
    if count == 0 || count > TEXTS_MAX || bytes > TEXT_BYTES_MAX {
        let (bytes, most) = (size(bytes as u64), size(TEXT_BYTES_MAX as u64));
        let message = format!("{count} texts of {bytes}; 1 to {TEXTS_MAX} texts of at most {most} are read at a time");
        return Err(Error::invalid(message).in_field("texts").into());
    }
    Ok(())
}
