//! Scores texts against the input text with a cross-encoder.

use super::attention::check_attention;
use super::inputs::Inputs;
use super::run::Run;
use cotensor_core::{Error, Result};
use cotensor_pipeline::{
    Answer, AttentionMemory, Output, StageOutput, User, check_architecture, output_of, pair_logit, scored,
};
use cotensor_preprocess::family::{LOGITS, Task};

impl Run<'_> {
    /// Scores each text of the user against the input text. Each pair runs by itself: users with different lists share
    /// the results of equal pairs, and no pair needs padding.
    pub(super) fn rerank(&mut self, task: &Task, user: &User, inputs: &Inputs) -> Result<(Answer, Vec<Output>)> {
        if !task.head {
            return self.rank_by_logits(task, user, inputs);
        }
        let query = inputs.text()?;
        let function = self.model.score_function()?;
        let [role] = task.stages.as_slice() else {
            return Err(Error::invalid(format!("task {:?} needs one stage", task.name)));
        };
        let def = self.model.family().stage(role)?;
        let stage = self.load(role, |model| model.stage(role))?;
        let own_head = user.head.is_none() && !self.model.has_head_file();
        let output = output_of(task, def, stage.ports(), own_head)?;
        let head = if output == LOGITS { None } else { Some(self.load_head(user, task)?) };
        if own_head {
            check_architecture(&self.model.model_config(), task)?;
        }
        let (mut all, mut tokens, mut truncated) = (Vec::new(), Vec::new(), Vec::new());
        for (at, text) in user.texts.iter().enumerate() {
            let mut pair = || {
                let batch = self.encode_pair(def, &stage, query, text)?;
                let memory = AttentionMemory::of(&self.model.model_config(), 1, batch.added.len());
                check_attention(&memory, self.model)?;
                let mut last = self.run_stage(def, &stage, inputs, output).map_err(|error| memory.explain(error))?;
                if let Some(head) = &head {
                    last = self.run_head(head, user, &last)?;
                }
                let last = StageOutput { name: LOGITS, shape: last.shape(), values: &last.to_f32()? };
                Ok((pair_logit(task, last)?, batch))
            };
            let (logit, batch) = pair().map_err(|error: Error| error.prefixed(format_args!("text {at}")))?;
            all.push(logit);
            tokens.push(batch.mask.as_i64()?.iter().sum::<i64>() as f32);
            truncated.push(f32::from(u8::from(batch.truncated.contains(&true))));
        }
        Ok(scored(&user.texts, function, &all, &tokens, &truncated))
    }
}
