//! The scores of texts for an input text.

use super::answer::{Answer, Output, StageOutput};
use cotensor_core::{Error, Result};
use cotensor_preprocess::ScoreFunction;
use cotensor_preprocess::family::{LOGITS, Task};

/// The logit of a pair of texts, from the last output of a cross-encoder.
///
/// # Errors
/// `Unsupported` for an output of another shape, and for a classifier with several labels; `Engine` for numbers that overflow.
pub fn pair_logit(task: &Task, last: StageOutput<'_>) -> Result<f32> {
    match last.width(task, None)? {
        1 => Ok(last.values[0]),
        width => {
            let message = format!("a reranker gives one number for a pair of texts; this model gives {width}");
            Err(Error::unsupported(message).in_field(LOGITS))
        }
    }
}

/// The answer for the logit of each text, with the number of tokens and whether the text was cut off.
pub fn scored(
    texts: &[String],
    function: ScoreFunction,
    logits: &[f32],
    tokens: &[f32],
    truncated: &[f32],
) -> (Answer, Vec<Output>) {
    let scores: Vec<f32> = logits.iter().map(|&logit| function.score(logit)).collect();
    let texts = descending(logits).into_iter().map(|at| (texts[at].clone(), scores[at])).collect();
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
