//! The similarity of an image, or of a sound, to texts.

use super::inputs::Inputs;
use super::run::Run;
use cotensor_core::{Error, Result};
use cotensor_pipeline::{Answer, Embedding, Output, User, ranked};
use cotensor_preprocess::family::{Medium, Source, Task};

impl Run<'_> {
    /// The texts by their similarity to the image. Scale and bias of the logits come from the files of the model.
    pub(super) fn similarity(&mut self, task: &Task, user: &User, inputs: &Inputs) -> Result<(Answer, Vec<Output>)> {
        let model = self.model;
        let family = model.family();
        let value = |reads_text: bool| {
            let defs = task.stages.iter().map(|role| family.stage(role)).collect::<Result<Vec<_>>>()?;
            let def = defs.into_iter().find(|def| def.reads(Medium::Text) == reads_text);
            let found = def.and_then(|def| {
                let name = def.outputs.first()?;
                Some((name.as_str(), self.values.get(&Source::stage(&def.role, name))?))
            });
            found.ok_or_else(|| Error::invalid(format!("{} needs two embeddings", task.name)))
        };
        let ((name, one), (text_name, texts)) = (value(false)?, value(true)?);
        let names = family.similarity()?;
        let scale = model.logit_scale()?;
        let ranking = ranked(
            &task.name,
            Embedding { name, shape: one.shape(), values: &one.to_f32()? },
            Embedding { name: text_name, shape: texts.shape(), values: &texts.to_f32()? },
            &inputs.texts_of(user)?,
            scale,
            names.probability,
        )?;
        self.constants.extend(scale.constants(names));
        if let Some(notice) = scale.notice(names) {
            self.notice(notice);
        }
        Ok(ranking)
    }
}
