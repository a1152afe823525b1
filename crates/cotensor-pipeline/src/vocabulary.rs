//! The vocabulary that config.json declares, and the tokens of a tokenizer that may be of another model.

use cotensor_core::{Error, Result};
use cotensor_preprocess::family::{CONFIG_FILE, ModelConfig};

/// The number of words in config.json, and its field.
pub fn vocabulary(config: &ModelConfig<'_>) -> Option<(&'static str, usize)> {
    let number = |field| usize::try_from(config.at(field)?.as_u64()?).ok();
    ["vocab_size", "text_config.vocab_size"].into_iter().find_map(|field| Some((field, number(field)?)))
}

/// Refuses tokens beyond the vocabulary in config.json: the tokenizer is of another model.
///
/// # Errors
/// `Invalid`; the error names the token.
pub fn check_vocabulary(config: &ModelConfig<'_>, ids: impl IntoIterator<Item = i64>) -> Result<()> {
    let Some((field, words)) = vocabulary(config) else { return Ok(()) };
    match ids.into_iter().find(|&id| usize::try_from(id).map_or(true, |id| id >= words)) {
        None => Ok(()),
        Some(id) => {
            let message = format!("{words} words; the tokenizer gives token {id}: it is of another model");
            Err(Error::invalid(message).in_file(config.folder.join(CONFIG_FILE)).in_field(field))
        }
    }
}

/// Refuses logits of another number of words than config.json has.
///
/// # Errors
/// `Corrupt`; the error names the field.
pub fn check_logits(config: &ModelConfig<'_>, count: usize) -> Result<()> {
    match vocabulary(config).filter(|(_, words)| *words != count) {
        None => Ok(()),
        Some((field, words)) => {
            let message = format!("{words} words; the graph gives logits of {count}");
            Err(Error::corrupt(message).in_file(config.folder.join(CONFIG_FILE)).in_field(field))
        }
    }
}
