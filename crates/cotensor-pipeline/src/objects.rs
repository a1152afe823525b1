//! Object detection: the boxes of a model's queries become objects.

use super::answer::Object;
use super::numbers::{best, softmax};
use cotensor_core::{Error, Result};

/// The name of the output with the boxes: `[1, queries, 4]`, center and size relative to the image.
pub(crate) const BOXES: &str = "pred_boxes";

/// The threshold of the score when the user sets none: the default of transformers.
pub(crate) const DEFAULT_THRESHOLD: f32 = 0.5;

/// The objects whose score is above `threshold`, as `post_process_object_detection` in transformers gives them. `logits`
/// has a number for each label and one for "no object" per query, `boxes` four numbers. `size` is the width and the
/// height of the image in pixels.
///
/// # Errors
/// `Unsupported` when the outputs have other sizes.
pub(crate) fn detected(
    logits: &[f32],
    boxes: &[f32],
    labels: &[String],
    size: (u32, u32),
    threshold: f32,
) -> Result<Vec<Object>> {
    let classes = labels.len() + 1;
    let queries = logits.len() / classes;
    if labels.is_empty() || logits.len() != queries * classes || boxes.len() != queries * 4 {
        let message = format!(
            "{} logits of {classes} classes and {} numbers of boxes; each query has one row of both",
            logits.len(),
            boxes.len()
        );
        return Err(Error::unsupported(message).in_field(BOXES));
    }
    let (width, height) = (size.0 as f32, size.1 as f32);
    let mut objects = Vec::new();
    for (row, center) in logits.chunks_exact(classes).zip(boxes.as_chunks::<4>().0) {
        let (label, _) = best(&row[..classes - 1])?;
        let score = softmax(row)[label];
        if score > threshold {
            let &[x, y, w, h] = center;
            let bounds = [x - 0.5 * w, y - 0.5 * h, x + 0.5 * w, y + 0.5 * h];
            let scale = [width, height, width, height];
            let bounds = std::array::from_fn(|side| bounds[side] * scale[side]);
            objects.push(Object { label: labels[label].clone(), score, bounds });
        }
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn box_is_in_pixels_and_no_object_is_left_out() {
        let labels = ["cat".to_owned(), "dog".to_owned()];
        let logits = [0.0, 3.0, 0.0, 0.0, 0.0, 9.0];
        let boxes = [0.5, 0.5, 0.2, 0.4, 0.5, 0.5, 1.0, 1.0];
        let [dog] = &*detected(&logits, &boxes, &labels, (200, 100), 0.5).unwrap() else { panic!("one object") };
        let close = |a: f32, b: f32| (a - b).abs() < 1e-4;
        assert!(dog.label == "dog" && close(dog.score, 0.909443), "{dog:?}");
        assert!(dog.bounds.iter().zip([80.0, 30.0, 120.0, 70.0]).all(|(&a, b)| close(a, b)), "{dog:?}");
        assert_eq!(detected(&logits, &boxes, &labels, (200, 100), 0.0).unwrap().len(), 2);
        assert!(detected(&logits[1..], &boxes, &labels, (1, 1), 0.5).is_err());
        assert!(detected(&logits, &boxes[1..], &labels, (1, 1), 0.5).is_err());
        assert!(detected(&[1.0], &boxes[..4], &[], (1, 1), 0.5).is_err());
    }
}
