//! Whisper's tasks: the spoken language, and the transcript of a sound of any length.
//!
//! A sound that is longer than the model's window is read as by the long-form generation of transformers' Whisper: the timestamps
//! that the model writes decide where the next window begins. No window is conditioned on the text before it.

use super::answer::{Answer, Output};
use super::decoding::TextPieces;
use super::host::{DecoderTask, Host};
use super::long_sound::LongSound;
use super::numbers::{argmax, check_numbers, softmax};
use super::write::write;
use cotensor_core::{Error, Result};
use cotensor_preprocess::AudioWindows;
use cotensor_preprocess::generation::{
    GenerationConfig, TimedSegment, Timestamps, is_text, language_scores, languages, speech_prompt, transcript_of,
};
use std::borrow::Borrow;

/// The role of the stage that reads a sound.
const ENCODER: &str = "encoder";
/// The name of the task in generation_config.json.
const TRANSCRIBE: &str = "transcribe";
/// The parameter with the token before a text without timestamps.
const NO_TIMESTAMPS: &str = "no_timestamps_token_id";

/// The spoken language: that of the token with the highest score after the start token.
pub(super) async fn identify_language<H: Host>(
    host: &mut H,
    config: &GenerationConfig,
) -> Result<(Answer, Vec<Output>)> {
    host.encode(ENCODER).await?;
    let (answer, logits, _) = spoken_language(host, config).await?;
    Ok((answer, vec![logits]))
}

/// The transcript of a sound. `sound` is a sound that is longer than the model's window.
pub(super) async fn transcribe<H: Host>(
    host: &mut H,
    task: &DecoderTask<'_>,
    sound: Option<LongSound<'_>>,
) -> Result<(Answer, Vec<Output>)> {
    let tokens = if let Some(sound) = sound {
        write_windows(host, task, sound).await?
    } else {
        host.encode(ENCODER).await?;
        let config = &task.config.plain;
        let mut prompt = prompt_of(host, config).await?;
        prompt.extend(config.token(NO_TIMESTAMPS)?);
        write(host, task, config, prompt, false, is_text).await?
    };
    let text = transcript_of(host.tokenizer()?.borrow(), &tokens)?;
    Ok((Answer::Transcript { text, tokens: tokens.len() }, vec![Output::of_tokens(&tokens)]))
}

/// The tokens of all windows. The results of one window at a time are kept.
async fn write_windows<H: Host>(host: &mut H, task: &DecoderTask<'_>, mut sound: LongSound<'_>) -> Result<Vec<i64>> {
    let mut pieces = TextPieces::new(host.tokenizer()?, &[], is_text);
    let (mut tokens, mut prompt) = (Vec::new(), None);
    while sound.scan()? {
        host.turn().await;
    }
    while let Some(windows) = sound.window()? {
        for token in transcribe_window(host, task, &mut prompt, windows).await?.into_iter().flat_map(|each| each.tokens)
        {
            if let Some(piece) = pieces.piece(token)? {
                host.give(&piece).await?;
            }
            tokens.push(token);
        }
    }
    if let Some(rest) = pieces.finish()? {
        host.give(&rest).await?;
    }
    Ok(tokens)
}

/// Transcribes the window, and advances to the next one. `prompt` keeps the tokens before the transcript: the language is that of
/// the first window. The caller gives the text.
///
/// # Errors
/// `Unsupported` for a model without timestamps; `Invalid` when the features and the encoder's output do not match, and for an
/// option out of range; the errors of the host.
pub async fn transcribe_window<H: Host>(
    host: &mut H,
    task: &DecoderTask<'_>,
    prompt: &mut Option<Vec<i64>>,
    windows: &mut AudioWindows,
) -> Result<Vec<SpeechSegment>> {
    let none = || Error::unsupported("the model has no timestamps").in_field("timestamps");
    let (timed, timestamps) = task.config.timed.as_ref().ok_or_else(none)?;
    host.set_part(windows.features()?);
    let encoded = host.encode(ENCODER).await?;
    // A header may state more than the file has.
    let config = if windows.is_short() { &task.config.plain } else { timed };
    let mut ids = match prompt {
        Some(known) => known.clone(),
        None => prompt.insert(prompt_of(host, config).await?).clone(),
    };
    if windows.is_short() {
        ids.extend(config.token(NO_TIMESTAMPS)?);
    }
    let tokens = write(host, task, config, ids, false, |_, _| false).await?;
    let (segments, advance) = segments_of(windows, timestamps, &encoded, tokens)?;
    windows.advance(advance)?;
    Ok(segments)
}

/// The tokens before a transcript: the start, the language, the task.
async fn prompt_of<H: Host>(host: &mut H, config: &GenerationConfig) -> Result<Vec<i64>> {
    // A checkpoint for one language has no language tokens.
    let is_of_one = languages(config).is_empty();
    let language = if is_of_one { None } else { Some(spoken_language(host, config).await?.2) };
    speech_prompt(config, language, TRANSCRIBE)
}

/// The language with the highest score after the start token, the scores of all languages, and the token of the language. The scores
/// are a result that other users share.
async fn spoken_language<H: Host>(host: &mut H, config: &GenerationConfig) -> Result<(Answer, Output, i64)> {
    let scores = host.scores(&[config.start()?]).await?;
    check_numbers(&scores)?;
    let languages = languages(config);
    let scores = language_scores(config, &languages, &scores)?;
    let index = argmax(&scores);
    let (name, token) = &languages[index];
    let language = name.trim_matches(|c| matches!(c, '<' | '|' | '>')).to_owned();
    let answer = Answer::Language { language, probability: softmax(&scores)[index] };
    Ok((answer, Output::new("language_logits", &[scores.len()], &scores), *token))
}

/// A part of a transcript.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechSegment {
    /// Beginning and end, in seconds from the beginning of the sound.
    pub seconds: (f64, f64),
    /// The tokens, with timestamps.
    pub tokens: Vec<i64>,
}

/// The segments of a window whose transcript is `tokens`, and the number of frames to the next window. `encoded` is the shape
/// of the encoder's output.
///
/// # Errors
/// `Invalid` when the features and the encoder's output do not match.
fn segments_of(
    windows: &AudioWindows,
    timestamps: &Timestamps,
    encoded: &[usize],
    tokens: Vec<i64>,
) -> Result<(Vec<SpeechSegment>, usize)> {
    let frames = windows.frames();
    if windows.is_short() {
        return Ok((vec![SpeechSegment { seconds: (0.0, windows.seconds()), tokens }], frames));
    }
    // A step of timestamps is a row of the encoder's output.
    let rows = encoded.get(1).copied().filter(|rows| *rows > 0 && *rows <= windows.window());
    let rows = rows.ok_or_else(|| {
        let message = format!("an output of shape {encoded:?} for {} frames", windows.window());
        Error::invalid(message).in_field("encoder")
    })?;
    let stride = windows.window() / rows;
    let (segments, next) = timestamps.segments(&tokens, (frames / stride) as i64);
    let seconds = |frames: f64| frames * windows.hop() as f64 / f64::from(windows.sample_rate_hz());
    let at = |step: i64| seconds(windows.passed() as f64 + step as f64 * stride as f64);
    let segment = |each: TimedSegment| SpeechSegment {
        seconds: (at(each.steps.start), at(each.steps.end)),
        tokens: tokens[each.tokens].to_vec(),
    };
    let advance = next.and_then(|step| usize::try_from(step).ok()).map_or(frames, |step| step * stride);
    // A window that does not advance would be transcribed again and again.
    Ok((segments.into_iter().map(segment).collect(), advance.clamp(1, frames.max(1))))
}
