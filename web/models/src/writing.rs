//! The choice of tokens, one after the other.

use crate::errors::{Result, parsed};
use crate::family::ModelFamily;
use crate::files::ConfigFiles;
use crate::text::{TextProcessor, Tokens};
use cotensor_core::{DType, Error};
use cotensor_graph::content::to_f32;
use cotensor_pipeline::{
    SpokenLanguage, check_logits, check_vocabulary, cut_message, expanded, image_token, merged, prompt_of,
    spoken_language, token_text,
};
use cotensor_preprocess::generation::{
    FILE, GenerationConfig, Request, Settings, Timestamps, language_scores, languages, speech_prompt,
};
use cotensor_preprocess::{ChatTemplate, find_json};
use serde::{Deserialize, Serialize};
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// The parameters of generation of a model.
#[wasm_bindgen]
pub struct Generation {
    config: GenerationConfig,
    /// The parameters for texts with timestamps, and the rules of timestamps.
    timed: Option<(GenerationConfig, Timestamps)>,
    positions: Option<usize>,
    family: Rc<ModelFamily>,
    chat: cotensor_core::Result<Option<ChatTemplate>>,
}

/// `DecodingRequest` of `web/src/models/core.ts`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DecodingRequest {
    user: String,
    #[serde(default)]
    max_new_tokens: Option<usize>,
    #[serde(default)]
    min_new_tokens: Option<usize>,
    #[serde(default)]
    do_sample: Option<bool>,
    #[serde(default)]
    temperature: Option<f32>,
    #[serde(default)]
    top_k: Option<usize>,
    #[serde(default)]
    top_p: Option<f32>,
    #[serde(default)]
    seed: Option<u64>,
}

#[wasm_bindgen]
impl Generation {
    /// Reads generation_config.json, or config.json if the model has no such file, for a task of the family.
    ///
    /// # Errors
    /// `Corrupt` when a file is not a JSON object, `Invalid` for a value that is not a token id.
    #[wasm_bindgen(constructor)]
    pub fn new(files: &ConfigFiles, family: &ModelFamily, task: &str) -> Result<Generation> {
        let found = find_json(files, FILE)?;
        let open = || GenerationConfig::of(&family.config(), found.as_ref(), task);
        let (config, timed) = (open()?, open()?.with_timestamps()?);
        let positions = family.config().decoder_positions();
        Ok(Self { config, timed, positions, family: Rc::new(family.clone()), chat: ChatTemplate::open(files) })
    }

    /// The token that starts a decoding.
    ///
    /// # Errors
    /// `Invalid` when no file names it.
    pub fn start(&self) -> Result<u32> {
        token(self.config.start()?)
    }

    /// The tokens of a text that the decoder continues: the text itself, or a chat with the text as the message of a user. `chat`
    /// chooses; by default, a text about an image is a message, and another one is not.
    ///
    /// # Errors
    /// `Invalid` for a chat without a template and for a message that is longer than the model reads; the errors of the template
    /// and of the tokenizer.
    pub fn prompt(&self, tokenizer: &TextProcessor, text: &str, chat: Option<bool>) -> Result<Tokens> {
        let config = self.family.config();
        let image = image_token(&config)?.map(|token| token_text(&tokenizer.text, token));
        let template = || self.chat.as_ref().map(Option::as_ref).map_err(Clone::clone);
        let prompt = prompt_of(text, image.as_deref(), (chat, "chat"), &config, template)?;
        let text = &prompt.text;
        let batch =
            if prompt.is_plain { tokenizer.text.encode_plain(text)? } else { tokenizer.text.encode(&[text])? };
        if prompt.is_chat && batch.truncated.contains(&true) {
            return Err(cut_message().into());
        }
        Ok(Tokens(batch))
    }

    /// The token that stands for an image in a text; nothing for a family whose texts have no images.
    ///
    /// # Errors
    /// `Invalid` when config.json has no token id.
    #[wasm_bindgen(js_name = imageToken)]
    pub fn image_token(&self) -> Result<Option<u32>> {
        image_token(&self.family.config())?.map(token).transpose()
    }

    /// The tokens of a prompt, with as many image tokens as the image's features have rows. `features` is their shape.
    ///
    /// # Errors
    /// `Invalid` for a text with another number of images than one, `Corrupt` for features of another shape.
    #[wasm_bindgen(js_name = expandedPrompt)]
    pub fn expanded_prompt(&self, tokenizer: &TextProcessor, ids: &[u32], features: &[u32]) -> Result<Vec<u32>> {
        let Some(image) = image_token(&self.family.config())? else { return Ok(ids.to_vec()) };
        let ids: Vec<i64> = ids.iter().map(|&id| id.into()).collect();
        let features: Vec<usize> = features.iter().map(|&dim| dim as usize).collect();
        expanded(&ids, image, &features, &tokenizer.text)?.into_iter().map(token).collect()
    }

    /// The embeddings of tokens, `width` numbers for each: those of words from `words`, those of the image's tokens from `image`.
    ///
    /// # Errors
    /// `Corrupt` for other numbers of rows than the tokens have.
    #[wasm_bindgen(js_name = mergedEmbeddings)]
    pub fn merged_embeddings(&self, ids: &[u32], words: &[f32], image: &[f32], width: usize) -> Result<Vec<f32>> {
        let ids: Vec<i64> = ids.iter().map(|&id| id.into()).collect();
        let token = image_token(&self.family.config())?.unwrap_or(-1);
        let rows = ids.iter().filter(|&&id| id == token).count();
        let fits = |values: &[f32], rows: usize| rows.checked_mul(width) == Some(values.len());
        if !fits(image, rows) || !fits(words, ids.len() - rows) {
            let message = format!("{} tokens of {width}: {} and {} numbers", ids.len(), words.len(), image.len());
            return Err(Error::corrupt(message).in_field("embeddings").into());
        }
        Ok(merged(&ids, token, words, image, width))
    }

    /// What the task puts before a text.
    #[wasm_bindgen(getter)]
    pub fn prefix(&self) -> String {
        self.config.prefix().to_owned()
    }

    /// Whether the model reads speech in several languages.
    #[wasm_bindgen(getter, js_name = hasLanguages)]
    pub fn has_languages(&self) -> bool {
        !languages(&self.config).is_empty()
    }

    /// The spoken language, from the scores of all tokens after the start token, as JSON: `SpokenLanguage` of
    /// `web/src/models/core.ts`.
    ///
    /// # Errors
    /// `Invalid` for a model without languages, and for another number of tokens.
    #[wasm_bindgen(js_name = spokenLanguage)]
    pub fn spoken_language(&self, logits: &[f32]) -> Result<String> {
        check_numbers(logits)?;
        let languages = languages(&self.config);
        let scores = language_scores(&self.config, &languages, logits)?;
        let SpokenLanguage { code, token, probability } = spoken_language(&languages, &scores)?;
        let found = serde_json::json!({"language": code, "token": token, "probability": probability, "scores": scores});
        Ok(found.to_string())
    }

    /// The tokens before a transcript. `language` is the token of the language, and `task` is `transcribe` or `translate`; a
    /// model for one language has neither. With `timestamps`, the text has the times of its parts.
    ///
    /// # Errors
    /// `Invalid` when no file names the start token, `Unsupported` for timestamps of a model without them.
    #[wasm_bindgen(js_name = speechPrompt)]
    pub fn speech_prompt(&self, language: Option<u32>, task: &str, timestamps: bool) -> Result<Vec<u32>> {
        let mut prompt = speech_prompt(&self.config, language.map(i64::from), task)?;
        if timestamps {
            self.timed()?;
        } else {
            prompt.extend(self.config.token("no_timestamps_token_id")?);
        }
        prompt.into_iter().map(token).collect()
    }

    /// A decoding after `prompt`. `request` is JSON: `DecodingRequest` of `web/src/models/core.ts`.
    ///
    /// # Errors
    /// `Invalid` for a value out of range; the error names the user's option, or file and field. `Unsupported` for timestamps of a
    /// model without them.
    pub fn decode(&self, prompt: &[u32], request: &str, timestamps: bool) -> Result<Decoding> {
        let request: DecodingRequest = parsed(request, "request")?;
        let asked = Request {
            user: &request.user,
            max_new_tokens: request.max_new_tokens,
            min_new_tokens: request.min_new_tokens,
            do_sample: request.do_sample,
            temperature: request.temperature,
            top_k: request.top_k,
            top_p: request.top_p,
            seed: request.seed,
        };
        let config = if timestamps { &self.timed()?.0 } else { &self.config };
        let (settings, reason) = config.settings(&asked, prompt.len(), self.positions)?;
        let prompt: Vec<i64> = prompt.iter().map(|&token| token.into()).collect();
        check_vocabulary(&self.family.config(), prompt.iter().copied())?;
        let family = Rc::clone(&self.family);
        Ok(Decoding { settings, reason, prompt, tokens: Vec::new(), ended: false, family })
    }

    /// The parts of the tokens of a window of `steps` steps, between timestamps, as JSON: `{"segments": [{"tokens": [from, to],
    /// "steps": [from, to]}], "next": step}`. The next window begins at step `next`; `null` is the end of this window.
    ///
    /// # Errors
    /// `Unsupported` for a model without timestamps.
    pub fn segments(&self, tokens: &[u32], steps: u32) -> Result<String> {
        let tokens: Vec<i64> = tokens.iter().map(|&token| token.into()).collect();
        let (segments, next) = self.timed()?.1.segments(&tokens, steps.into());
        let segments = segments.into_iter().map(|each| Segment {
            tokens: [each.tokens.start, each.tokens.end],
            steps: [each.steps.start, each.steps.end],
        });
        Ok(serde_json::json!({"segments": segments.collect::<Vec<_>>(), "next": next}).to_string())
    }

    /// The parameters that would change the tokens and are not applied, as `name = value`.
    pub fn unapplied(&self) -> Vec<String> {
        self.config.unapplied()
    }
}

#[derive(Serialize)]
struct Segment {
    tokens: [usize; 2],
    steps: [i64; 2],
}

impl Generation {
    fn timed(&self) -> cotensor_core::Result<&(GenerationConfig, Timestamps)> {
        self.timed.as_ref().ok_or_else(|| Error::unsupported("the model has no timestamps").in_field("timestamps"))
    }
}

/// The tokens of a text that is being written.
#[wasm_bindgen]
pub struct Decoding {
    settings: Settings,
    reason: String,
    prompt: Vec<i64>,
    tokens: Vec<i64>,
    ended: bool,
    family: Rc<ModelFamily>,
}

#[wasm_bindgen]
impl Decoding {
    /// The next token, given the scores of all tokens (the last row of the decoder's logits); nothing at the end of the text.
    ///
    /// # Errors
    /// `Corrupt` when no token is allowed, `Engine` for NaN or infinity, `Conflict` after the end.
    pub fn next(&mut self, mut logits: Vec<f32>) -> Result<Option<u32>> {
        check_numbers(&logits)?;
        check_logits(&self.family.config(), logits.len())?;
        if self.is_done() {
            let message = "the text has ended";
            return Err(Error::new(cotensor_core::ErrorKind::Conflict, message).in_field("next").into());
        }
        let next = self.settings.next_token(&mut logits, &self.prompt, &self.tokens)?;
        if self.settings.ends.contains(&next) {
            self.ended = true;
            return Ok(None);
        }
        let next_token = token(next)?;
        self.tokens.push(next);
        Ok(Some(next_token))
    }

    /// As [`next`](Self::next), for scores that are the little-endian bytes of `float16` numbers.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    #[wasm_bindgen(js_name = nextOfHalves)]
    pub fn next_of_halves(&mut self, logits: &[u8]) -> Result<Option<u32>> {
        let mut widened = vec![0; logits.len() * 2];
        to_f32(DType::F16, logits, &mut widened);
        let numbers = widened.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        self.next(numbers.collect())
    }

    /// Whether no token follows: the text has ended, or it has the most tokens.
    #[wasm_bindgen(getter, js_name = isDone)]
    pub fn is_done(&self) -> bool {
        self.ended || self.tokens.len() >= self.settings.max
    }

    /// Whether the text was stopped at the most tokens, and may be incomplete.
    #[wasm_bindgen(getter, js_name = isCut)]
    pub fn is_cut(&self) -> bool {
        !self.ended && self.tokens.len() >= self.settings.max
    }

    /// The tokens so far, without the prompt and without the end token.
    pub fn tokens(&self) -> Vec<u32> {
        // `next` checked that they fit.
        self.tokens.iter().filter_map(|&token| u32::try_from(token).ok()).collect()
    }

    /// The most tokens.
    #[wasm_bindgen(getter)]
    pub fn max(&self) -> usize {
        self.settings.max
    }

    /// Where the most tokens come from, for messages.
    #[wasm_bindgen(getter)]
    pub fn reason(&self) -> String {
        self.reason.clone()
    }

    /// The hash of everything besides model and prompt that decides the tokens, 64 hexadecimal digits.
    #[wasm_bindgen(js_name = settingsHash)]
    pub fn settings_hash(&self) -> String {
        self.settings.hash().to_string()
    }

    /// The seed with which tokens are drawn; nothing if the likeliest token is chosen.
    #[wasm_bindgen(getter)]
    pub fn seed(&self) -> Option<f64> {
        self.settings.sampling.map(|sampling| sampling.seed as f64)
    }
}

/// # Errors
/// `Invalid` for a number that no token has.
fn token(id: i64) -> Result<u32> {
    Ok(u32::try_from(id).map_err(|_| Error::invalid(format!("{id} is not a token id")).in_file(FILE))?)
}

/// # Errors
/// `Engine` for NaN or infinity, and for no numbers.
fn check_numbers(logits: &[f32]) -> Result<()> {
    match logits.iter().position(|logit| !logit.is_finite()) {
        None if !logits.is_empty() => Ok(()),
        found => {
            let message = found.map_or("the model gives no logits".into(), |at| {
                format!("logit {at} is {}, which no token follows from", logits[at])
            });
            Err(Error::new(cotensor_core::ErrorKind::Engine, message).in_field("logits").into())
        }
    }
}
