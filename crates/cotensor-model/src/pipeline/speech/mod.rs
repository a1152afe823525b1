//! Whisper's tasks: the spoken language, and the transcript.

mod prompt;
mod windows;

pub(crate) use windows::WindowTranscriber;

use super::generator::{Generator, OnText, Shown};
use super::inputs::Inputs;
use super::run::Run;
use cotensor_core::Result;
use cotensor_pipeline::{Answer, LongSound, Output, SpeechSegment, SpokenLanguage, TextPieces, User};
use cotensor_preprocess::family::Task;
use cotensor_preprocess::generation::{is_text, transcript_of};
use prompt::{language, prompt};

/// The spoken language: the language token with the highest logit after one decoder step on the start token.
pub(super) fn identify_language(
    run: &mut Run<'_>,
    task: &Task,
    user: &User,
    inputs: &Inputs,
) -> Result<(Answer, Vec<Output>)> {
    let config = run.model.generation(&user.task)?;
    run.encode(run.model.family().stage("encoder")?, inputs)?;
    let generator = Generator::load(run, task)?;
    let (spoken, logits) = language(run, &generator, &config)?;
    let SpokenLanguage { code: language, probability, .. } = spoken;
    Ok((Answer::Language { language, probability }, vec![Output::new("language_logits", &[logits.len()], &logits)]))
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
    let config = run.model.generation(&user.task)?;
    run.encode(run.model.family().stage("encoder")?, inputs)?;
    let generator = Generator::load(run, task)?;
    let mut prompt = prompt(run, &generator, &config)?;
    prompt.extend(config.token("no_timestamps_token_id")?);
    let tokenizer = run.tokenizer()?;
    let shown = Shown { before: &[], is_text };
    let written = generator.generate(run, user, &config, &prompt, &shown, on_text)?;
    let text = transcript_of(tokenizer, &written)?;
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
    let mut pieces = TextPieces::new(tokenizer, &[], is_text);
    let mut tokens = Vec::new();
    while let Some(windows) = sound.window()? {
        run.release();
        for SpeechSegment { tokens: of_segment, .. } in transcriber.next(run, task, user, windows)? {
            for &token in &of_segment {
                pieces.piece(token)?.map_or(Ok(()), |piece| on_text(&piece))?;
            }
            tokens.extend(of_segment);
        }
    }
    if let Some(rest) = pieces.finish()? {
        on_text(&rest)?;
    }
    let text = transcript_of(tokenizer, &tokens)?;
    Ok((Answer::Transcript { text, tokens: tokens.len() }, vec![Output::of_tokens(&tokens)]))
}
