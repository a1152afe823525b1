//! The choice of tokens, one after the other.

use crate::decoder::{Decoder, PageDecoder};
use crate::errors::{Result, as_given, user_of};
use crate::family::ModelFamily;
use crate::files::ConfigFiles;
use crate::task::{Page, Task};
use crate::text::{TextProcessor, Tokens};
use cotensor_core::Error;
use cotensor_pipeline::{
    DecoderHost, Half, IsText, SpokenLanguage, TextPieces, check_logits, check_vocabulary, cut_message, decode,
    expanded, first_inputs, image_token, prompt_of, spoken_language, token_text,
};
use cotensor_preprocess::family::AnswerKind;
use cotensor_preprocess::generation::{FILE, GenerationConfig, Timestamps, is_text, languages, speech_prompt};
use cotensor_preprocess::{ChatTemplate, find_json};
use std::cell::RefCell;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// The parameters of generation of a model.
#[wasm_bindgen]
pub struct Generation {
    config: Rc<GenerationConfig>,
    /// The parameters for texts with timestamps, and their rules.
    timed: Option<(GenerationConfig, Timestamps)>,
    family: Rc<ModelFamily>,
    chat: cotensor_core::Result<Option<ChatTemplate>>,
    is_text: IsText,
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
        let is_text = match family.def().task(task)?.answer {
            AnswerKind::Transcript => is_text,
            _ => |_: &_, _| true,
        };
        let (config, family) = (Rc::new(config), Rc::new(family.clone()));
        Ok(Self { config, timed, family, chat: ChatTemplate::open(files), is_text })
    }

    /// The token that starts a decoding.
    ///
    /// # Errors
    /// `Invalid` when no file names it.
    pub fn start(&self) -> Result<u32> {
        Ok(token(self.config.start()?)?)
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

    /// The tokens of a prompt, with as many image tokens as the image's features have rows. `features` is their shape.
    ///
    /// # Errors
    /// `Invalid` for a text with another number of images than one, `Corrupt` for features of another shape.
    #[wasm_bindgen(js_name = expandedPrompt)]
    pub fn expanded_prompt(&self, tokenizer: &TextProcessor, ids: &[u32], features: &[u32]) -> Result<Vec<u32>> {
        let Some(image) = image_token(&self.family.config())? else { return Ok(ids.to_vec()) };
        let ids: Vec<i64> = ids.iter().map(|&id| id.into()).collect();
        let features: Vec<usize> = features.iter().map(|&dim| dim as usize).collect();
        Ok(tokens(expanded(&ids, image, &features, &tokenizer.text)?)?)
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

    /// The spoken language, by the scores of all tokens after the start token. The result is `SpokenLanguage` of
    /// `web/src/models/core.ts`.
    ///
    /// # Errors
    /// `Invalid` when no file names the start token and for wrong descriptions of graphs, `Unsupported` for a family without a
    /// decoder; of the task: `Invalid` for a model without languages, and for another number of tokens.
    #[wasm_bindgen(js_name = spokenLanguage)]
    pub fn spoken_language(&self, host: PageDecoder) -> Result<Task> {
        let (config, start, page) = (Rc::clone(&self.config), self.config.start()?, Rc::new(Page::default()));
        let decoder = Decoder::new(host, Rc::clone(&page), &self.family)?;
        Ok(Task::new(page, async move {
            let inputs = first_inputs(&decoder, &[start]).await?;
            let logits = decoder.run(Half::Prompt, &inputs, &[]).await?;
            let (SpokenLanguage { code, token, probability }, scores) = spoken_language(&config, &logits)?;
            let found =
                serde_json::json!({"language": code, "token": token, "probability": probability, "scores": scores});
            Ok(found.to_string())
        }))
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
        Ok(tokens(prompt)?)
    }

    /// The decoding of a user after `prompt`. `user` is JSON: that of `userOf` in `web/src/models/generation.ts`. `continues`: the text
    /// continues that of the prompt.
    ///
    /// # Errors
    /// `Invalid` for a value out of range; the error names the user's option, or file and field. `Unsupported` for timestamps of a
    /// model without them.
    pub fn decode(
        &self,
        tokenizer: &TextProcessor,
        prompt: &[u32],
        continues: bool,
        user: &str,
        timestamps: bool,
    ) -> Result<Decoding> {
        let options = user_of(user)?;
        let config = if timestamps { self.timed()? } else { &self.config };
        let rules = cotensor_pipeline::Decoding::new(&options, config, &self.family.config(), prompt.len());
        let rules = rules.map_err(|error| as_given(error, user))?;
        let prompt: Vec<i64> = prompt.iter().map(|&token| token.into()).collect();
        check_vocabulary(&self.family.config(), prompt.iter().copied())?;
        let before = if continues { prompt.as_slice() } else { &[] };
        let pieces = RefCell::new(Some(TextPieces::new(Rc::clone(&tokenizer.text), before, self.is_text)));
        Ok(Decoding(Rc::new(Text { rules, prompt, family: Rc::clone(&self.family), pieces })))
    }
}

impl Generation {
    /// The rules of timestamps, if the model has them.
    pub(crate) fn timestamps(&self) -> Option<Timestamps> {
        self.timed.as_ref().map(|(_, timestamps)| *timestamps)
    }

    fn timed(&self) -> cotensor_core::Result<&GenerationConfig> {
        self.timed
            .as_ref()
            .map(|(timed, _)| timed)
            .ok_or_else(|| Error::unsupported("the model has no timestamps").in_field("timestamps"))
    }
}

/// A text that a decoder writes.
#[wasm_bindgen]
pub struct Decoding(Rc<Text>);

struct Text {
    rules: cotensor_pipeline::Decoding,
    prompt: Vec<i64>,
    family: Rc<ModelFamily>,
    /// `None` after the end of the text.
    pieces: RefCell<Option<TextPieces<Rc<cotensor_preprocess::TextProcessor>>>>,
}

#[wasm_bindgen]
impl Decoding {
    /// Decodes. The result is a list: the tokens, without the prompt and without the end token. `host` gets the text
    /// piece by piece.
    ///
    /// # Errors
    /// `Invalid` for wrong descriptions of graphs, `Unsupported` for a family without a decoder; of the task: as [`decode`].
    pub fn run(&self, host: PageDecoder) -> Result<Task> {
        let (text, page) = (Rc::clone(&self.0), Rc::new(Page::default()));
        let decoder = Decoder::new(host.clone(), Rc::clone(&page), &text.family)?;
        Ok(Task::new(Rc::clone(&page), async move {
            let mut decoder = cotensor_pipeline::Decoder::new(decoder)?;
            let scores = decoder.read(&text.prompt).await?;
            check_logits(&text.family.config(), scores.len())?;
            let on_token = async |token| {
                if let Some(piece) = text.piece(token)? {
                    page.wait(host.text(&piece)).await;
                }
                Ok(())
            };
            let written = decode(&mut decoder, scores, &text.prompt, &text.rules.settings, on_token).await?;
            Ok(serde_json::json!(tokens(written)?).to_string())
        }))
    }

    /// The pieces of the text that `run` did not give, which end the text: those of `tokens`, which another decoding wrote, and
    /// the rest.
    ///
    /// # Errors
    /// `Invalid` when the tokenizer cannot decode the tokens.
    pub fn rest(&self, tokens: &[u32]) -> Result<Vec<String>> {
        let pieces = tokens.iter().map(|&token| self.0.piece(token.into()));
        let pieces = pieces.collect::<cotensor_core::Result<Vec<_>>>()?;
        let rest = self.0.pieces.take().map(TextPieces::finish).transpose()?;
        Ok(pieces.into_iter().chain(rest).flatten().collect())
    }

    /// What the text depends on and the user did not request.
    pub fn notices(&self) -> Vec<String> {
        self.0.rules.notices.clone()
    }

    /// A notice for a text of `tokens` tokens that may be incomplete.
    #[wasm_bindgen(js_name = cutNotice)]
    pub fn cut_notice(&self, tokens: usize) -> Option<String> {
        self.0.rules.cut_notice(tokens)
    }

    /// The hash of everything besides model and prompt that decides the tokens, 64 hexadecimal digits.
    #[wasm_bindgen(js_name = settingsHash)]
    pub fn settings_hash(&self) -> String {
        self.0.rules.settings.hash().to_string()
    }
}

impl Text {
    fn piece(&self, token: i64) -> cotensor_core::Result<Option<String>> {
        self.pieces.borrow_mut().as_mut().map_or(Ok(None), |pieces| pieces.piece(token))
    }
}

/// # Errors
/// `Invalid` for a number that no token has.
fn token(id: i64) -> cotensor_core::Result<u32> {
    u32::try_from(id).map_err(|_| Error::invalid(format!("{id} is not a token id")).in_file(FILE))
}

/// # Errors
/// As [`token`].
pub(crate) fn tokens(ids: Vec<i64>) -> cotensor_core::Result<Vec<u32>> {
    ids.into_iter().map(token).collect()
}
