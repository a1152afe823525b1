use crate::model::{Labels, Problem};
use crate::tensor::Value;
use cotensor_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

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
    pub(crate) fn new(name: &str, shape: &[usize], values: &[f32]) -> Self {
        Self { name: name.to_owned(), shape: shape.to_vec(), values: values.to_vec() }
    }

    /// The decoded tokens.
    pub(crate) fn of_tokens(tokens: &[i64]) -> Self {
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

/// The index of the highest logit and its softmax probability.
pub(crate) fn best(logits: &[f32]) -> Result<(usize, f32)> {
    let probabilities = softmax(logits);
    probabilities
        .iter()
        .copied()
        .enumerate()
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .ok_or_else(|| Error::corrupt("the head has no labels"))
}

/// The index of the highest number; of several, the lowest.
pub(crate) fn argmax(values: &[f32]) -> usize {
    (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b]).then(b.cmp(&a))).unwrap_or(0)
}

/// Sigmoid of each element.
pub(crate) fn sigmoid(logits: &[f32]) -> Vec<f32> {
    logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect()
}

/// Softmax of one row.
pub(crate) fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials: Vec<f32> = logits.iter().map(|logit| (logit - max).exp()).collect();
    let sum: f32 = exponentials.iter().sum();
    exponentials.iter().map(|value| value / sum).collect()
}

/// The width and the elements of an output for one input: `[1, width]`, or `[1, rows, width]` if `rows` is set. The
/// inner `None` of `rows` accepts any number of rows.
///
/// # Errors
/// `Unsupported` for an output of another shape: it has another meaning. `Engine` for an element that is NaN or
/// infinite.
pub(crate) fn read<'v>(value: &'v Value, task: &str, rows: Option<Option<usize>>) -> Result<(usize, Cow<'v, [f32]>)> {
    let shape = value.shape();
    let width = match (shape, rows) {
        (&[1, width], None) => Some(width),
        (&[1, found, width], Some(rows)) if rows.is_none_or(|rows| rows == found) => Some(width),
        _ => None,
    };
    let Some(width) = width.filter(|&width| width > 0) else {
        let wanted = match rows {
            None => "[1, N], one row for the whole input".to_owned(),
            Some(None) => "[1, rows, N]".to_owned(),
            Some(Some(rows)) => format!("[1, {rows}, N], one row for each token"),
        };
        return Err(Error::unsupported(format!("{task} reads an output of shape {wanted}; the model gives {shape:?}")));
    };
    let values = value.to_f32()?;
    numbers(&values)?;
    Ok((width, values))
}

/// Refuses NaN and infinity.
pub(crate) fn numbers(values: &[f32]) -> Result<()> {
    match values.iter().position(|value| value.is_nan() || *value == f32::INFINITY) {
        None => Ok(()),
        Some(at) => Err(Error::new(
            ErrorKind::Engine,
            format!("the model gives {} (element {at} of {}): its numbers overflow", values[at], values.len()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Array;

    #[test]
    fn outputs_that_are_not_numbers_are_refused_with_their_element() {
        let read_logits = |logits: [f32; 3]| {
            let value = Value::from(Array::f32([1, 3], logits.to_vec()).unwrap());
            read(&value, "text-classification", None).map(|(_, values)| values.into_owned())
        };
        for wrong in [f32::NAN, f32::INFINITY] {
            let error = read_logits([0.0, wrong, 1.0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Engine, "{error}");
            assert!(error.to_string().contains("element 1 of 3"), "{error}");
        }
        // Masked logits are minus infinity.
        assert_eq!(read_logits([0.0, f32::NEG_INFINITY, 1.0]).unwrap(), [0.0, f32::NEG_INFINITY, 1.0]);
    }

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

    #[test]
    fn output_of_another_shape_or_without_numbers_is_refused() {
        let value = |shape: &[usize], first: f32| {
            let mut values = vec![0.0; shape.iter().product()];
            values[0] = first;
            Value::from(crate::tensor::Array::f32(shape.to_vec(), values).unwrap())
        };
        assert_eq!(read(&value(&[1, 3], 1.0), "t", None).unwrap().0, 3);
        assert_eq!(read(&value(&[1, 2, 3], 1.0), "t", Some(Some(2))).unwrap().0, 3);
        for (shape, rows) in
            [(&[1, 2, 3][..], None), (&[2, 3], None), (&[1, 3], Some(None)), (&[1, 2, 3], Some(Some(4)))]
        {
            assert_eq!(read(&value(shape, 1.0), "t", rows).err().unwrap().kind(), ErrorKind::Unsupported, "{shape:?}");
        }
        for wrong in [f32::NAN, f32::INFINITY] {
            assert_eq!(read(&value(&[1, 3], wrong), "t", None).err().unwrap().kind(), ErrorKind::Engine);
        }
    }

    #[test]
    fn softmax_sums_to_one() {
        let probabilities = softmax(&[1000.0, 999.0, 0.0]);
        assert!((probabilities.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        assert_eq!(best(&[0.0, 3.0, 1.0]).unwrap().0, 1);
        assert!(best(&[]).is_err());
    }
}
