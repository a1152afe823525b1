use crate::value::Value;
use cotensor_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// What a user gets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Answer {
    /// One label for the whole input.
    Label {
        /// The likeliest label.
        label: String,
        /// Its probability, 0 to 1.
        probability: f32,
    },
    /// A label for every token.
    Tokens {
        /// Token text and label, special tokens left out.
        tokens: Vec<(String, String)>,
    },
    /// The texts, each with its cosine similarity and its probability among them, best first.
    Ranking {
        /// Text, cosine similarity, probability.
        texts: Vec<(String, f32, f32)>,
    },
    /// A vector of length 1.
    Embedding {
        /// Its dimensions.
        width: usize,
    },
    /// Decoded text.
    Transcript {
        /// The text.
        text: String,
        /// How many tokens were decoded.
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

/// The numbers behind an answer, to compare runs bit by bit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// Which output.
    pub name: String,
    /// Dimensions, in elements.
    pub shape: Vec<usize>,
    /// The elements; integers as they are.
    pub values: Vec<f32>,
}

impl Output {
    pub(crate) fn new(name: &str, shape: &[usize], values: &[f32]) -> Self {
        Self { name: name.to_owned(), shape: shape.to_vec(), values: values.to_vec() }
    }

    /// The largest absolute difference of any element; infinite when shapes differ or one side is not a number.
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

/// The row of the highest value and its softmax probability.
pub(crate) fn best(logits: &[f32]) -> Result<(usize, f32)> {
    let probabilities = softmax(logits);
    probabilities
        .iter()
        .copied()
        .enumerate()
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .ok_or_else(|| Error::corrupt("the head has no labels"))
}

/// Softmax of one row.
pub(crate) fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials: Vec<f32> = logits.iter().map(|logit| (logit - max).exp()).collect();
    let sum: f32 = exponentials.iter().sum();
    exponentials.iter().map(|value| value / sum).collect()
}

/// `vector` scaled to length 1; a zero vector stays as it is.
pub(crate) fn normalized(vector: &[f32]) -> Vec<f32> {
    let norm = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    if norm == 0.0 { vector.to_vec() } else { vector.iter().map(|value| value / norm).collect() }
}

/// The rows of a `[.., rows, width]` value: width and elements.
pub(crate) fn rows(value: &Value) -> Result<(usize, &[f32])> {
    match value.shape().last() {
        Some(&width) if width > 0 && !value.as_f32()?.is_empty() => Ok((width, value.as_f32()?)),
        _ => Err(Error::corrupt(format!("an output of shape {:?} has no rows", value.shape()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_never_hidden() {
        let output = |values: &[f32]| Output::new("x", &[values.len()], values);
        assert_eq!(output(&[1.0, f32::NAN]).max_abs_diff(&output(&[1.0, f32::NAN])), 0.0);
        assert_eq!(output(&[1.0, 2.0]).max_abs_diff(&output(&[1.5, 2.0])), 0.5);
        assert_eq!(output(&[f32::NAN]).max_abs_diff(&output(&[0.0])), f64::INFINITY);
        assert_eq!(output(&[0.0]).max_abs_diff(&output(&[0.0, 0.0])), f64::INFINITY);
    }

    #[test]
    fn softmax_sums_to_one() {
        let probabilities = softmax(&[1000.0, 999.0, 0.0]);
        assert!((probabilities.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        assert_eq!(best(&[0.0, 3.0, 1.0]).unwrap().0, 1);
        assert!(best(&[]).is_err());
    }
}
