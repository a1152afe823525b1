//! Whisper's tasks: the spoken language, and the transcript.

mod windows;

pub(crate) use windows::{SpeechSegment, WindowTranscriber};

use super::answer::{Answer, Output, argmax, numbers, softmax};
use super::decode::GenerationConfig;
use super::definition::User;
use super::inputs::{Inputs, LongSound};
use super::run::Run;
use super::writing::{OnText, Shown, Writing};
use cotensor_core::Result;
use cotensor_preprocess::TextProcessor;
use cotensor_preprocess::family::Task;

/// The spoken language: the language token with the highest logit after one decoder step on the start token.
pub(super) fn identify_language(
    run: &mut Run<'_>,
    task: &Task,
    user: &User,
    inputs: &Inputs,
) -> Result<(Answer, Vec<Output>)> {
    let config = GenerationConfig::of(run.model, &user.task)?;
    let languages = languages(&config);
    run.encode(run.model.family().stage("encoder")?, inputs)?;
    let writing = Writing::load(run, task)?;
    let (best, logits) = language(run, &writing, &config, &languages)?;
    let probability = softmax(&logits)[best];
    let language = languages[best].0.trim_matches(|c| matches!(c, '<' | '|' | '>')).to_owned();
    Ok((Answer::Language { language, probability }, vec![Output::new("language_logits", &[logits.len()], &logits)]))
}

/// The languages with their tokens; empty for a checkpoint for one language.
fn languages(config: &GenerationConfig) -> Vec<(String, i64)> {
    let ids = config.get("lang_to_id").and_then(serde_json::Value::as_object);
    ids.into_iter().flatten().filter_map(|(key, id)| Some((key.clone(), id.as_i64()?))).collect()
}

/// The index of the language with the highest logit, and the logits of all languages.
fn language(
    run: &mut Run<'_>,
    writing: &Writing,
    config: &GenerationConfig,
    languages: &[(String, i64)],
) -> Result<(usize, Vec<f32>)> {
    let logits = writing.scores(run, &[config.start()?])?;
    let all = logits.to_f32()?;
    let of_languages: Option<Vec<f32>> =
        languages.iter().map(|(_, id)| all.get(usize::try_from(*id).ok()?).copied()).collect();
    numbers(&all)?;
    let of_languages = of_languages.filter(|logits| !logits.is_empty());
    let of_languages = of_languages
        .ok_or_else(|| config.invalid("lang_to_id", "language tokens are missing or beyond the vocabulary"))?;
    Ok((argmax(&of_languages), of_languages))
}

/// Transcribes speech: identifies the language, a result that other users share, and decodes.
pub(super) fn transcribe(
    run: &mut Run<'_>,
    task: &Task,
    user: &User,
    inputs: &Inputs,
    on_text: &mut OnText<'_>,
) -> Result<(Answer, Vec<Output>)> {
    if let Some(transcriber) = WindowTranscriber::new(run.model, &user.task)?
        && let Some(sound) = inputs.long_sound(run.model)?
    {
        return transcribe_long(run, task, user, transcriber, sound, on_text);
    }
    let config = GenerationConfig::of(run.model, &user.task)?;
    run.encode(run.model.family().stage("encoder")?, inputs)?;
    let writing = Writing::load(run, task)?;
    let mut prompt = prompt(run, &writing, &config, &languages(&config))?;
    prompt.extend(config.token("no_timestamps_token_id")?);
    let tokenizer = run.tokenizer()?;
    let of_text = |token: i64| is_text(tokenizer, token);
    let shown = Shown { before: &[], is_text: &of_text };
    let written = writing.write(run, user, &config, &prompt, &shown, on_text)?;
    let text = text_of(tokenizer, &written)?;
    Ok((Answer::Transcript { text, tokens: written.len() }, vec![Output::of_tokens(&written)]))
}

/// Transcribes a sound that is longer than the model's window. The results of one window at a time stay in the store.
fn transcribe_long(
    run: &mut Run<'_>,
    task: &Task,
    user: &User,
    mut transcriber: WindowTranscriber,
    mut sound: LongSound<'_>,
    on_text: &mut OnText<'_>,
) -> Result<(Answer, Vec<Output>)> {
    run.notices.extend(sound.notice());
    let tokenizer = run.tokenizer()?;
    let mut stream = tokenizer.stream(Vec::new());
    let mut tokens = Vec::new();
    while let Some(windows) = sound.window()? {
        run.release();
        for SpeechSegment { tokens: of_segment, .. } in transcriber.next(run, task, user, windows)? {
            for &token in of_segment.iter().filter(|token| is_text(tokenizer, **token)) {
                let piece = u32::try_from(token).map_or(Ok(String::new()), |id| stream.step(id))?;
                if !piece.is_empty() {
                    on_text(&piece)?;
                }
            }
            tokens.extend(of_segment);
        }
    }
    let rest = stream.finish()?;
    if !rest.is_empty() {
        on_text(&rest)?;
    }
    let text = text_of(tokenizer, &tokens)?;
    Ok((Answer::Transcript { text, tokens: tokens.len() }, vec![Output::of_tokens(&tokens)]))
}

/// The tokens before a transcript: the start, the language, the task. The language is a result that other users share.
fn prompt(
    run: &mut Run<'_>,
    writing: &Writing,
    config: &GenerationConfig,
    languages: &[(String, i64)],
) -> Result<Vec<i64>> {
    let mut prompt = vec![config.start()?];
    // A checkpoint for one language has no language tokens.
    if !languages.is_empty() {
        let (best, _) = language(run, writing, config, languages)?;
        prompt.push(languages[best].1);
        let transcribe = config.get("task_to_id").and_then(|tasks| tasks.get("transcribe"));
        prompt.extend(transcribe.and_then(serde_json::Value::as_i64));
    }
    Ok(prompt)
}

/// The text of tokens, without timestamps.
pub(crate) fn text_of(tokenizer: &TextProcessor, tokens: &[i64]) -> Result<String> {
    let ids: Vec<u32> =
        tokens.iter().filter(|id| is_text(tokenizer, **id)).filter_map(|&id| u32::try_from(id).ok()).collect();
    Ok(tokenizer.decode(&ids)?.trim().to_owned())
}

fn is_text(tokenizer: &TextProcessor, token: i64) -> bool {
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
