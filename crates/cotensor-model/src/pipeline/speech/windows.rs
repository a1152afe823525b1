//! Speech of any length, window by window, as the long-form generation of transformers' Whisper: the timestamps that the
//! model writes decide where the next window begins. No window is conditioned on the text before it.

use super::prompt::prompt;
use crate::pipeline::definition::User;
use crate::pipeline::inputs::Inputs;
use crate::pipeline::run::Run;
use crate::pipeline::writing::{Shown, Writing};
use crate::tensor::Value;
use cotensor_core::{Error, Result};
use cotensor_preprocess::AudioWindows;
use cotensor_preprocess::family::Task;
use cotensor_preprocess::generation::{GenerationConfig, TimedSegment, Timestamps, languages};

/// The transcription of a sound's windows.
pub(crate) struct WindowTranscriber {
    /// The parameters for a sound that fits one window.
    plain: GenerationConfig,
    /// The parameters with timestamps, and their rules.
    timed: (GenerationConfig, Timestamps),
    /// The tokens before the transcript: the language is that of the first window.
    prompt: Option<Vec<i64>>,
}

/// A part of a transcript.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SpeechSegment {
    /// Beginning and end, in seconds from the beginning of the sound.
    pub(crate) seconds: (f64, f64),
    /// The tokens, with timestamps.
    pub(crate) tokens: Vec<i64>,
}

impl WindowTranscriber {
    /// `None` for a model without timestamps.
    ///
    /// # Errors
    /// As [`GenerationConfig::of`] and [`GenerationConfig::with_timestamps`].
    pub(crate) fn new(model: &crate::model::Model, task: &str) -> Result<Option<Self>> {
        let timed = model.generation(task)?.with_timestamps()?;
        let Some(timed) = timed else { return Ok(None) };
        Ok(Some(Self { plain: model.generation(task)?, timed, prompt: None }))
    }

    /// Transcribes the window, and advances to the next one.
    ///
    /// # Errors
    /// As [`Run::encode`] and [`Writing::write`]; `Invalid` when the features and the encoder's output do not match.
    pub(crate) fn next(
        &mut self,
        run: &mut Run<'_>,
        task: &Task,
        user: &User,
        windows: &mut AudioWindows,
    ) -> Result<Vec<SpeechSegment>> {
        let inputs = Inputs::default().with_features(Value::from(windows.features()?));
        let encoded = run.encode(run.model.family().stage("encoder")?, &inputs)?;
        let writing = Writing::load(run, task)?;
        let config = if windows.is_short() { &self.plain } else { &self.timed.0 };
        let before = match &self.prompt {
            Some(before) => before.clone(),
            None => self.prompt.insert(prompt(run, &writing, config, &languages(config))?).clone(),
        };
        let mut ids = before;
        if windows.is_short() {
            ids.extend(config.token("no_timestamps_token_id")?);
        }
        let shown = Shown { before: &[], is_text: &|_| false };
        let tokens = writing.write(run, user, config, &ids, &shown, &mut |_| Ok(()))?;
        let frames = windows.frames();
        let seconds = |frames: f64| frames * windows.hop() as f64 / f64::from(windows.sample_rate_hz());
        let begin = windows.passed() as f64;
        let (segments, advance) = if windows.is_short() {
            let whole = SpeechSegment { seconds: (0.0, windows.seconds()), tokens };
            (vec![whole], frames)
        } else {
            // A step of timestamps is a row of the encoder's output.
            let rows = encoded.shape().get(1).copied().filter(|rows| *rows > 0 && *rows <= windows.window());
            let rows = rows.ok_or_else(|| {
                let message = format!("an output of shape {:?} for {} frames", encoded.shape(), windows.window());
                Error::invalid(message).in_field("encoder")
            })?;
            let stride = windows.window() / rows;
            let (segments, next) = self.timed.1.segments(&tokens, (frames / stride) as i64);
            let at = |step: i64| seconds(begin + step as f64 * stride as f64);
            let segment = |each: TimedSegment| SpeechSegment {
                seconds: (at(each.steps.start), at(each.steps.end)),
                tokens: tokens[each.tokens].to_vec(),
            };
            let advance = next.and_then(|step| usize::try_from(step).ok()).map_or(frames, |step| step * stride);
            // A window that does not advance would be transcribed again and again.
            (segments.into_iter().map(segment).collect(), advance.clamp(1, frames.max(1)))
        };
        windows.advance(advance)?;
        Ok(segments)
    }
}
