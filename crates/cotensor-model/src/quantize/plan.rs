//! A width and groups for each matrix.

use cotensor_core::Result;
use cotensor_quant::{GROUPS, QuantSpec, Scheme, Width};

/// The most elements of a group that plans choose: onnxruntime multiplies codes of 2 bits in groups of 128 and fewer.
const GROUP_MAX: usize = 128;

/// How a matrix is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) width: Width,
    /// The most elements of a group.
    pub(super) group: usize,
}

impl Form {
    /// Those that a plan chooses from, with rising numbers of bits: all widths in groups of `group` elements and of the larger ones up to
    /// [`GROUP_MAX`], whose scales take fewer bits. A form that has as many bits as one of a larger width, or more, is none of them.
    ///
    /// # Errors
    /// As [`QuantSpec::new`].
    pub(super) fn all(group: usize, scheme: Scheme) -> Result<Vec<Self>> {
        let groups = GROUPS.into_iter().filter(|&found| found == group || (group..=GROUP_MAX).contains(&found));
        let groups: Vec<usize> = groups.collect();
        let mut found: Vec<(f64, Self)> = Vec::new();
        for width in Width::ALL {
            for &group in &groups {
                let bits = QuantSpec::new(width, group, scheme)?.bits_per_weight();
                found.retain(|(other, form)| form.width == width || *other < bits);
                found.push((bits, Self { width, group }));
            }
        }
        Ok(found.into_iter().map(|(_, form)| form).collect())
    }
}

/// What a form gives for a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    /// Bits of all its elements, with scales and offsets.
    pub(super) bits: f64,
    /// How much the outputs of the graph lose.
    pub(super) error: f64,
}

/// How much of the squared error of each matrix reaches the outputs, by what was measured: `None` for a matrix of which nothing was, which
/// counts as the middle one of the others. One whose outputs are not numbers counts as the largest. If nothing was measured, all of each.
pub(super) fn shares(measured: &[Option<f64>]) -> Vec<f64> {
    let mut known: Vec<f64> = measured.iter().flatten().copied().filter(|share| share.is_finite()).collect();
    known.sort_by(f64::total_cmp);
    let (middle, largest) = (known.get(known.len() / 2).copied().unwrap_or(1.0), known.last().copied().unwrap_or(1.0));
    let of = |share: &Option<f64>| match *share {
        Some(share) if share.is_finite() => share,
        Some(_) => largest,
        None => middle,
    };
    measured.iter().map(of).collect()
}

/// Chooses one of each matrix's choices, which have rising numbers of bits, so that all have at most `bits_max` bits: first the smallest of
/// each; then, while there is room, the step with the largest fall of the error for each further bit. A step may pass choices by. If the
/// smallest have more, they are the result.
pub(super) fn choose(matrices: &[Vec<Choice>], bits_max: f64) -> Vec<usize> {
    let mut chosen = vec![0; matrices.len()];
    let mut room =
        bits_max - matrices.iter().filter_map(|choices| choices.first()).map(|choice| choice.bits).sum::<f64>();
    loop {
        let mut best: Option<(f64, usize, usize)> = None;
        for (matrix, choices) in matrices.iter().enumerate() {
            let Some(now) = choices.get(chosen[matrix]) else { continue };
            for (step, choice) in choices.iter().enumerate().skip(chosen[matrix] + 1) {
                let (more, fall) = (choice.bits - now.bits, now.error - choice.error);
                let is_better = best.is_none_or(|(gain, ..)| fall / more > gain);
                if more <= room && fall > 0.0 && is_better {
                    best = Some((fall / more, matrix, step));
                }
            }
        }
        let Some((_, matrix, step)) = best else { return chosen };
        room -= matrices[matrix][step].bits - matrices[matrix][chosen[matrix]].bits;
        chosen[matrix] = step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(elements: f64, errors: [f64; 4]) -> Vec<Choice> {
        [2.0, 3.0, 4.0, 8.0].iter().zip(errors).map(|(bits, error)| Choice { bits: bits * elements, error }).collect()
    }

    fn bits(matrices: &[Vec<Choice>], chosen: &[usize]) -> f64 {
        matrices.iter().zip(chosen).map(|(choices, at)| choices[*at].bits).sum()
    }

    #[test]
    fn forms_have_rising_numbers_of_bits() {
        for (group, scheme) in GROUPS.into_iter().flat_map(|group| [(group, Scheme::Search), (group, Scheme::Affine)]) {
            let forms = Form::all(group, scheme).unwrap();
            assert!(forms.iter().all(|form| form.group >= group), "{forms:?}");
            // Also for a matrix whose columns have no larger groups.
            for columns in GROUPS {
                let spec = |form: &Form| QuantSpec::new(form.width, form.group.min(columns), scheme).unwrap();
                assert!(forms.iter().map(|form| spec(form).bits_per_weight()).is_sorted(), "{columns} {forms:?}");
            }
        }
        let forms = |group, scheme| {
            let forms = Form::all(group, scheme).unwrap();
            forms.iter().map(|form| (form.width.bits(), form.group)).collect::<Vec<_>>()
        };
        assert_eq!(forms(32, Scheme::Search)[..4], [(2, 128), (2, 64), (2, 32), (3, 128)]);
        // 2 bits in groups of 16 would have 4 bits for a weight.
        assert_eq!(forms(16, Scheme::Affine)[..6], [(2, 128), (2, 64), (2, 32), (3, 128), (3, 64), (3, 32)]);
        assert_eq!(forms(256, Scheme::Affine).len(), Width::ALL.len());
    }

    #[test]
    fn matrices_that_were_not_measured_count_as_others() {
        assert_eq!(shares(&[None, None]), [1.0, 1.0]);
        assert_eq!(shares(&[Some(f64::NAN), None]), [1.0, 1.0]);
        let measured = [Some(1e-4), None, Some(3e-4), Some(f64::INFINITY), Some(2e-4), Some(f64::NAN)];
        assert_eq!(shares(&measured), [1e-4, 2e-4, 3e-4, 3e-4, 2e-4, 3e-4]);
    }

    #[test]
    fn bits_go_where_they_lessen_the_error_most() {
        let matrices = [choices(100.0, [0.2, 0.05, 0.01, 0.0]), choices(100.0, [0.9, 0.4, 0.1, 0.0])];
        assert_eq!(choose(&matrices, 400.0), [0, 0]);
        assert_eq!(choose(&matrices, 500.0), [0, 1]);
        assert_eq!(choose(&matrices, 700.0), [1, 2]);
        assert_eq!(choose(&matrices, 1e9), [3, 3]);
        // Less than the smallest choices.
        assert_eq!(choose(&matrices, 10.0), [0, 0]);
        // A step that gains nothing alone is passed by.
        assert_eq!(choose(&[choices(10.0, [0.5, 0.5, 0.1, 0.0])], 45.0), [2]);
        assert_eq!(choose(&[], 45.0), [0; 0]);
    }

    #[test]
    fn the_room_is_never_exceeded_and_nothing_that_fits_is_left() {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / (1u64 << 31) as f64
        };
        for _ in 0..2000 {
            let matrices: Vec<_> = (0..1 + (random() * 6.0) as usize)
                .map(|_| {
                    let mut errors = [random(), random(), random(), random()];
                    errors.sort_by(|one, other| other.total_cmp(one));
                    choices(1.0 + random() * 100.0, errors)
                })
                .collect();
            let least = bits(&matrices, &vec![0; matrices.len()]);
            let most = least * (1.0 + 3.0 * random());
            let chosen = choose(&matrices, most);
            let used = bits(&matrices, &chosen);
            assert!(used <= most + 1e-6, "{used} of {most}");
            for (choices, at) in matrices.iter().zip(&chosen) {
                let next = choices.get(at + 1);
                assert!(next.is_none_or(|next| used + next.bits - choices[*at].bits > most - 1e-6));
            }
        }
    }
}
