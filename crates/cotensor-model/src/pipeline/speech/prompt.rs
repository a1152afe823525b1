//! The tokens before a transcript, which name the spoken language.

use crate::pipeline::generator::Generator;
use crate::pipeline::run::Run;
use cotensor_core::Result;
use cotensor_pipeline::{SpokenLanguage, TRANSCRIBE, spoken_language};
use cotensor_preprocess::generation::{GenerationConfig, languages, speech_prompt};

/// The language with the highest logit, and the logits of all languages.
pub(super) fn language(
    run: &mut Run<'_>,
    generator: &Generator,
    config: &GenerationConfig,
) -> Result<(SpokenLanguage, Vec<f32>)> {
    spoken_language(config, &generator.scores(run, &[config.start()?])?.to_f32()?)
}

/// The tokens before a transcript: the start, the language, the task. The language is a result that other users share.
pub(super) fn prompt(run: &mut Run<'_>, generator: &Generator, config: &GenerationConfig) -> Result<Vec<i64>> {
    // A checkpoint for one language has no language tokens.
    let is_of_one = languages(config).is_empty();
    let spoken = if is_of_one { None } else { Some(language(run, generator, config)?.0.token) };
    speech_prompt(config, spoken, TRANSCRIBE)
}
