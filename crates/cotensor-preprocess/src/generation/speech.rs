//! The tokens around a transcript, as Whisper has them.

use super::config::GenerationConfig;
use crate::text::TextProcessor;
use cotensor_core::Result;
use serde_json::Value;

/// The languages with their tokens; empty for a checkpoint for one language.
pub fn languages(config: &GenerationConfig) -> Vec<(String, i64)> {
    let ids = config.get("lang_to_id").and_then(Value::as_object);
    ids.into_iter().flatten().filter_map(|(key, id)| Some((key.clone(), id.as_i64()?))).collect()
}

/// The scores of the languages, from the scores of all tokens after the start token.
///
/// # Errors
/// `Invalid` without languages, and for a token beyond the vocabulary.
pub fn language_scores(config: &GenerationConfig, languages: &[(String, i64)], scores: &[f32]) -> Result<Vec<f32>> {
    let of_languages: Option<Vec<f32>> =
        languages.iter().map(|(_, id)| scores.get(usize::try_from(*id).ok()?).copied()).collect();
    let found = of_languages.filter(|scores| !scores.is_empty());
    found.ok_or_else(|| config.invalid("lang_to_id", "language tokens are missing or beyond the vocabulary"))
}

/// The tokens before a transcript: the start, the token of the language, and the task `transcribe` or `translate`. A
/// checkpoint for one language has neither language nor task.
///
/// # Errors
/// As [`GenerationConfig::start`].
pub fn speech_prompt(config: &GenerationConfig, language: Option<i64>, task: &str) -> Result<Vec<i64>> {
    let mut prompt = vec![config.start()?];
    if let Some(language) = language {
        prompt.push(language);
        let task = config.get("task_to_id").and_then(|tasks| tasks.get(task));
        prompt.extend(task.and_then(Value::as_i64));
    }
    Ok(prompt)
}

/// The text of tokens, without timestamps.
///
/// # Errors
/// As [`TextProcessor::decode`].
pub fn transcript_of(tokenizer: &TextProcessor, tokens: &[i64]) -> Result<String> {
    let ids: Vec<u32> =
        tokens.iter().filter(|id| is_text(tokenizer, **id)).filter_map(|&id| u32::try_from(id).ok()).collect();
    Ok(tokenizer.decode(&ids)?.trim().to_owned())
}

/// Whether a token is part of the text of a transcript: timestamps are not.
pub fn is_text(tokenizer: &TextProcessor, token: i64) -> bool {
    !tokenizer.token(token).is_some_and(|token| is_timestamp(&token))
}

/// Whether a token is a timestamp of Whisper, such as `<|2.40|>`. transformers omits them, too, although they are not
/// special tokens.
fn is_timestamp(token: &str) -> bool {
    let number =
        token.strip_prefix("<|").and_then(|rest| rest.strip_suffix("|>")).and_then(|number| number.split_once('.'));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    number.is_some_and(|(seconds, fraction)| digits(seconds) && digits(fraction))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_recognized() {
        for timestamp in ["<|0.00|>", "<|29.98|>"] {
            assert!(is_timestamp(timestamp), "{timestamp}");
        }
        for text in ["<|en|>", "<|0|>", "<|.5|>", "<|1.|>", "0.00", "<|1.2.3|>", "<|-1.0|>"] {
            assert!(!is_timestamp(text), "{text}");
        }
    }
}
