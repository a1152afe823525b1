use super::growth::check_growth;
use super::positions::position_limit;
use crate::array::Array;
use crate::family::{self, ModelConfig};
use crate::files::{ModelFiles, find_json};
use crate::guard::guarded;
use cotensor_core::{ContentHash, Error, Hasher, Result};
use std::ops::Range;
use tokenizers::normalizers::{Lowercase, NormalizerWrapper, Sequence};
use tokenizers::{EncodeInput, Encoding, PostProcessor, Tokenizer, TruncationDirection, TruncationParams};

const TOKENIZER_FILE: &str = "tokenizer.json";
const CONFIG_FILE: &str = "tokenizer_config.json";
/// The most bytes that a tokenizer.json may have.
const TOKENIZER_BYTES_MAX: u64 = 64 << 20;
/// From this length on, `model_max_length` means "no limit": transformers writes large numbers.
const LENGTH_MAX: u64 = 1 << 20;
/// The most bytes of a text. The tokenizer reads the whole text, though the model reads its beginning only: 1 s and 200 MiB for
/// each megabyte.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// The tokenizer of a model, with its truncation and padding.
pub struct TextProcessor {
    tokenizer: Tokenizer,
    /// The padding token, if tokenizer.json or tokenizer_config.json names one.
    pad: Option<u32>,
    fingerprint: ContentHash,
}

/// A batch of texts: each array is `[texts, tokens of the longest text]`, `int64`. Shorter texts are padded at the end, whatever
/// `padding_side` says: models whose positions count from the start of a row would read a text behind padding elsewhere.
#[derive(Clone, Debug)]
pub struct TokenBatch {
    /// Token ids.
    pub ids: Array,
    /// 1 for a token, 0 for padding.
    pub mask: Array,
    /// The number of tokens before each token; padding counts as nothing.
    pub positions: Array,
    /// The segment of each token.
    pub type_ids: Array,
    /// For each token: whether it is padding or was added around the text by the tokenizer.
    pub added: Vec<bool>,
    /// For each text: whether it was longer than the limit.
    pub truncated: Vec<bool>,
}

/// The tokens of a text, truncated to the model's limit, before they are padded.
pub struct TextTokens {
    encoding: Encoding,
    is_truncated: bool,
}

impl TextTokens {
    /// The token ids.
    pub fn ids(&self) -> &[u32] {
        self.encoding.get_ids()
    }

    /// The types of the tokens, such as the number of the sentence in a pair.
    pub fn type_ids(&self) -> &[u32] {
        self.encoding.get_type_ids()
    }

    /// Whether the text was longer than the limit.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }
}

impl TextProcessor {
    /// Reads tokenizer.json and, for the limits, tokenizer_config.json.
    ///
    /// # Errors
    /// `NotFound` without a tokenizer.json, `Corrupt` when it is not a tokenizer.
    pub fn open(files: &dyn ModelFiles) -> Result<Self> {
        let path = files.path(TOKENIZER_FILE);
        let bytes = files.read(TOKENIZER_FILE, TOKENIZER_BYTES_MAX)?;
        let bytes = bytes.ok_or_else(|| Error::not_found("this model needs a tokenizer").in_file(&path))?;
        let read = || Tokenizer::from_bytes(&bytes).map_err(|error| Error::corrupt(error.to_string()));
        let mut tokenizer =
            guarded(read, || Error::corrupt("the tokenizer is damaged")).map_err(|error| error.in_file(&path))?;
        check_growth(&tokenizer).map_err(|error| error.in_file(&path))?;
        let config_path = files.path(CONFIG_FILE);
        let config = find_json(files, CONFIG_FILE)?.unwrap_or_default();
        let refused = |error: Error, field: &str| error.in_file(&config_path).in_field(field);
        let side = |field: &str| match config.get(field).and_then(serde_json::Value::as_str) {
            None | Some("right") => Ok(false),
            Some("left") => Ok(true),
            Some(other) => Err(refused(Error::invalid(format!("{other:?} is not a side")), field)),
        };
        let own = config.get("model_max_length").and_then(serde_json::Value::as_f64).map(|length| length as u64);
        if let Some(length) = own.filter(|&length| length < LENGTH_MAX) {
            // As transformers: the side of tokenizer.json, unless the configuration states one.
            let known = tokenizer.get_truncation().map(|truncation| truncation.direction);
            let direction = match (config.get("truncation_side"), known) {
                (None | Some(serde_json::Value::Null), Some(known)) => known,
                _ if side("truncation_side")? => TruncationDirection::Left,
                _ => TruncationDirection::Right,
            };
            let truncation = TruncationParams { max_length: length as usize, direction, ..TruncationParams::default() };
            truncate(&mut tokenizer, truncation).map_err(|error| refused(error, "model_max_length"))?;
        } else if let Some(truncation) = tokenizer.get_truncation() {
            check_truncation(&tokenizer, truncation, false)
                .map_err(|error| error.in_file(&path).in_field("truncation"))?;
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
        // `encode_to` pads: to the longest text of the batch, or to the length that the graph reads.
        tokenizer.with_padding(None);
        let mut hasher = Hasher::new("cotensor tokenizer v3");
        hasher.field(&bytes).field(config.to_string().as_bytes());
        Ok(Self { tokenizer, pad, fingerprint: hasher.finish() })
    }

    /// As [`open`](Self::open), for texts of at most the positions that the encoder of this model counts.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`position_limit`]; `Invalid` for positions without room for text.
    pub fn open_for(files: &dyn ModelFiles, config: &ModelConfig<'_>) -> Result<Self> {
        let text = Self::open(files)?;
        // A decoder counts what it reads and writes together, and refuses what does not fit.
        if config.family.decoder.is_some() {
            return Ok(text);
        }
        let limit = position_limit(config.values).map_err(|error| error.in_file(files.path(family::CONFIG_FILE)))?;
        match limit {
            Some(limit) => text.limited_to(limit),
            None => Ok(text),
        }
    }

    /// This tokenizer with the settings of sentence-transformers: at most `max_tokens` per text, in lower case if
    /// `lower`.
    ///
    /// # Errors
    /// `Invalid` when `max_tokens` leaves no room for text.
    pub fn for_sentences(&self, max_tokens: Option<usize>, lower: bool) -> Result<Self> {
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

    /// This tokenizer with at most `max_tokens` per text, if it allows more.
    ///
    /// # Errors
    /// `Invalid` when `max_tokens` leaves no room for text.
    fn limited_to(self, max_tokens: usize) -> Result<Self> {
        match self.max_tokens() {
            Some(known) if known <= max_tokens => Ok(self),
            _ => self.for_sentences(Some(max_tokens), false),
        }
    }

    /// The token ids of `texts`, truncated to the model's limit and padded to the longest text.
    ///
    /// # Errors
    /// `Invalid` when the tokenizer refuses a text, or when no text has a token.
    pub fn encode(&self, texts: &[&str]) -> Result<TokenBatch> {
        self.encode_to(texts, None)
    }

    /// As [`encode`](Self::encode); `length` is the number of tokens per row, for graphs that read a fixed number.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); `Invalid` when a row needs padding and no padding token is configured.
    pub fn encode_to(&self, texts: &[&str], length: Option<usize>) -> Result<TokenBatch> {
        let texts = texts.iter().map(|text| bounded(text).map(EncodeInput::from));
        self.encode_inputs(texts.collect::<Result<_>>()?, length, true)
    }

    /// The token ids of a text without the tokens that the tokenizer adds to a text, truncated to the model's limit.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_plain(&self, text: &str) -> Result<TokenBatch> {
        self.encode_inputs(vec![EncodeInput::from(bounded(text)?)], None, false)
    }

    /// As [`encode_to`](Self::encode_to), with a row for each pair of texts. From a pair that is too long, tokens of
    /// the longer text are removed first.
    ///
    /// # Errors
    /// As [`encode_to`](Self::encode_to); `Invalid` when the length limit leaves no room for a pair.
    pub fn encode_pairs(&self, pairs: &[(&str, &str)], length: Option<usize>) -> Result<TokenBatch> {
        let known = self.tokenizer.get_truncation();
        if let Some(max_length) = known.map(|known| known.max_length).into_iter().chain(length).min() {
            let truncation = TruncationParams { max_length, ..known.cloned().unwrap_or_default() };
            check_truncation(&self.tokenizer, &truncation, true)?;
        }
        let pairs = pairs.iter().map(|(first, second)| Ok(EncodeInput::from((bounded(first)?, bounded(second)?))));
        self.encode_inputs(pairs.collect::<Result<_>>()?, length, true)
    }

    /// The tokens of one text, for [`batch`](Self::batch). `length` is the number of tokens per row, for graphs that read a
    /// fixed number.
    ///
    /// # Errors
    /// `Invalid` when the tokenizer refuses the text, or when it has no token.
    pub fn tokenize(&self, text: &str, length: Option<usize>) -> Result<TextTokens> {
        let text = bounded(text)?.into();
        let tokens = tokens_of(self.limited(length)?.as_ref().unwrap_or(&self.tokenizer), text, true)?;
        if tokens.ids().is_empty() { Err(no_token()) } else { Ok(tokens) }
    }

    /// The tokens of a text that another program tokenized with this tokenizer: `ids` begin and end as the tokenizer
    /// begins and ends each text. The limits are those of [`tokenize`](Self::tokenize).
    ///
    /// # Errors
    /// `Invalid` for an id that is not a token, for other tokens at the beginning or the end, for a tokenizer that adds no
    /// tokens there, by which its ids could be told from those of another one, and for more tokens than the limit.
    pub fn tokens(&self, ids: &[u32], length: Option<usize>) -> Result<TextTokens> {
        if let Some(id) = ids.iter().find(|&&id| self.tokenizer.id_to_token(id).is_none()) {
            return Err(Error::invalid(format!("{id} is not a token of this model's tokenizer")));
        }
        let name = |id: &u32| self.tokenizer.id_to_token(*id).unwrap_or_default();
        let around = encoded(&self.tokenizer, "a".into(), true)?;
        let added = |ends: &mut dyn Iterator<Item = (&u32, &u32)>| {
            ends.take_while(|(_, added)| **added != 0).map(|(id, _)| *id).collect::<Vec<u32>>()
        };
        let (known, special) = (around.get_ids(), around.get_special_tokens_mask());
        let first = added(&mut known.iter().zip(special));
        let last = added(&mut known.iter().zip(special).rev());
        if first.is_empty() && last.is_empty() {
            return Err(Error::invalid(
                "this model's tokenizer adds no token to a text, so its ids look like those of another tokenizer",
            ));
        }
        let is_whole = ids.len() > first.len() + last.len()
            && ids.starts_with(&first)
            && ids.iter().rev().zip(&last).all(|(id, last)| id == last);
        if !is_whole {
            let names = |ids: &mut dyn Iterator<Item = &u32>| ids.map(name).collect::<Vec<_>>().join(" ");
            return Err(Error::invalid(format!(
                "the tokens of this model begin with {:?} and end with {:?}; these are of another tokenizer, or not of a whole text",
                names(&mut first.iter()),
                names(&mut last.iter().rev())
            )));
        }
        if let Some(most) = self.max_tokens().into_iter().chain(length).min().filter(|&most| ids.len() > most) {
            return Err(Error::invalid(format!("{} tokens; the model reads {most}", ids.len())));
        }
        let count = ids.len();
        let special = (0..count).map(|at| u32::from(at < first.len() || at >= count - last.len())).collect();
        let encoding = Encoding::new(
            ids.to_vec(),
            vec![0; count],
            ids.iter().map(name).collect(),
            vec![None; count],
            vec![(0, 0); count],
            special,
            vec![1; count],
            Vec::new(),
            Default::default(),
        );
        Ok(TextTokens { encoding, is_truncated: false })
    }

    /// Texts as one batch, padded to the longest text, or to `length`.
    ///
    /// # Errors
    /// As [`encode_to`](Self::encode_to).
    pub fn batch(&self, texts: &[&TextTokens], length: Option<usize>) -> Result<TokenBatch> {
        let encodings: Vec<&Encoding> = texts.iter().map(|text| &text.encoding).collect();
        let count = encodings.len();
        let longest = encodings.iter().map(|encoding| encoding.len()).max().unwrap_or(0);
        if longest == 0 {
            return Err(no_token());
        }
        let longest = length.unwrap_or(longest);
        if length.is_some() && self.pad.is_none() && encodings.iter().any(|encoding| encoding.len() < longest) {
            let message = format!("the graph reads exactly {longest} tokens, and no padding token is configured");
            return Err(Error::invalid(message).in_field("pad_token"));
        }
        let shape = [count, longest];
        let row = |encoding: &Encoding, of: fn(&Encoding) -> &[u32], pad: u32| {
            let padding = std::iter::repeat_n(pad, longest - encoding.len());
            let given = of(encoding).iter().copied();
            given.chain(padding).collect::<Vec<_>>()
        };
        let array = |of: fn(&Encoding) -> &[u32], pad: u32| {
            let rows = encodings.iter().flat_map(|encoding| row(encoding, of, pad));
            Array::i64(shape, rows.map(i64::from).collect())
        };
        let added = encodings.iter().flat_map(|encoding| row(encoding, Encoding::get_special_tokens_mask, 1));
        let mask = array(Encoding::get_attention_mask, 0)?;
        let positions = mask.as_i64()?.chunks_exact(longest).flat_map(|row| {
            let counted = row.iter().scan(0, |before, &kept| Some(std::mem::replace(before, *before + kept)));
            counted.collect::<Vec<i64>>()
        });
        Ok(TokenBatch {
            positions: Array::i64(shape, positions.collect())?,
            ids: array(Encoding::get_ids, self.pad.unwrap_or(0))?,
            mask,
            type_ids: array(Encoding::get_type_ids, 0)?,
            added: added.map(|added| added != 0).collect(),
            truncated: texts.iter().map(|text| text.is_truncated).collect(),
        })
    }

    /// The tokenizer with `length` as its limit, unless its own is as low.
    fn limited(&self, length: Option<usize>) -> Result<Option<Tokenizer>> {
        let Some(length) = length else { return Ok(None) };
        if length as u64 > LENGTH_MAX {
            let message = format!("the graph reads {length} tokens; at most {LENGTH_MAX} are supported");
            return Err(Error::unsupported(message));
        }
        let known = self.tokenizer.get_truncation();
        if known.is_some_and(|known| known.max_length <= length) {
            return Ok(None);
        }
        let known = known.cloned().unwrap_or_default();
        let mut tokenizer = self.tokenizer.clone();
        truncate(&mut tokenizer, TruncationParams { max_length: length, ..known })?;
        Ok(Some(tokenizer))
    }

    /// `adds` tells whether the tokenizer adds its tokens.
    fn encode_inputs(&self, texts: Vec<EncodeInput<'_>>, length: Option<usize>, adds: bool) -> Result<TokenBatch> {
        let shorter = self.limited(length)?;
        let tokenizer = shorter.as_ref().unwrap_or(&self.tokenizer);
        let tokens = texts.into_iter().map(|text| tokens_of(tokenizer, text, adds));
        let tokens: Vec<TextTokens> = tokens.collect::<Result<_>>()?;
        self.batch(&tokens.iter().collect::<Vec<_>>(), length)
    }

    /// The bytes of `text` that each of its tokens covers; empty for a token that the tokenizer adds.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn spans(&self, text: &str) -> Result<Vec<Range<usize>>> {
        let encoding = encoded(&self.tokenizer, bounded(text)?.into(), true)?;
        let offsets = encoding.get_offsets().iter().zip(encoding.get_special_tokens_mask());
        Ok(offsets.map(|(&(start, end), &added)| if added == 0 { start..end } else { 0..0 }).collect())
    }

    /// The most tokens of a text, if the configuration limits them.
    pub fn max_tokens(&self) -> Option<usize> {
        self.tokenizer.get_truncation().map(|truncation| truncation.max_length)
    }

    /// The number of tokens of a prefix, with the tokens that the tokenizer adds before it and without those after it.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn prefix_tokens(&self, text: &str) -> Result<usize> {
        let encoded = self.encode(&[text])?;
        Ok(encoded.added.len() - usize::from(encoded.added.last() == Some(&true)))
    }

    /// The text of token ids, without special tokens.
    ///
    /// # Errors
    /// `Invalid` when the tokenizer cannot decode them; `Corrupt` for a damaged tokenizer.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        // Decoders of the library panic for none.
        if ids.is_empty() {
            return Ok(String::new());
        }
        let decode = || self.tokenizer.decode(ids, true);
        let decode = || decode().map_err(|error| Error::invalid(format!("cannot decode tokens: {error}")));
        guarded(decode, || Error::corrupt("the tokenizer is damaged: it failed on tokens").in_field(TOKENIZER_FILE))
    }

    /// The token with this id, as the vocabulary has it.
    pub fn token(&self, id: i64) -> Option<String> {
        self.tokenizer.id_to_token(u32::try_from(id).ok()?)
    }

    /// Hash of every setting that affects the ids of a text.
    pub fn fingerprint(&self) -> ContentHash {
        self.fingerprint
    }
}

fn no_token() -> Error {
    Error::invalid("the text has no token").in_field("text")
}

/// The tokens of a text, without those beyond the limit, which take far more memory than those within.
fn tokens_of(tokenizer: &Tokenizer, text: EncodeInput<'_>, adds: bool) -> Result<TextTokens> {
    let mut encoding = encoded(tokenizer, text, adds)?;
    let is_truncated = !encoding.take_overflowing().is_empty();
    Ok(TextTokens { encoding, is_truncated })
}

/// Sets the truncation, after [`check_truncation`].
fn truncate(tokenizer: &mut Tokenizer, truncation: TruncationParams) -> Result<()> {
    check_truncation(tokenizer, &truncation, false)?;
    tokenizer.with_truncation(Some(truncation)).map_err(|error| Error::invalid(error.to_string()))?;
    Ok(())
}

/// The tokenizer classes of BERT and DistilBERT take three settings from tokenizer_config.json, which override those in
/// tokenizer.json.
fn configure_bert(tokenizer: &mut Tokenizer, config: &serde_json::Value) {
    let class = config.get("tokenizer_class").and_then(serde_json::Value::as_str).unwrap_or("BertTokenizer");
    let Some(NormalizerWrapper::BertNormalizer(known)) = tokenizer.get_normalizer() else { return };
    if !["Bert", "DistilBert"].iter().any(|known| class.starts_with(known)) {
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

/// Refuses a length without room for text: the `tokenizers` crate subtracts the special tokens and the stride without a
/// check.
fn check_truncation(tokenizer: &Tokenizer, truncation: &TruncationParams, pair: bool) -> Result<()> {
    let special = tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(pair));
    if truncation.max_length > special.saturating_add(truncation.stride) {
        return Ok(());
    }
    Err(Error::invalid(format!("{} tokens leave no room beside {special} special ones", truncation.max_length)))
}

/// # Errors
/// `Invalid` for a text that is too long.
fn bounded(text: &str) -> Result<&str> {
    match text.len() {
        0..=TEXT_BYTES_MAX => Ok(text),
        length => {
            Err(Error::invalid(format!("a text has {length} bytes; at most {TEXT_BYTES_MAX} are read: split it"))
                .in_field("text"))
        }
    }
}

/// The tokens of a text. The tokenizer does not change, so a panic leaves it as it is.
fn encoded(tokenizer: &Tokenizer, text: EncodeInput<'_>, adds: bool) -> Result<Encoding> {
    let encode = || tokenizer.encode(text, adds).map_err(|error| Error::invalid(format!("cannot tokenize: {error}")));
    guarded(encode, || Error::corrupt("the tokenizer is damaged: it failed on a text").in_field(TOKENIZER_FILE))
}
