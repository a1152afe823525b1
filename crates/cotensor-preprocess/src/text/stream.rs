use super::tokenizer::TextProcessor;
use cotensor_core::Result;
use std::borrow::Borrow;

/// What a tokenizer gives for bytes that are not a character, such as the first bytes of one.
const INCOMPLETE: char = '\u{fffd}';

/// Turns token ids into text one by one, without special tokens. The pieces together are the text of all ids: a token that is only a part of a
/// character gives its piece with the token that completes it, and a byte with the token after the last byte.
pub struct TextStream<T> {
    tokenizer: T,
    ids: Vec<u32>,
    /// The first id that is decoded again: ids of the last piece decide the spaces of the next one.
    start: usize,
    /// The number of ids whose text was given.
    given: usize,
}

impl<T: Borrow<TextProcessor>> TextStream<T> {
    /// A stream that continues the text of `before`.
    pub fn new(tokenizer: T, before: Vec<u32>) -> Self {
        Self { tokenizer, given: before.len(), ids: before, start: 0 }
    }

    /// The text that `id` completes; empty for a special token or for a part of a character.
    ///
    /// # Errors
    /// `Invalid` when the tokenizer cannot decode the ids.
    pub fn step(&mut self, id: u32) -> Result<String> {
        self.ids.push(id);
        let piece = self.rest()?;
        if piece.is_empty() || piece.ends_with(INCOMPLETE) || self.is_byte(id) {
            return Ok(String::new());
        }
        (self.start, self.given) = (self.given, self.ids.len());
        Ok(piece)
    }

    /// Whether a token is one byte of SentencePiece (`<0x0A>`). The bytes up to the next other token decide together
    /// whether they are characters.
    fn is_byte(&self, id: u32) -> bool {
        let token = self.tokenizer.borrow().token(id.into()).unwrap_or_default();
        let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        digits.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    }

    /// The text of the ids that completed no character.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn finish(self) -> Result<String> {
        self.rest()
    }

    /// The text that was not given yet. Where it would change what was given (a character of which only the last bytes are new),
    /// it is the text of the new ids alone.
    fn rest(&self) -> Result<String> {
        let decode = |ids: &[u32]| self.tokenizer.borrow().decode(ids);
        let (given, all) = (decode(&self.ids[self.start..self.given])?, decode(&self.ids[self.start..])?);
        match all.strip_prefix(given.as_str()) {
            Some(rest) => Ok(rest.to_owned()),
            None => decode(&self.ids[self.given..]),
        }
    }
}
