//! The tokens before a transcript, which name the spoken language.

use crate::pipeline::generator::Generator;
use crate::pipeline::run::Run;
use cotensor_core::Result;
use cotensor_pipeline::{SpokenLanguage, TRANSCRIBE, check_numbers, spoken_language};
use cotensor_preprocess::generation::{GenerationConfig, language_scores, speech_prompt};

/// The language with the highest logit, and the logits of all languages.
pub(super) fn language(
    run: &mut Run<'_>,
    generator: &Generator,
    config: &GenerationConfig,
    languages: &[(String, i64)],
) -> Result<(SpokenLanguage, Vec<f32>)> {
    let logits = generator.scores(run, &[config.start()?])?;
    let all = logits.to_f32()?;
    check_numbers(&all)?;
    let of_languages = language_scores(config, languages, &all)?;
    Ok((spoken_language(languages, &of_languages)?, of_languages))
}

/// The tokens before a transcript: the start, the language, the task. The language is a result that other users share.
pub(super) fn prompt(
    run: &mut Run<'_>,
    generator: &Generator,
    config: &GenerationConfig,
    languages: &[(String, i64)],
) -> Result<Vec<i64>> {
    // A checkpoint for one language has no language tokens.
    let spoken = if languages.is_empty() { None } else { Some(language(run, generator, config, languages)?.0.token) };
    speech_prompt(config, spoken, TRANSCRIBE)
}
