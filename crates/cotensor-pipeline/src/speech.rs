//! Windows of speech: the timestamps that the model writes decide where the next window begins.

use super::numbers::{argmax, check_numbers, softmax};
use cotensor_core::{Error, Result};
use cotensor_preprocess::AudioWindows;
use cotensor_preprocess::generation::{GenerationConfig, TimedSegment, Timestamps, language_scores, languages};

/// The name of the task in generation_config.json.
pub const TRANSCRIBE: &str = "transcribe";

/// A spoken language.
#[derive(Clone, Debug, PartialEq)]
pub struct SpokenLanguage {
    /// Its code, such as `en`.
    pub code: String,
    /// Its token.
    pub token: i64,
    /// Its probability among the languages, 0 to 1.
    pub probability: f32,
}

/// The language with the highest score after the start token, and the scores of all languages. `scores` has one for each token.
///
/// # Errors
/// `Invalid` for a model without languages, and for another number of tokens; `Engine` for NaN or infinity.
pub fn spoken_language(config: &GenerationConfig, scores: &[f32]) -> Result<(SpokenLanguage, Vec<f32>)> {
    check_numbers(scores)?;
    let languages = languages(config);
    let scores = language_scores(config, &languages, scores)?;
    let index = argmax(&scores);
    let (name, token) = &languages[index];
    let code = name.trim_matches(|c| matches!(c, '<' | '|' | '>')).to_owned();
    Ok((SpokenLanguage { code, token: *token, probability: softmax(&scores)[index] }, scores))
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
pub fn segments_of(
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
