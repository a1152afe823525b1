//! Speech of any length, window by window, as the long-form generation of transformers' Whisper: the timestamps that the
//! model writes decide where the next window begins. No window is conditioned on the text before it.

use super::prompt::prompt;
use crate::pipeline::generator::{Generator, Shown};
use crate::pipeline::inputs::Inputs;
use crate::pipeline::run::Run;
use crate::tensor::Value;
use cotensor_core::Result;
use cotensor_pipeline::{SpeechSegment, User, segments_of};
use cotensor_preprocess::AudioWindows;
use cotensor_preprocess::family::Task;
use cotensor_preprocess::generation::{GenerationConfig, Timestamps};

/// The transcription of a sound's windows.
pub(crate) struct WindowTranscriber {
    /// The parameters for a sound that fits one window.
    plain: GenerationConfig,
    /// The parameters with timestamps, and their rules.
    timed: (GenerationConfig, Timestamps),
    /// The tokens before the transcript: the language is that of the first window.
    prompt: Option<Vec<i64>>,
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
    /// As [`Run::encode`] and [`Generator::generate`]; `Invalid` when the features and the encoder's output do not match.
    pub(crate) fn next(
        &mut self,
        run: &mut Run<'_>,
        task: &Task,
        user: &User,
        windows: &mut AudioWindows,
    ) -> Result<Vec<SpeechSegment>> {
        let inputs = Inputs::default().with_features(Value::from(windows.features()?));
        let encoded = run.encode(run.model.family().stage("encoder")?, &inputs)?;
        let generator = Generator::load(run, task)?;
        let config = if windows.is_short() { &self.plain } else { &self.timed.0 };
        let before = match &self.prompt {
            Some(before) => before.clone(),
            None => self.prompt.insert(prompt(run, &generator, config)?).clone(),
        };
        let mut ids = before;
        if windows.is_short() {
            ids.extend(config.token("no_timestamps_token_id")?);
        }
        let shown = Shown { before: &[], is_text: |_, _| false };
        let tokens = generator.generate(run, user, config, &ids, &shown, &mut |_| Ok(()))?;
        let (segments, advance) = segments_of(windows, &self.timed.1, encoded.shape(), tokens)?;
        windows.advance(advance)?;
        Ok(segments)
    }
}
