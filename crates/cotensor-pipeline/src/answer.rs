//! Answers of tasks.

use super::labels::{Labels, Problem};
use super::numbers::{best, check_numbers, row_width, sigmoid};
use cotensor_core::Result;
use cotensor_preprocess::family::Task;
use serde::{Deserialize, Serialize};

/// The answer to a user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Answer {
    /// One label for the whole input.
    Label {
        /// The label with the highest probability.
        label: String,
        /// Its probability, 0 to 1.
        probability: f32,
    },
    /// Labels that are right or wrong independently (`problem_type` `multi_label_classification`), best first.
    Labels {
        /// Label and probability, 0 to 1; the probabilities do not sum to 1.
        labels: Vec<(String, f32)>,
    },
    /// The numbers of a regression (`problem_type` `regression`).
    Numbers {
        /// Name and number.
        numbers: Vec<(String, f32)>,
    },
    /// A label for every token.
    Tokens {
        /// Token text and label, without the tokens that the tokenizer adds around the text.
        tokens: Vec<(String, String)>,
    },
    /// The texts, each with its cosine similarity and its probability among the texts, best first.
    Ranking {
        /// Text, cosine similarity, probability.
        texts: Vec<(String, f32, f32)>,
    },
    /// The texts, each with its score for the input text, best first.
    Scores {
        /// Text and score.
        texts: Vec<(String, f32)>,
    },
    /// Objects in an image, in the order in which the model gives them.
    Objects {
        /// The objects whose score is above the threshold.
        objects: Vec<Object>,
    },
    /// A vector.
    Embedding {
        /// The number of dimensions.
        width: usize,
    },
    /// Text that a decoder wrote.
    Text {
        /// The text. A continuation does not repeat the prompt.
        text: String,
        /// The number of decoded tokens.
        tokens: usize,
        /// The number of tokens of the text that the model read.
        prompt_tokens: usize,
    },
    /// The text of speech.
    Transcript {
        /// The text.
        text: String,
        /// The number of decoded tokens.
        tokens: usize,
    },
    /// A spoken language.
    Language {
        /// Its code, such as `en`.
        language: String,
        /// Its probability among the languages, 0 to 1.
        probability: f32,
    },
}

/// An object in an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Object {
    /// What it is.
    pub label: String,
    /// The probability, 0 to 1.
    pub score: f32,
    /// Left, top, right and bottom in pixels of the image. A model may place an edge slightly outside of the image.
    #[serde(rename = "box")]
    pub bounds: [f32; 4],
}

/// The numbers behind an answer, for bitwise comparisons of runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// The name of the output.
    pub name: String,
    /// Dimensions, in elements.
    pub shape: Vec<usize>,
    /// The elements; integers are converted.
    pub values: Vec<f32>,
}

impl Output {
    /// An output with the elements `values` in the shape `shape`.
    pub fn new(name: &str, shape: &[usize], values: &[f32]) -> Self {
        Self { name: name.to_owned(), shape: shape.to_vec(), values: values.to_vec() }
    }

    /// The decoded tokens.
    pub fn of_tokens(tokens: &[i64]) -> Self {
        let values: Vec<f32> = tokens.iter().map(|&token| token as f32).collect();
        Self::new("tokens", &[tokens.len()], &values)
    }

    /// The largest absolute difference of an element; infinite when shapes differ or one of two elements is NaN.
    pub fn max_abs_diff(&self, other: &Output) -> f64 {
        if self.shape != other.shape || self.values.len() != other.values.len() {
            return f64::INFINITY;
        }
        let difference = |(&a, &b): (&f32, &f32)| {
            if a.to_bits() == b.to_bits() {
                return 0.0;
            }
            let difference = (f64::from(a) - f64::from(b)).abs();
            if difference.is_nan() { f64::INFINITY } else { difference }
        };
        self.values.iter().zip(&other.values).map(difference).fold(0.0, f64::max)
    }
}

/// An output of a stage.
#[derive(Clone, Copy, Debug)]
pub struct StageOutput<'a> {
    /// The name that the graph or the family gives it.
    pub name: &'a str,
    /// Dimensions, in elements.
    pub shape: &'a [usize],
    /// The elements.
    pub values: &'a [f32],
}

impl StageOutput<'_> {
    /// The elements of a row, as [`row_width`] and [`check_numbers`] want them.
    pub(crate) fn width(&self, task: &Task, rows: Option<Option<usize>>) -> Result<usize> {
        let width = row_width(self.shape, &task.name, rows)?;
        check_numbers(self.values)?;
        Ok(width)
    }
}

/// The answer for the logits of a whole input.
///
/// # Errors
/// `Corrupt` without logits.
pub(crate) fn labelled(logits: &[f32], labels: Labels) -> Result<Answer> {
    let named = |values: Vec<f32>| labels.names.iter().cloned().zip(values).collect::<Vec<_>>();
    let (index, probability) = best(logits)?;
    Ok(match labels.problem {
        Problem::SingleLabel => Answer::Label { label: labels.names[index].clone(), probability },
        Problem::MultiLabel if logits.len() == 1 => {
            Answer::Label { label: labels.names[0].clone(), probability: sigmoid(logits)[0] }
        }
        Problem::MultiLabel => {
            let mut labels = named(sigmoid(logits));
            labels.sort_by(|a, b| b.1.total_cmp(&a.1));
            Answer::Labels { labels }
        }
        Problem::Regression => Answer::Numbers { numbers: named(logits.to_vec()) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_and_shape_differences_are_infinite() {
        let output = |values: &[f32]| Output::new("x", &[values.len()], values);
        assert_eq!(output(&[1.0, f32::NAN]).max_abs_diff(&output(&[1.0, f32::NAN])), 0.0);
        assert_eq!(output(&[1.0, 2.0]).max_abs_diff(&output(&[1.5, 2.0])), 0.5);
        assert_eq!(output(&[f32::NAN]).max_abs_diff(&output(&[0.0])), f64::INFINITY);
        assert_eq!(output(&[0.0]).max_abs_diff(&output(&[0.0, 0.0])), f64::INFINITY);
    }

    #[test]
    fn logits_become_the_answer_of_the_problem() {
        let labels = |count: usize, problem| Labels { names: (0..count).map(|i| format!("l{i}")).collect(), problem };
        let read = |logits: &[f32], problem| labelled(logits, labels(logits.len(), problem)).unwrap();
        assert_eq!(read(&[0.0], Problem::MultiLabel), Answer::Label { label: "l0".into(), probability: 0.5 });
        let Answer::Labels { labels } = read(&[-1.0, 2.0], Problem::MultiLabel) else { panic!("labels") };
        assert_eq!((labels[0].0.as_str(), labels[1].0.as_str()), ("l1", "l0"));
        assert!((labels[0].1 - 0.880797).abs() < 1e-6 && (labels[1].1 - 0.268941).abs() < 1e-6, "{labels:?}");
        let numbers = vec![("l0".to_owned(), 4.25)];
        assert_eq!(read(&[4.25], Problem::Regression), Answer::Numbers { numbers });
    }
}
