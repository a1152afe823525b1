//! Scores texts against the input text with a cross-encoder.

use super::answer::{Answer, Output, read};
use super::attention::AttentionMemory;
use super::definition::User;
use super::inputs::Inputs;
use super::outputs::{check_architecture, output_of};
use super::run::Run;
use cotensor_core::{Error, Result};
use cotensor_preprocess::ScoreFunction;
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
        let output = output_of(task, def, &stage, own_head)?;
        let head = if output == LOGITS { None } else { Some(self.load_head(user, task)?) };
        if own_head {
            check_architecture(self.model, task)?;
        }
        let (mut all, mut tokens, mut truncated) = (Vec::new(), Vec::new(), Vec::new());
        for (at, text) in user.texts.iter().enumerate() {
            let mut pair = || {
                let batch = self.encode_pair(def, &stage, query, text)?;
                let memory = AttentionMemory::of(self.model, 1, batch.added.len());
                memory.check(self.model)?;
                let mut last = self.run_stage(def, &stage, inputs, output).map_err(|error| memory.explain(error))?;
                if let Some(head) = &head {
                    last = self.run_head(head, user, &last)?;
                }
                let (width, logits) = read(&last, &task.name, None)?;
                if width != 1 {
                    let message = format!("a reranker gives one number for a pair of texts; this model gives {width}");
                    return Err(Error::unsupported(message).in_field(LOGITS));
                }
                Ok((logits[0], batch))
            };
            let (logit, batch) = pair().map_err(|error: Error| error.prefixed(format_args!("text {at}")))?;
            all.push(logit);
            tokens.push(batch.mask.as_i64()?.iter().sum::<i64>() as f32);
            truncated.push(f32::from(u8::from(batch.truncated.contains(&true))));
        }
        Ok(ranked(user, function, &all, &tokens, &truncated))
    }
}

/// The answer for the logit of each text of the user, with the number of tokens and whether the text was cut off.
pub(super) fn ranked(
    user: &User,
    function: ScoreFunction,
    logits: &[f32],
    tokens: &[f32],
    truncated: &[f32],
) -> (Answer, Vec<Output>) {
    let scores: Vec<f32> = logits.iter().map(|&logit| function.score(logit)).collect();
    let texts = descending(logits).into_iter().map(|at| (user.texts[at].clone(), scores[at])).collect();
    let output = |name: &str, values: &[f32]| Output::new(name, &[values.len()], values);
    let outputs = vec![
        output("scores", &scores),
        output(LOGITS, logits),
        output("tokens", tokens),
        output("truncated", truncated),
    ];
    (Answer::Scores { texts }, outputs)
}

/// The positions of the logits, the largest first. Scores have no such order: the sigmoid of different logits from 17 on is 1
/// in float32.
fn descending(logits: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_that_of_the_logits_where_scores_are_equal() {
        let logits = [17.5, 30.0, -2.0, 19.0];
        assert_eq!(
            logits.map(|logit| ScoreFunction::Sigmoid.score(logit)).map(|score| score == 1.0),
            [true, true, false, true]
        );
        assert_eq!(descending(&logits), [1, 3, 0, 2]);
    }
}
