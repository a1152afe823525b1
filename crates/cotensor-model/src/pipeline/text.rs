//! Texts that a decoder writes: continuations of a text, summaries, translations.

use super::decode::{GenerationConfig, features};
use super::generator::{Generator, OnText, Shown};
use super::inputs::Inputs;
use super::run::Run;
use crate::model::Model;
use cotensor_core::{Error, Result};
use cotensor_pipeline::{
    Answer, Output, User, check_vocabulary, cut_message, decoded_after, expanded, image_token, prompt_of, token_text,
    trunk_output,
};
use cotensor_preprocess::family::{Medium, Task};

/// Runs the encoders of the task, and decodes.
pub(super) fn generate(
    run: &mut Run<'_>,
    task: &Task,
    user: &User,
    inputs: &Inputs,
    on_text: &mut OnText<'_>,
) -> Result<(Answer, Vec<Output>)> {
    let config = run.model.generation(&user.task)?;
    let mut text_ids = Vec::new();
    for role in encoder_roles(run.model, task)? {
        let def = run.model.family().stage(role)?;
        if run.given(def, inputs)?.is_some() {
            // The decoder reads the mask. Adapters are fitted on texts without a prefix.
            if def.reads(Medium::Text) {
                text_ids = run.encode_texts(task, user, def, None, &[inputs.text()?])?.batch.ids.as_i64()?.to_vec();
            }
            continue;
        }
        let stage = run.load(role, |model| model.stage(role))?;
        if def.reads(Medium::Text) {
            let text = text_of(&config, user, inputs)?;
            text_ids = run.encode_texts(task, user, def, Some(&stage), &[&text])?.batch.ids.as_i64()?.to_vec();
        }
        let output = trunk_output(role, def, stage.ports())?;
        run.run_stage(def, &stage, inputs, output)?;
    }
    let generator = Generator::load(run, task)?;
    let mut continues = task.prompt;
    let ids = if task.prompt {
        text_ids = prompt_ids(run, user, &text_of(&config, user, inputs)?)?;
        expanded_prompt(run, &text_ids)?
    } else {
        let mut ids = vec![config.start()?];
        if let Some(text) = user.texts.first().filter(|_| task.begins) {
            text_ids = run.encode_text(text, true)?;
            ids.extend(&text_ids);
            continues = true;
        }
        ids
    };
    check_vocabulary(&run.model.model_config(), text_ids.iter().chain(&ids).copied())?;
    let before = if continues { ids.as_slice() } else { &[] };
    let shown = Shown { before, is_text: |_, _| true };
    let tokens = generator.generate(run, user, &config, &ids, &shown, on_text)?;
    let text = decoded_after(run.tokenizer()?, before, &tokens)?;
    let answer = Answer::Text { text, tokens: tokens.len(), prompt_tokens: text_ids.len() };
    Ok((answer, vec![Output::of_tokens(&tokens)]))
}

/// The tokens of a text that the decoder continues: the text itself, or a chat with the text as the message of a user. A
/// text about an image that does not have the image's token is a message.
fn prompt_ids(run: &mut Run<'_>, user: &User, text: &str) -> Result<Vec<i64>> {
    let model = run.model;
    let image = image_token(&model.model_config())?;
    let image = image.map(|token| Ok::<_, Error>(token_text(model.text()?, token))).transpose()?;
    let field = format!("{}.chat", user.name);
    let prompt = prompt_of(text, image.as_deref(), (user.chat, &field), &model.model_config(), || model.chat())?;
    let (notices, ids) = (run.notices.len(), run.encode_text(&prompt.text, prompt.is_plain)?);
    if prompt.is_chat && run.notices.len() > notices { Err(cut_message()) } else { Ok(ids) }
}

/// The tokens of a prompt, with as many image tokens as the image's features have rows.
fn expanded_prompt(run: &Run<'_>, ids: &[i64]) -> Result<Vec<i64>> {
    match (image_token(&run.model.model_config())?, features(run.model, &run.values)) {
        (Some(token), Some(features)) => expanded(ids, token, features.shape(), run.model.text()?),
        _ => Ok(ids.to_vec()),
    }
}

/// The roles of the task that run before the decoder.
fn encoder_roles<'m>(model: &'m Model, task: &'m Task) -> Result<Vec<&'m str>> {
    Ok(model.roles(task)?.into_iter().filter(|role| !model.family().is_of_decoder(role)).collect())
}

/// The user's text, or the input text, with the prefix of the task.
fn text_of(config: &GenerationConfig, user: &User, inputs: &Inputs) -> Result<String> {
    let texts = inputs.texts_of(user)?;
    let text = texts.first().copied().unwrap_or_default();
    Ok(format!("{}{text}", config.prefix()))
}
