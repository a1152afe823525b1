//! Numbers that graphs give: probabilities, and the shapes that tasks read.

use cotensor_core::{Error, ErrorKind, Result};

/// The index of the highest logit and its softmax probability.
///
/// # Errors
/// `Corrupt` without logits.
pub fn best(logits: &[f32]) -> Result<(usize, f32)> {
    let probabilities = softmax(logits);
    probabilities
        .iter()
        .copied()
        .enumerate()
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .ok_or_else(|| Error::corrupt("the head has no labels"))
}

/// The index of the highest number; of several, the lowest.
pub fn argmax(values: &[f32]) -> usize {
    (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b]).then(b.cmp(&a))).unwrap_or(0)
}

/// Sigmoid of each element.
pub fn sigmoid(logits: &[f32]) -> Vec<f32> {
    logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect()
}

/// Softmax of one row.
pub fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials: Vec<f32> = logits.iter().map(|logit| (logit - max).exp()).collect();
    let sum: f32 = exponentials.iter().sum();
    exponentials.iter().map(|value| value / sum).collect()
}

/// The width of an output for one input: `[1, width]`, or `[1, rows, width]` if `rows` is set. The inner `None` of `rows`
/// accepts any number of rows.
///
/// # Errors
/// `Unsupported` for an output of another shape: it has another meaning.
pub fn row_width(shape: &[usize], task: &str, rows: Option<Option<usize>>) -> Result<usize> {
    let width = match (shape, rows) {
        (&[1, width], None) => Some(width),
        (&[1, found, width], Some(rows)) if rows.is_none_or(|rows| rows == found) => Some(width),
        _ => None,
    };
    width.filter(|&width| width > 0).ok_or_else(|| {
        let wanted = match rows {
            None => "[1, N], one row for the whole input".to_owned(),
            Some(None) => "[1, rows, N]".to_owned(),
            Some(Some(rows)) => format!("[1, {rows}, N], one row for each token"),
        };
        Error::unsupported(format!("{task} reads an output of shape {wanted}; the model gives {shape:?}"))
    })
}

/// Refuses NaN and infinity.
///
/// # Errors
/// `Engine`; the message has the position of the element.
pub fn check_numbers(values: &[f32]) -> Result<()> {
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

    #[test]
    fn outputs_that_are_not_numbers_are_refused_with_their_element() {
        for wrong in [f32::NAN, f32::INFINITY] {
            let error = check_numbers(&[0.0, wrong, 1.0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Engine, "{error}");
            assert!(error.to_string().contains("element 1 of 3"), "{error}");
        }
        // Masked logits are minus infinity.
        assert!(check_numbers(&[0.0, f32::NEG_INFINITY, 1.0]).is_ok());
    }

    #[test]
    fn output_of_another_shape_is_refused() {
        assert_eq!(row_width(&[1, 3], "t", None).unwrap(), 3);
        assert_eq!(row_width(&[1, 2, 3], "t", Some(Some(2))).unwrap(), 3);
        for (shape, rows) in
            [(&[1, 2, 3][..], None), (&[2, 3], None), (&[1, 3], Some(None)), (&[1, 2, 3], Some(Some(4)))]
        {
            assert_eq!(row_width(shape, "t", rows).unwrap_err().kind(), ErrorKind::Unsupported, "{shape:?}");
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
