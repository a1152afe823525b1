//! The similarity of an image, or of a sound, to texts.

use super::answer::{Answer, Output, numbers, read, sigmoid, softmax};
use super::definition::User;
use super::inputs::Inputs;
use super::report::Constant;
use super::run::Run;
use crate::model::LogitScale;
use cotensor_core::{Error, Result};
use cotensor_preprocess::family::{Probability, Task};
use cotensor_preprocess::normalized;

impl Run<'_> {
    /// The texts by their similarity to the image. Scale and bias of the logits come from the files of the model.
    pub(super) fn similarity(&mut self, task: &Task, user: &User, inputs: &Inputs) -> Result<(Answer, Vec<Output>)> {
        let model = self.model;
        let family = model.family();
        let value = |reads_text: bool| {
            let defs = task.stages.iter().map(|role| family.stage(role)).collect::<Result<Vec<_>>>()?;
            let def = defs.into_iter().find(|def| def.reads("text") == reads_text);
            let found = def.and_then(|def| {
                let name = def.outputs.first()?;
                Some((name.as_str(), self.values.get(&format!("{}.{name}", def.role))?))
            });
            found.ok_or_else(|| Error::invalid(format!("{} needs two embeddings", task.name)))
        };
        let ((name, one), (_, text_embeds)) = (value(false)?, value(true)?);
        let (width, one) = read(one, &task.name, None)?;
        let (&[_, text_width], texts) = (text_embeds.shape(), text_embeds.to_f32()?) else {
            let message = format!("text embeddings of shape {:?}; [texts, N] is required", text_embeds.shape());
            return Err(Error::unsupported(message));
        };
        numbers(&texts)?;
        if width != text_width {
            return Err(Error::corrupt(format!("{name} has {width} dimensions, text embeddings have {text_width}")));
        }
        let one = normalized(&one);
        let cosine = |row: &[f32]| normalized(row).iter().zip(&one).map(|(a, b)| a * b).sum::<f32>();
        let cosines: Vec<f32> = texts.chunks_exact(width).map(cosine).collect();
        let outputs =
            vec![Output::new(name, &[width], &one), Output::new("cosine_similarity", &[cosines.len()], &cosines)];
        let logits = self.logits(&cosines)?;
        let probabilities = match family.similarity()?.probability {
            Probability::Sigmoid => sigmoid(&logits),
            Probability::Softmax => softmax(&logits),
        };
        let names = inputs.texts_of(user)?;
        let texts = names.iter().zip(cosines.iter().zip(probabilities));
        let mut ranking: Vec<(String, f32, f32)> =
            texts.map(|(name, (&cosine, probability))| ((*name).to_owned(), cosine, probability)).collect();
        ranking.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok((Answer::Ranking { texts: ranking }, outputs))
    }

    /// The logits of cosine similarities. Reports the numbers that they depend on.
    fn logits(&mut self, cosines: &[f32]) -> Result<Vec<f32>> {
        let model = self.model;
        let LogitScale { scale, bias, source, untrained } = model.logit_scale()?;
        let names = model.family().similarity()?;
        let mut note = |name: &str, value: f32| {
            self.constants.push(Constant { name: name.to_owned(), value, file: source.clone() });
        };
        note(&names.scale, *scale);
        if let Some(name) = &names.bias {
            note(name, *bias);
        }
        if *untrained {
            self.notice(format!(
                "no file has the trained {}: the probabilities follow from its value before training in {source}, which \
                 makes them too even; the order of the texts does not depend on it",
                names.scale
            ));
        }
        Ok(cosines.iter().map(|cosine| cosine * scale + bias).collect())
    }
}
