//! Texts to token ids, by the model's own tokenizer.

use crate::array::Array;
use crate::model::{read_bounded, read_json};
use cotensor_core::{ContentHash, Error, Hasher, Result};
use std::path::Path;
use tokenizers::{Encoding, PostProcessor, Tokenizer, TruncationParams};

/// The most bytes a tokenizer.json may have.
const TOKENIZER_BYTES_MAX: u64 = 64 << 20;
/// The length from which `model_max_length` means "no limit", as transformers writes it.
const LENGTH_MAX: u64 = 1 << 20;

/// A model's tokenizer.
pub struct TextProcessor {
    tokenizer: Tokenizer,
    pad: u32,
    fingerprint: ContentHash,
}

/// Texts as a batch: `[texts, tokens of the longest]`, `int32`.
#[derive(Clone, Debug)]
pub struct TokenBatch {
    /// Token ids.
    pub ids: Array,
    /// 1 for a token, 0 for padding.
    pub mask: Array,
    /// Segment of each token.
    pub type_ids: Array,
    /// Which texts were longer than the model reads.
    pub truncated: Vec<bool>,
}

impl TextProcessor {
    /// Reads tokenizer.json and, for the limits, tokenizer_config.json of a model's folder.
    ///
    /// # Errors
    /// `NotFound` without a tokenizer.json, `Corrupt` when it is none.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        if !path.is_file() {
            return Err(Error::not_found("this model needs a tokenizer").in_file(&path));
        }
        let bytes = read_bounded(&path, TOKENIZER_BYTES_MAX)?;
        let mut tokenizer =
            Tokenizer::from_bytes(&bytes).map_err(|error| Error::corrupt(error.to_string()).in_file(&path))?;
        let config_path = folder.join("tokenizer_config.json");
        let config = if config_path.is_file() { read_json(&config_path)? } else { serde_json::Value::Null };
        let own = config.get("model_max_length").and_then(serde_json::Value::as_f64).map(|length| length as u64);
        if let Some(length) = own.filter(|&length| length < LENGTH_MAX) {
            let truncation = TruncationParams { max_length: length as usize, ..TruncationParams::default() };
            let refused = |error: Error| error.in_file(&config_path).in_field("model_max_length");
            check_truncation(&tokenizer, &truncation).map_err(refused)?;
            tokenizer.with_truncation(Some(truncation)).map_err(|error| refused(Error::invalid(error.to_string())))?;
        } else if let Some(truncation) = tokenizer.get_truncation() {
            check_truncation(&tokenizer, truncation).map_err(|error| error.in_file(&path).in_field("truncation"))?;
        }
        let named_pad = config.get("pad_token").and_then(|pad| pad.as_str().or_else(|| pad.get("content")?.as_str()));
        let pad = match (named_pad, tokenizer.get_padding()) {
            (Some(name), _) => tokenizer.token_to_id(name).ok_or_else(|| {
                Error::invalid(format!("{name:?} is not in the vocabulary")).in_file(&config_path).in_field("pad_token")
            })?,
            (None, Some(padding)) => padding.pad_id,
            (None, None) => 0,
        };
        // Padding is done here: the longest of the batch, on the right.
        tokenizer.with_padding(None);
        let mut hasher = Hasher::new("cotensor tokenizer v1");
        hasher.field(&bytes).field(config.to_string().as_bytes());
        Ok(Self { tokenizer, pad, fingerprint: hasher.finish() })
    }

    /// Token ids of `texts`, padded to the longest and truncated to what the model reads.
    ///
    /// # Errors
    /// `Invalid` when the tokenizer refuses a text or there is none.
    pub fn encode(&self, texts: &[&str]) -> Result<TokenBatch> {
        let encode = |text: &&str| {
            self.tokenizer.encode(*text, true).map_err(|error| Error::invalid(format!("cannot tokenize: {error}")))
        };
        let encodings: Vec<Encoding> = texts.iter().map(encode).collect::<Result<_>>()?;
        let longest = encodings.iter().map(Encoding::len).max().unwrap_or(0);
        if longest == 0 {
            return Err(Error::invalid("there is no token to read in the text").in_field("text"));
        }
        let shape = [texts.len(), longest];
        let array = |of: fn(&Encoding) -> &[u32], pad: u32| {
            let padded = |encoding: &Encoding| {
                let padding = std::iter::repeat_n(pad as i32, longest - encoding.len());
                of(encoding).iter().map(|&id| id as i32).chain(padding).collect::<Vec<_>>()
            };
            Array::i32(shape, encodings.iter().flat_map(padded).collect())
        };
        Ok(TokenBatch {
            ids: array(Encoding::get_ids, self.pad)?,
            mask: array(Encoding::get_attention_mask, 0)?,
            type_ids: array(Encoding::get_type_ids, 0)?,
            truncated: encodings.iter().map(|encoding| !encoding.get_overflowing().is_empty()).collect(),
        })
    }

    /// Text of token ids, special tokens left out.
    ///
    /// # Errors
    /// `Invalid` when the tokenizer cannot put them together.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids, true).map_err(|error| Error::invalid(format!("cannot decode tokens: {error}")))
    }

    /// The token with this id, as the vocabulary spells it.
    pub fn token(&self, id: i32) -> Option<String> {
        self.tokenizer.id_to_token(u32::try_from(id).ok()?)
    }

    /// Whether this id is no text: padding, a start, an end.
    pub fn is_special(&self, id: i32) -> bool {
        let added = self.tokenizer.get_added_tokens_decoder();
        u32::try_from(id).ok().and_then(|id| added.get(&id)).is_some_and(|token| token.special)
    }

    /// Hash of all that decides which ids a text gets.
    pub fn fingerprint(&self) -> ContentHash {
        self.fingerprint
    }
}

/// A length that leaves no room for text: the crate that truncates subtracts the special tokens and the stride unchecked.
fn check_truncation(tokenizer: &Tokenizer, truncation: &TruncationParams) -> Result<()> {
    let special = tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(false));
    if truncation.max_length > special.saturating_add(truncation.stride) {
        return Ok(());
    }
    Err(Error::invalid(format!("{} tokens leave no room beside {special} special ones", truncation.max_length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_without_room_for_text_is_refused() {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/bert");
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(tiny.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
        let open = |length: u32| {
            let config = format!("{{\"model_max_length\": {length}}}");
            std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
            TextProcessor::open(folder.path())
        };
        for length in 0..=2 {
            let error = open(length).err().unwrap().to_string();
            assert!(error.contains("tokenizer_config.json: model_max_length"), "{error}");
        }
        let batch = open(3).unwrap().encode(&["the harbour wakes"]).unwrap();
        assert_eq!((batch.ids.shape(), batch.truncated), (&[1, 3][..], vec![true]));
    }
}
