//! The stages of a task that a decoder answers, for the loops of [`cotensor_pipeline`].

use super::generator::{Generator, OnText};
use super::inputs::Inputs;
use super::run::Run;
use crate::model::Model;
use crate::tensor::{Array, Value};
use cotensor_core::Result;
use cotensor_pipeline::{
    Answer, DecoderTask, LongSound, Output, User, Writing, WritingConfig, at_once, decoded_answer,
};
use cotensor_preprocess::TextProcessor;
use cotensor_preprocess::family::{AnswerKind, Medium, Task};
use std::rc::Rc;

/// Runs the stages of a task in the engines of a model.
pub(super) struct Host<'h, 'm> {
    run: &'h mut Run<'m>,
    task: &'static Task,
    user: &'h User,
    inputs: &'h Inputs,
    on_text: &'h mut OnText<'h>,
    /// What the task puts before a text.
    prefix: &'h str,
    /// A part of the sound, in place of the user's inputs.
    part: Option<Inputs>,
    /// Opened for each part of the sound: the report has each use.
    generator: Option<Rc<Generator>>,
}

/// The parameters by which a model writes.
///
/// # Errors
/// As [`Model::generation`] and [`WritingConfig::new`].
pub(super) fn writing_config(model: &Model, task: &str) -> Result<WritingConfig> {
    WritingConfig::new(model.generation(task)?)
}

/// A task that a decoder answers. `text` is what it continues.
///
/// # Errors
/// As [`Model::roles`].
pub(super) fn decoder_task<'a>(
    model: &'a Model,
    config: &'a WritingConfig,
    task: &'static Task,
    (user, chat_option): (&'a User, &'a str),
    text: Option<String>,
) -> Result<DecoderTask<'a>> {
    let (chat, roles) = (Box::new(|| model.chat()), model.roles(task)?);
    Ok(DecoderTask { model: model.model_config(), config, chat, task, roles, user, chat_option, text })
}

/// The answer of a task that a decoder gives.
///
/// # Errors
/// As [`decoded_answer`].
pub(super) fn decode_answer(
    run: &mut Run<'_>,
    task: &'static Task,
    user: &User,
    inputs: &Inputs,
    on_text: &mut OnText<'_>,
) -> Result<(Answer, Vec<Output>)> {
    let (model, chat_option) = (run.model, format!("{}.chat", user.name));
    let config = writing_config(model, &user.task)?;
    let prefix = config.plain.prefix();
    let text = if task.prompt {
        Some(text_of(user, inputs, prefix)?)
    } else {
        user.texts.first().filter(|_| task.begins).cloned()
    };
    let reads_windows = task.answer == AnswerKind::Transcript && config.timed.is_some();
    let sound = if reads_windows { inputs.long_sound(model)? } else { None };
    run.notices.extend(sound.as_ref().and_then(LongSound::notice));
    let of_user = decoder_task(model, &config, task, (user, &chat_option), text)?;
    let mut host = Host::new(run, task, user, inputs, prefix, on_text);
    at_once(decoded_answer(&mut host, &of_user, sound))
}

/// The user's text, or the input text, behind the prefix of the task.
fn text_of(user: &User, inputs: &Inputs, prefix: &str) -> Result<String> {
    let texts = inputs.texts_of(user)?;
    Ok(format!("{prefix}{}", texts.first().copied().unwrap_or_default()))
}

impl<'h, 'm> Host<'h, 'm> {
    pub(super) fn new(
        run: &'h mut Run<'m>,
        task: &'static Task,
        user: &'h User,
        inputs: &'h Inputs,
        prefix: &'h str,
        on_text: &'h mut OnText<'h>,
    ) -> Self {
        Self { run, task, user, inputs, on_text, prefix, part: None, generator: None }
    }

    fn generator(&mut self) -> Result<Rc<Generator>> {
        if let Some(generator) = &self.generator {
            return Ok(Rc::clone(generator));
        }
        let generator = Rc::new(Generator::load(self.run, self.task)?);
        Ok(Rc::clone(self.generator.insert(generator)))
    }
}

impl<'m> cotensor_pipeline::Host for Host<'_, 'm> {
    type Tokenizer = &'m TextProcessor;

    fn tokenizer(&mut self) -> Result<&'m TextProcessor> {
        self.run.tokenizer()
    }

    fn tokens(&mut self, text: &str, plain: bool) -> Result<(Vec<i64>, bool)> {
        let batch = self.run.encode_text(text, plain)?;
        Ok((batch.ids.as_i64()?.to_vec(), batch.truncated.contains(&true)))
    }

    fn notice(&mut self, notice: String) {
        self.run.notice(notice);
    }

    async fn give(&mut self, piece: &str) -> Result<()> {
        (self.on_text)(piece)
    }

    async fn turn(&mut self) {}

    fn set_part(&mut self, features: Array) {
        self.run.release();
        self.generator = None;
        self.part = Some(Inputs::default().with_features(Value::from(features)));
    }

    async fn encode(&mut self, role: &str) -> Result<Vec<usize>> {
        let def = self.run.model.family().stage(role)?;
        let inputs = self.part.as_ref().unwrap_or(self.inputs);
        let value = self.run.encode(def, inputs, |run, stage| {
            if def.reads(Medium::Text) {
                // The decoder reads the mask of a text that another encoder has read. Adapters are fitted on texts without a prefix.
                let own = || text_of(self.user, inputs, self.prefix);
                let text = if stage.is_some() { own()? } else { inputs.text()?.to_owned() };
                run.encode_texts(self.task, self.user, def, stage, &[&text])?;
            }
            Ok(())
        })?;
        Ok(value.shape().to_vec())
    }

    async fn scores(&mut self, tokens: &[i64]) -> Result<Vec<f32>> {
        let scores = self.generator()?.scores(self.run, tokens)?;
        Ok(scores.to_f32()?.into_owned())
    }

    async fn decode(&mut self, writing: &Rc<Writing<&'m TextProcessor>>) -> Result<(Vec<i64>, bool)> {
        self.generator()?.decode(self.run, writing, self.on_text)
    }
}
