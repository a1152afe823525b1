//! The similarity of an image, or of a sound, to texts.

use super::answer::{Answer, Output, StageOutput};
use super::numbers::{check_numbers, row_width, sigmoid, softmax};
use super::report::Constant;
use cotensor_core::{Error, Result};
use cotensor_preprocess::family::{Probability, Similarity};
use cotensor_preprocess::normalized;

/// The scale and the bias that turn cosine similarities into logits: `logit = cosine * scale + bias`. Both are trained, so
/// they come from the files of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct LogitScale {
    /// The factor.
    pub scale: f32,
    /// The summand.
    pub bias: f32,
    /// The file that has the numbers.
    pub source: String,
    /// Whether the scale is the one before training.
    pub untrained: bool,
}

impl LogitScale {
    /// The numbers, for a report. `names` are those of the checkpoint's tensors.
    pub fn constants(&self, names: &Similarity) -> Vec<Constant> {
        let constant = |name: &str, value| Constant { name: name.to_owned(), value, file: self.source.clone() };
        let bias = names.bias.iter().map(|name| constant(name, self.bias));
        std::iter::once(constant(&names.scale, self.scale)).chain(bias).collect()
    }

    /// A notice about a scale that was not trained.
    pub fn notice(&self, names: &Similarity) -> Option<String> {
        self.untrained.then(|| {
            format!(
                "no file has the trained {}: the probabilities follow from its value before training in {}, which makes them \
                 too even; the order of the texts does not depend on it",
                names.scale, self.source
            )
        })
    }
}

/// The texts `names` by the similarity of their embeddings `[texts, N]` to one embedding `[1, N]`. `task` is the name of the
/// task, for errors.
///
/// # Errors
/// `Unsupported` for embeddings of other shapes, `Corrupt` for embeddings of different widths, `Engine` for numbers that
/// overflow.
pub(crate) fn ranked(
    task: &str,
    one: StageOutput<'_>,
    texts: StageOutput<'_>,
    names: &[&str],
    scale: &LogitScale,
    probability: Probability,
) -> Result<(Answer, Vec<Output>)> {
    let width = row_width(one.shape, task, None)?;
    check_numbers(one.values)?;
    let &[_, text_width] = texts.shape else {
        let message = format!("text embeddings of shape {:?}; [texts, N] is required", texts.shape);
        return Err(Error::unsupported(message));
    };
    check_numbers(texts.values)?;
    if width != text_width {
        return Err(Error::corrupt(format!("{} has {width} dimensions, text embeddings have {text_width}", one.name)));
    }
    if texts.values.len() != names.len() * width {
        let message = format!("{} texts, and embeddings of shape {:?}", names.len(), texts.shape);
        return Err(Error::invalid(message).in_field("texts"));
    }
    let direction = normalized(one.values);
    let cosine = |row: &[f32]| normalized(row).iter().zip(&direction).map(|(a, b)| a * b).sum::<f32>();
    let cosines: Vec<f32> = texts.values.chunks_exact(width).map(cosine).collect();
    let outputs =
        vec![Output::new(one.name, &[width], &direction), Output::new("cosine_similarity", &[cosines.len()], &cosines)];
    let logits: Vec<f32> = cosines.iter().map(|cosine| cosine * scale.scale + scale.bias).collect();
    let probabilities = match probability {
        Probability::Sigmoid => sigmoid(&logits),
        Probability::Softmax => softmax(&logits),
    };
    let texts = names.iter().zip(cosines.iter().zip(probabilities));
    let mut ranking: Vec<(String, f32, f32)> =
        texts.map(|(name, (&cosine, probability))| ((*name).to_owned(), cosine, probability)).collect();
    ranking.sort_by(|a, b| b.1.total_cmp(&a.1));
    Ok((Answer::Ranking { texts: ranking }, outputs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ErrorKind;

    const SCALE: LogitScale = LogitScale { scale: 2.0, bias: 0.0, source: String::new(), untrained: true };

    fn compared(one: &[f32], shape: &[usize], texts: &[f32]) -> Result<(Answer, Vec<Output>)> {
        let one = StageOutput { name: "image_embeds", shape: &[1, one.len()], values: one };
        let texts = StageOutput { name: "text_embeds", shape, values: texts };
        ranked("t", one, texts, &["near", "far"], &SCALE, Probability::Softmax)
    }

    #[test]
    fn texts_are_ordered_by_their_cosine() {
        let (answer, outputs) = compared(&[3.0, 4.0], &[2, 2], &[0.0, -2.0, 3.0, 4.0]).unwrap();
        let Answer::Ranking { texts } = answer else { panic!("{answer:?}") };
        assert_eq!((texts[0].0.as_str(), texts[1].0.as_str()), ("far", "near"));
        assert!((texts[0].1 - 1.0).abs() < 1e-6 && (texts[1].1 + 0.8).abs() < 1e-6, "{texts:?}");
        assert!((texts[0].2 + texts[1].2 - 1.0).abs() < 1e-6);
        assert_eq!(outputs[0].values, [0.6, 0.8]);
    }

    #[test]
    fn embeddings_that_do_not_fit_are_refused() {
        let kind = |one: &[f32], shape: &[usize], texts: &[f32]| compared(one, shape, texts).unwrap_err().kind();
        assert_eq!(kind(&[1.0, 0.0], &[1, 3], &[1.0; 3]), ErrorKind::Corrupt);
        assert_eq!(kind(&[1.0, 0.0], &[2], &[1.0; 2]), ErrorKind::Unsupported);
        assert_eq!(kind(&[1.0, 0.0], &[1, 2], &[1.0; 2]), ErrorKind::Invalid, "one embedding for two texts");
        assert_eq!(kind(&[1.0, f32::NAN], &[2, 2], &[1.0; 4]), ErrorKind::Engine);
    }
}
