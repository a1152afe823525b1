//! Tokenized texts as inputs of graphs.

use super::ports::StagePorts;
use cotensor_core::{Error, Result};
use cotensor_graph::Port;
use cotensor_preprocess::family::{CONFIG_FILE, ModelConfig, Source, StageDef};
use cotensor_preprocess::{Array, TextProcessor, TokenBatch};

/// A tokenized text.
#[derive(Clone, Debug)]
pub struct Text {
    /// The tokens.
    pub batch: TokenBatch,
    /// The number of tokens of the prompt of sentence-transformers, at the beginning.
    pub prompt_tokens: usize,
}

/// The values that graphs read of tokenized texts. Cloning shares the elements.
pub fn text_values(batch: &TokenBatch) -> [(Source, Array); 4] {
    [
        (Source::TextIds, batch.ids.clone()),
        (Source::TextMask, batch.mask.clone()),
        (Source::TextTypes, batch.type_ids.clone()),
        (Source::TextPositions, batch.positions.clone()),
    ]
}

/// The number of tokens to which texts are filled up for a stage: what its graph reads, or the most that the tokenizer gives,
/// for a family that was trained so. `None` for a stage that reads texts of any length; `stage` is `None` for one that does
/// not run.
///
/// # Errors
/// `Invalid` without a limit of the tokenizer.
pub fn filled_length(
    config: &ModelConfig<'_>,
    def: &StageDef,
    stage: Option<StagePorts<'_>>,
    tokenizer: &TextProcessor,
) -> Result<Option<usize>> {
    match stage.and_then(|stage| stage.fixed_length(def)) {
        None if def.fills_texts => tokenizer.max_tokens().map(Some).ok_or_else(|| {
            Error::invalid("a number is required: this family reads texts that are filled up to this length")
                .in_file(config.folder.join("tokenizer_config.json"))
                .in_field("model_max_length")
        }),
        length => Ok(length),
    }
}

/// The number of a task for an input of a graph: one number, or one for each of `count` texts.
///
/// # Errors
/// `Invalid` without a number, `Unsupported` for an input of another shape.
pub fn task_value(port: &Port, task: Option<i64>, count: usize) -> Result<Array> {
    let task = task.ok_or_else(|| Error::invalid("no task is given").in_field(&port.name))?;
    let shape: Vec<usize> = match port.dims.as_deref() {
        Some([]) => Vec::new(),
        Some([Some(1)]) => vec![1],
        Some([None]) => vec![count],
        _ => return Err(Error::unsupported("the number of a task has no dimension, or one").in_field(&port.name)),
    };
    let values = vec![task; shape.iter().product()];
    Array::i64(shape, values)
}

/// Notices about the texts that were cut off. `rows` names each row of the batch.
pub fn truncations(rows: &[&str], batch: &TokenBatch) -> Vec<String> {
    let cut = rows.iter().zip(&batch.truncated).filter(|(_, truncated)| **truncated);
    let notice = |text: &str| {
        let start: String = text.chars().take(32).collect();
        format!("the text {start:?}… is longer than the model reads and was truncated")
    };
    cut.map(|(text, _)| notice(text)).collect()
}

/// The text of `tokens` after the tokens `before`.
///
/// # Errors
/// As [`TextProcessor::decode`].
pub(super) fn decoded_after(tokenizer: &TextProcessor, before: &[i64], tokens: &[i64]) -> Result<String> {
    let ids = |tokens: &[i64]| tokens.iter().filter_map(|&id| u32::try_from(id).ok()).collect::<Vec<_>>();
    if !before.is_empty() {
        let (prompt, whole) = (tokenizer.decode(&ids(before))?, tokenizer.decode(&ids(&[before, tokens].concat()))?);
        if let Some(text) = whole.strip_prefix(prompt.as_str()) {
            return Ok(text.to_owned());
        }
    }
    tokenizer.decode(&ids(tokens))
}

/// The path of config.json, for error messages.
pub(crate) fn config_file(config: &ModelConfig<'_>) -> std::path::PathBuf {
    config.folder.join(CONFIG_FILE)
}
