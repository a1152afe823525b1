//! A width and groups for each matrix.

use cotensor_quant::{GROUPS, Width};

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
    /// [`GROUP_MAX`], whose scales take fewer bits.
    pub(super) fn all(group: usize) -> Vec<Self> {
        let groups = GROUPS.into_iter().filter(|&found| found == group || (group..=GROUP_MAX).contains(&found));
        let groups: Vec<usize> = groups.collect();
        Width::ALL.into_iter().flat_map(|width| groups.iter().map(move |&group| Self { width, group })).collect()
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
        for group in GROUPS {
            let bits = |form: &Form| f64::from(form.width.bits()) + 16.0 / form.group as f64;
            let forms = Form::all(group);
            assert!(forms.iter().map(bits).is_sorted() && forms.iter().all(|form| form.group >= group), "{forms:?}");
        }
        let groups: Vec<usize> = Form::all(32).iter().take(4).map(|form| form.group).collect();
        assert_eq!(groups, [128, 64, 32, 128]);
        assert_eq!(Form::all(256).len(), Width::ALL.len());
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
