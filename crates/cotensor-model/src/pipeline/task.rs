//! Runs the task of a user: the stages in order. A stage runs only if the store does not have its result.

use super::generator::OnText;
use super::host::decode_answer;
use super::inputs::Inputs;
use super::run::Run;
use crate::model::Model;
use crate::stage::Stage;
use crate::tensor::Value;
use cotensor_core::{Error, Kind, Result};
use cotensor_pipeline::{
    Answer, OWN_HEAD, Output, Question, StageOutput, Text, User, UserReport, check_architecture, head_output,
    output_of, outputs_read, read_answer,
};
use cotensor_preprocess::family::{AnswerKind, LOGITS, Medium, Source, Task};
use cotensor_store::{Holder, Lease};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Runs the task of `user` with `model` on `inputs`. `holder` holds the leases.
///
/// # Errors
/// `Invalid` for a task that the family does not have or for a missing input; else the errors of opening or running a
/// stage.
pub fn run_user(model: &Model, user: &User, inputs: &Inputs, holder: &Holder) -> Result<UserReport> {
    run_user_keeping(model, user, inputs, holder).map(|(report, _)| report)
}

/// As [`run_user`], with leases on the outputs of the stages by kind (`vision_embedding`), the last output of each
/// kind. Outputs that are not shared (a list of texts, a refused kind) have no lease.
///
/// # Errors
/// As [`run_user`].
pub fn run_user_keeping(
    model: &Model,
    user: &User,
    inputs: &Inputs,
    holder: &Holder,
) -> Result<(UserReport, BTreeMap<&'static str, Lease>)> {
    run_user_streaming(model, user, inputs, holder, &mut |_| Ok(()))
}

/// As [`run_user_keeping`]; `on_text` gets the text of a task that decodes, piece by piece, while it is decoded.
///
/// # Errors
/// As [`run_user`]; the errors of `on_text`, which stop the decoding.
pub fn run_user_streaming(
    model: &Model,
    user: &User,
    inputs: &Inputs,
    holder: &Holder,
    on_text: &mut OnText<'_>,
) -> Result<(UserReport, BTreeMap<&'static str, Lease>)> {
    let mut run = Run::new(model, holder);
    let (answer, outputs) = answer_in(&mut run, user, inputs, on_text)?;
    let kept = model.family().stages.iter().filter(|def| def.kind != Kind::Other).filter_map(|def| {
        let value = run.values.get(&Source::stage(&def.role, def.outputs.first()?))?;
        Some(value.lease()?.try_clone().map(|lease| (def.kind.name(), lease)))
    });
    let kept = kept.collect::<Result<_>>()?;
    let report = UserReport {
        user: user.name.clone(),
        task: user.task.clone(),
        model: model.name(),
        answer,
        outputs,
        prepared: run.prepared,
        stages: run.stages,
        report_ms: run.report_ms,
        notices: run.notices,
        constants: run.constants,
    };
    Ok((report, kept))
}

/// The answer to `user`, in a run that the caller keeps.
pub(super) fn answer_in(
    run: &mut Run<'_>,
    user: &User,
    inputs: &Inputs,
    on_text: &mut OnText<'_>,
) -> Result<(Answer, Vec<Output>)> {
    let task = run.model.family().task(&user.task).map_err(|error| error.in_field(format!("{}.task", user.name)))?;
    user.check_limits(&user.name)?;
    user.check_task(task)?;
    if let Some(notice) = run.model.model_config().code_notice() {
        run.notice(notice);
    }
    match task.answer {
        AnswerKind::Text | AnswerKind::Transcript | AnswerKind::Language => {
            decode_answer(run, task, user, inputs, on_text)
        }
        AnswerKind::Scores => run.rerank(task, user, inputs),
        _ => run.encode_and_answer(task, user, inputs),
    }
}

impl Run<'_> {
    fn encode_and_answer(&mut self, task: &Task, user: &User, inputs: &Inputs) -> Result<(Answer, Vec<Output>)> {
        let mut batch = None;
        let mut last = None;
        for role in self.model.roles(task)? {
            let def = self.model.family().stage(role)?;
            if let Some(value) = self.given(def, inputs)? {
                if def.reads(Medium::Text) {
                    batch = Some(self.encode_texts(task, user, def, None, &[inputs.text()?])?);
                }
                last = Some((value, def.outputs.first().map_or("", String::as_str)));
                continue;
            }
            let stage = self.load(role, |model| model.stage(role))?;
            let output = output_of(task, def, stage.ports(), user.head.is_none() && !self.model.has_head_file())?;
            if def.reads(Medium::Text) {
                if user.texts.len() > 1 {
                    last = Some((self.encode_each(task, def, &stage, user, inputs)?, output));
                    continue;
                }
                batch = Some(self.encode_texts(task, user, def, Some(&stage), &inputs.texts_of(user)?)?);
            }
            last = Some((self.run_stage(def, &stage, inputs, output)?, output));
        }
        let (mut last, mut output) =
            last.ok_or_else(|| Error::invalid(format!("task {:?} has no stages", task.name)))?;
        if task.head && output != LOGITS {
            let stage = self.load_head(user, task)?;
            last = self.run_head(&stage, user, &last)?;
            output = LOGITS;
        }
        if task.head && user.head.is_none() && !self.model.has_head_file() {
            check_architecture(&self.model.model_config(), task)?;
        }
        self.answer(task, user, inputs, output, &last, batch.as_ref())
    }

    /// The logits of a head on the result of the trunk.
    pub(super) fn run_head(&mut self, head: &Stage, user: &User, trunk: &Value) -> Result<Value> {
        let [input] = head.graph().inputs() else {
            return Err(Error::invalid("a head has exactly one input").in_field(&head.role));
        };
        let (input, output) = (input.name.clone(), head_output(head.ports())?);
        self.one(head, &[(&input, trunk)], &output, user.name.as_str())
    }

    /// The head that the user names, or the model's own head.
    pub(super) fn load_head(&mut self, user: &User, task: &Task) -> Result<Arc<Stage>> {
        let start = Instant::now();
        let stage = match &user.head {
            Some(name) => self.model.head(name)?,
            None => {
                let trunk = task.stages.last().map_or("", String::as_str);
                let found = self.model.own_head(trunk)?;
                found.ok_or_else(|| self.model.no_head().in_field(OWN_HEAD))?
            }
        };
        self.note_load(&stage.role, &stage, start);
        Ok(stage)
    }

    /// Reads the answer from the last value, whose name is `output`, or from those of several stages.
    fn answer(
        &mut self,
        task: &Task,
        user: &User,
        inputs: &Inputs,
        output: &str,
        last: &Value,
        text: Option<&Text>,
    ) -> Result<(Answer, Vec<Output>)> {
        let mut values = Vec::new();
        for (source, name) in outputs_read(self.model.family(), task)? {
            let value = self.values.get(&source);
            let value = value.ok_or_else(|| Error::invalid(format!("{} needs {source}", task.name)))?;
            values.push((name, value, value.to_f32()?));
        }
        if values.is_empty() {
            values.push((output, last, last.to_f32()?));
        }
        let outputs = values.iter().map(|(name, value, values)| StageOutput { name, shape: value.shape(), values });
        let texts = if task.answer == AnswerKind::Similarity { inputs.texts_of(user)? } else { Vec::new() };
        let image_size = (task.answer == AnswerKind::Objects).then(|| inputs.image_size()).transpose()?;
        let head = user.head.as_deref().unwrap_or(OWN_HEAD);
        let question = Question { task, head, texts: &texts, threshold: user.threshold, image_size, text };
        let answered = read_answer(self.model, &question, &outputs.collect::<Vec<_>>())?;
        self.constants.extend(answered.constants);
        answered.notices.into_iter().for_each(|notice| self.notice(notice));
        Ok((answered.answer, answered.outputs))
    }
}
