//! The vocabulary that config.json declares, and the tokens of a tokenizer that may be of another model.

use crate::model::Model;
use cotensor_core::{Error, Result};

/// The number of words in config.json, and its field.
pub(super) fn vocabulary(model: &Model) -> Option<(&'static str, usize)> {
    let number = |field| usize::try_from(model.config_at(field)?.as_u64()?).ok();
    ["vocab_size", "text_config.vocab_size"].into_iter().find_map(|field| Some((field, number(field)?)))
}

/// Refuses tokens beyond the vocabulary in config.json: the tokenizer is of another model.
pub(super) fn check_vocabulary(model: &Model, ids: impl IntoIterator<Item = i64>) -> Result<()> {
    let Some((field, words)) = vocabulary(model) else { return Ok(()) };
    match ids.into_iter().find(|&id| usize::try_from(id).map_or(true, |id| id >= words)) {
        None => Ok(()),
        Some(id) => {
            let message = format!("{words} words; the tokenizer gives token {id}: it is of another model");
            Err(Error::invalid(message).in_file(model.folder().join("config.json")).in_field(field))
        }
    }
}
