//! The decoding of a user: how tokens are chosen, and the text that a reader gets meanwhile.

use super::definition::User;
use super::settings::settings;
use cotensor_core::Result;
use cotensor_preprocess::family::ModelConfig;
use cotensor_preprocess::generation::{GenerationConfig, Settings, Timestamps};
use cotensor_preprocess::{TextProcessor, TextStream};
use std::borrow::Borrow;
use std::cell::RefCell;

/// The decoding of a user.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoding {
    /// Everything besides model and prompt that decides the tokens.
    pub settings: Settings,
    /// What the answer depends on and the user did not request.
    pub notices: Vec<String>,
    /// Where the most tokens come from.
    reason: String,
}

impl Decoding {
    /// The decoding of `user` after a prompt of `prompt` tokens.
    ///
    /// # Errors
    /// `Invalid` for a value out of range; the error names the user's option, or file and field.
    pub fn new(user: &User, config: &GenerationConfig, model: &ModelConfig<'_>, prompt: usize) -> Result<Self> {
        let (settings, reason) = settings(user, config, prompt, model.decoder_positions())?;
        let unapplied = config.unapplied().into_iter();
        let unapplied = unapplied.map(|parameter| format!("{parameter} of the model's configuration is not applied"));
        let drawn = settings.sampling.filter(|_| user.seed.is_none());
        let drawn = drawn
            .map(|sampling| format!("tokens are drawn with seed {}; another seed gives another text", sampling.seed));
        Ok(Self { notices: unapplied.chain(drawn).collect(), settings, reason })
    }

    /// A notice for a text of `tokens` tokens that may be incomplete.
    pub fn cut_notice(&self, tokens: usize) -> Option<String> {
        let message = || {
            let reason = &self.reason;
            format!("decoding was stopped after {tokens} tokens ({reason}); the text may be incomplete")
        };
        // A forced end is the last of the most tokens, and no part of the text.
        let forced = usize::from(!self.settings.forced_last.is_empty());
        (tokens + forced >= self.settings.max).then(message)
    }
}

/// Whether a token is a part of the text that a reader gets.
pub(super) type IsText = fn(&TextProcessor, i64) -> bool;

/// The text of tokens that arrive one by one.
pub(super) struct TextPieces<T> {
    tokenizer: T,
    stream: TextStream<T>,
    is_text: IsText,
}

impl<T: Borrow<TextProcessor> + Clone> TextPieces<T> {
    /// The text after the tokens `before`: they decide whether it begins with a space.
    pub(super) fn new(tokenizer: T, before: &[i64], is_text: IsText) -> Self {
        let before = before.iter().filter_map(|&id| u32::try_from(id).ok()).collect();
        Self { stream: TextStream::new(tokenizer.clone(), before), tokenizer, is_text }
    }

    /// The piece that a token completes, if it completes one.
    ///
    /// # Errors
    /// As [`TextStream::step`].
    pub(super) fn piece(&mut self, token: i64) -> Result<Option<String>> {
        let id = u32::try_from(token).ok().filter(|_| (self.is_text)(self.tokenizer.borrow(), token));
        Ok(id.map(|id| self.stream.step(id)).transpose()?.filter(|piece| !piece.is_empty()))
    }

    /// The rest of the text.
    ///
    /// # Errors
    /// As [`TextStream::finish`].
    pub(super) fn finish(self) -> Result<Option<String>> {
        Ok(Some(self.stream.finish()?).filter(|rest| !rest.is_empty()))
    }
}

/// The parameters by which a model writes.
pub struct WritingConfig {
    /// The parameters.
    pub plain: GenerationConfig,
    /// The parameters for texts with timestamps, and their rules, if the model has them.
    pub timed: Option<(GenerationConfig, Timestamps)>,
}

impl WritingConfig {
    /// The parameters of a model for a task.
    ///
    /// # Errors
    /// As [`GenerationConfig::with_timestamps`].
    pub fn new(plain: GenerationConfig) -> Result<Self> {
        Ok(Self { timed: plain.with_timestamps()?, plain })
    }
}

/// A text that a decoder writes after a prompt.
pub struct Writing<T> {
    /// How tokens are chosen.
    pub decoding: Decoding,
    /// The tokens before the text.
    pub prompt: Vec<i64>,
    /// `None` after the end of the text.
    pub(super) pieces: RefCell<Option<TextPieces<T>>>,
}

impl<T: Borrow<TextProcessor> + Clone> Writing<T> {
    /// The piece of the text that a token completes, if it completes one.
    ///
    /// # Errors
    /// As [`TextStream::step`].
    pub fn piece(&self, token: i64) -> Result<Option<String>> {
        self.pieces.borrow_mut().as_mut().map_or(Ok(None), |pieces| pieces.piece(token))
    }
}
