//! Texts to token ids, by the model's own tokenizer.

use crate::array::Array;
use crate::folder::{find_json, read_bounded};
use cotensor_core::{ContentHash, Error, Hasher, Result};
use std::path::Path;
use tokenizers::normalizers::{Lowercase, NormalizerWrapper, Sequence};
use tokenizers::{Encoding, PostProcessor, Tokenizer, TruncationDirection, TruncationParams};

/// The most bytes a tokenizer.json may have.
const TOKENIZER_BYTES_MAX: u64 = 64 << 20;
/// The length from which `model_max_length` means "no limit", as transformers writes it.
const LENGTH_MAX: u64 = 1 << 20;

/// A model's tokenizer.
pub struct TextProcessor {
    tokenizer: Tokenizer,
    /// What fills a row up, where tokenizer.json or tokenizer_config.json says.
    pad: Option<u32>,
    pads_left: bool,
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
    /// Which tokens are no text: padding, and those that the tokenizer adds around a text.
    pub added: Vec<bool>,
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
        let config = find_json(&config_path)?.unwrap_or_default();
        let refused = |error: Error, field: &str| error.in_file(&config_path).in_field(field);
        let side = |field: &str| match config.get(field).and_then(serde_json::Value::as_str) {
            None | Some("right") => Ok(false),
            Some("left") => Ok(true),
            Some(other) => Err(refused(Error::invalid(format!("{other:?} is no side")), field)),
        };
        let own = config.get("model_max_length").and_then(serde_json::Value::as_f64).map(|length| length as u64);
        if let Some(length) = own.filter(|&length| length < LENGTH_MAX) {
            let direction =
                if side("truncation_side")? { TruncationDirection::Left } else { TruncationDirection::Right };
            let truncation = TruncationParams { max_length: length as usize, direction, ..TruncationParams::default() };
            truncate(&mut tokenizer, truncation).map_err(|error| refused(error, "model_max_length"))?;
        } else if let Some(truncation) = tokenizer.get_truncation() {
            check_truncation(&tokenizer, truncation).map_err(|error| error.in_file(&path).in_field("truncation"))?;
        }
        configure_bert(&mut tokenizer, &config);
        let named_pad = config.get("pad_token").and_then(|pad| pad.as_str().or_else(|| pad.get("content")?.as_str()));
        let pad =
            match (named_pad, tokenizer.get_padding()) {
                (Some(name), _) => Some(tokenizer.token_to_id(name).ok_or_else(|| {
                    refused(Error::invalid(format!("{name:?} is not in the vocabulary")), "pad_token")
                })?),
                (None, padding) => padding.map(|padding| padding.pad_id),
            };
        // Rows are filled up here, to the longest of the batch or to what the graph reads.
        tokenizer.with_padding(None);
        let mut hasher = Hasher::new("cotensor tokenizer v2");
        hasher.field(&bytes).field(config.to_string().as_bytes());
        Ok(Self { tokenizer, pad, pads_left: side("padding_side")?, fingerprint: hasher.finish() })
    }

    /// The same tokenizer as sentence-transformers sets it up: texts of at most `max_tokens`, in lower case if `lower`.
    ///
    /// # Errors
    /// `Invalid` for a length without room for text.
    pub(crate) fn for_sentences(&self, max_tokens: Option<usize>, lower: bool) -> Result<Self> {
        let mut tokenizer = self.tokenizer.clone();
        if let Some(max_length) = max_tokens {
            let known = tokenizer.get_truncation().cloned().unwrap_or_default();
            truncate(&mut tokenizer, TruncationParams { max_length, ..known })?;
        }
        if lower && !tokenizer.get_normalizer().is_some_and(lowercases) {
            let known = tokenizer.get_normalizer().cloned();
            let first = NormalizerWrapper::Lowercase(Lowercase);
            tokenizer.with_normalizer(Some(Sequence::new(std::iter::once(first).chain(known).collect())));
        }
        let mut hasher = Hasher::new("cotensor sentence tokenizer v1");
        hasher.field(self.fingerprint.as_bytes()).number(max_tokens.map_or(0, |length| length as u64));
        hasher.number(u64::from(lower));
        Ok(Self { tokenizer, fingerprint: hasher.finish(), ..*self })
    }

    /// Token ids of `texts`, padded to the longest and truncated to what the model reads.
    ///
    /// # Errors
    /// `Invalid` when the tokenizer refuses a text or there is none.
    pub fn encode(&self, texts: &[&str]) -> Result<TokenBatch> {
        self.encode_to(texts, None)
    }

    /// As [`encode`](Self::encode), with rows of `length` tokens where one is given: for graphs that read no other number.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); `Invalid` when rows have to be filled up and no padding token is configured.
    pub fn encode_to(&self, texts: &[&str], length: Option<usize>) -> Result<TokenBatch> {
        if let Some(length) = length.filter(|&length| length as u64 > LENGTH_MAX) {
            return Err(Error::unsupported(format!("the graph reads {length} tokens; at most {LENGTH_MAX} are made")));
        }
        let shorter = match (length, self.tokenizer.get_truncation()) {
            (Some(length), Some(known)) if known.max_length <= length => None,
            (Some(length), known) => {
                let mut tokenizer = self.tokenizer.clone();
                let known = known.cloned().unwrap_or_default();
                truncate(&mut tokenizer, TruncationParams { max_length: length, ..known })?;
                Some(tokenizer)
            }
            (None, _) => None,
        };
        let tokenizer = shorter.as_ref().unwrap_or(&self.tokenizer);
        let encode = |text: &&str| {
            tokenizer.encode(*text, true).map_err(|error| Error::invalid(format!("cannot tokenize: {error}")))
        };
        let encodings: Vec<Encoding> = texts.iter().map(encode).collect::<Result<_>>()?;
        let longest = encodings.iter().map(Encoding::len).max().unwrap_or(0);
        if longest == 0 {
            return Err(Error::invalid("there is no token to read in the text").in_field("text"));
        }
        let longest = length.unwrap_or(longest);
        if length.is_some() && self.pad.is_none() && encodings.iter().any(|encoding| encoding.len() < longest) {
            let message = format!("the graph reads {longest} tokens and no fewer, and no padding token is configured");
            return Err(Error::invalid(message).in_field("pad_token"));
        }
        let shape = [texts.len(), longest];
        let row = |encoding: &Encoding, of: fn(&Encoding) -> &[u32], pad: u32| {
            let padding = std::iter::repeat_n(pad, longest - encoding.len());
            let given = of(encoding).iter().copied();
            if self.pads_left { padding.chain(given).collect::<Vec<_>>() } else { given.chain(padding).collect() }
        };
        let array = |of: fn(&Encoding) -> &[u32], pad: u32| {
            let rows = encodings.iter().flat_map(|encoding| row(encoding, of, pad));
            Array::i32(shape, rows.map(|id| id as i32).collect())
        };
        let added = encodings.iter().flat_map(|encoding| row(encoding, Encoding::get_special_tokens_mask, 1));
        Ok(TokenBatch {
            ids: array(Encoding::get_ids, self.pad.unwrap_or(0))?,
            mask: array(Encoding::get_attention_mask, 0)?,
            type_ids: array(Encoding::get_type_ids, 0)?,
            added: added.map(|added| added != 0).collect(),
            truncated: encodings.iter().map(|encoding| !encoding.get_overflowing().is_empty()).collect(),
        })
    }

    /// The most tokens of a text that are read, where the configuration says.
    pub(crate) fn max_tokens(&self) -> Option<usize> {
        self.tokenizer.get_truncation().map(|truncation| truncation.max_length)
    }

    /// How many tokens a text's beginning has, the added ones before it included, those after it not.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub(crate) fn prefix_tokens(&self, text: &str) -> Result<usize> {
        let encoded = self.encode(&[text])?;
        Ok(encoded.added.len() - usize::from(encoded.added.last() == Some(&true)))
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

    /// Hash of all that decides which ids a text gets.
    pub fn fingerprint(&self) -> ContentHash {
        self.fingerprint
    }
}

/// Truncates to a length that leaves room for text.
fn truncate(tokenizer: &mut Tokenizer, truncation: TruncationParams) -> Result<()> {
    check_truncation(tokenizer, &truncation)?;
    tokenizer.with_truncation(Some(truncation)).map_err(|error| Error::invalid(error.to_string()))?;
    Ok(())
}

/// BERT's tokenizer classes take three settings from tokenizer_config.json, whatever tokenizer.json was saved with.
fn configure_bert(tokenizer: &mut Tokenizer, config: &serde_json::Value) {
    let class = config.get("tokenizer_class").and_then(serde_json::Value::as_str).unwrap_or("BertTokenizer");
    let Some(NormalizerWrapper::BertNormalizer(known)) = tokenizer.get_normalizer() else { return };
    if !class.starts_with("Bert") {
        return;
    }
    let mut bert = *known;
    let flag = |field: &str| config.get(field).and_then(serde_json::Value::as_bool);
    bert.lowercase = flag("do_lower_case").unwrap_or(bert.lowercase);
    bert.handle_chinese_chars = flag("tokenize_chinese_chars").unwrap_or(bert.handle_chinese_chars);
    if let Some(strip) = config.get("strip_accents") {
        bert.strip_accents = strip.as_bool();
    }
    tokenizer.with_normalizer(Some(bert));
}

fn lowercases(normalizer: &NormalizerWrapper) -> bool {
    match normalizer {
        NormalizerWrapper::BertNormalizer(bert) => bert.lowercase,
        NormalizerWrapper::Lowercase(_) => true,
        NormalizerWrapper::Sequence(sequence) => sequence.as_ref().iter().any(lowercases),
        _ => false,
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
