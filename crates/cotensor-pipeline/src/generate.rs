//! The answers of tasks whose stages are encoders and a decoder.

use super::answer::{Answer, Output};
use super::host::{DecoderTask, Host};
use super::image_tokens::{expanded, image_token, token_text};
use super::long_sound::LongSound;
use super::prompt::{cut_message, prompt_of};
use super::texts::decoded_after;
use super::transcript::{identify_language, transcribe};
use super::write::write;
use cotensor_core::Result;
use cotensor_preprocess::TextProcessor;
use cotensor_preprocess::family::{AnswerKind, Medium};
use std::borrow::Borrow;

/// The answer of a task that a decoder gives: a text, a transcript, or the spoken language. `sound` is a sound that is longer than
/// the window of a model with timestamps.
///
/// # Errors
/// `Invalid` for a prompt or an option out of range; `Corrupt` when the graphs or the sound do not fit; the errors of the host.
pub async fn decoded_answer<H: Host>(
    host: &mut H,
    task: &DecoderTask<'_>,
    sound: Option<LongSound<'_>>,
) -> Result<(Answer, Vec<Output>)> {
    match task.task.answer {
        AnswerKind::Transcript => transcribe(host, task, sound).await,
        AnswerKind::Language => identify_language(host, &task.config.plain).await,
        _ => generate(host, task).await,
    }
}

/// Runs the encoders of the task, and decodes.
async fn generate<H: Host>(host: &mut H, task: &DecoderTask<'_>) -> Result<(Answer, Vec<Output>)> {
    let (family, config) = (task.model.family, &task.config.plain);
    let images = family.decoder.as_ref().and_then(|decoder| decoder.images.as_ref());
    let (mut features, mut prompt_tokens) = (None, 0);
    for role in task.roles.iter().copied().filter(|role| !family.is_of_decoder(role)) {
        let shape = host.encode(role).await?;
        if family.stage(role)?.reads(Medium::Text) {
            prompt_tokens = shape.get(1).copied().unwrap_or_default();
        }
        if images.is_some_and(|images| images.features.role() == Some(role)) {
            features = Some(shape);
        }
    }
    let tokenizer = host.tokenizer()?;
    let continues = task.text.is_some();
    let mut ids = if task.task.prompt { Vec::new() } else { vec![config.start()?] };
    if let Some(text) = &task.text {
        let of_text =
            if task.task.prompt { prompt(host, task, text, tokenizer.borrow())? } else { host.tokens(text, true)?.0 };
        prompt_tokens = of_text.len();
        ids.extend(of_text);
    }
    if let Some((token, features)) = image_token(&task.model)?.zip(features).filter(|_| task.task.prompt) {
        ids = expanded(&ids, token, &features, tokenizer.borrow())?;
    }
    let before = if continues { ids.clone() } else { Vec::new() };
    let tokens = write(host, task, config, ids, continues, |_, _| true).await?;
    let text = decoded_after(tokenizer.borrow(), &before, &tokens)?;
    Ok((Answer::Text { text, tokens: tokens.len(), prompt_tokens }, vec![Output::of_tokens(&tokens)]))
}

/// The tokens of a text that the decoder continues: the text itself, or a chat with the text as the message of a user.
fn prompt<H: Host>(host: &mut H, task: &DecoderTask<'_>, text: &str, tokenizer: &TextProcessor) -> Result<Vec<i64>> {
    let image = image_token(&task.model)?.map(|token| token_text(tokenizer, token));
    let chat = (task.user.chat, task.chat_option);
    let prompt = prompt_of(text, image.as_deref(), chat, &task.model, &task.chat)?;
    let (ids, is_cut) = host.tokens(&prompt.text, prompt.is_plain)?;
    if prompt.is_chat && is_cut { Err(cut_message()) } else { Ok(ids) }
}
