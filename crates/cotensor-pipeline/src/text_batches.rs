//! Which texts run together.
//!
//! The memory of attention is proportional to the number of rows times the square of their length, so that bounds a run.

/// The most texts of one run of the graph.
const RUN_TEXTS_MAX: usize = 32;
/// The most rows times squared tokens of one run, padding included: 32 texts of 181 tokens, or one of 1,024. With 12 heads, each
/// attention matrix has 48 MiB. A longer text runs alone.
const RUN_SQUARES_MAX: usize = 1 << 20;
/// Texts of one run have similar numbers of tokens, because a CPU computes the padding, too: at most this much more than the
/// shortest, in percent.
const RUN_SPREAD_PERCENT: usize = 25;
/// In tokens.
const RUN_SPREAD_MIN: usize = 8;

/// How many of the first texts run together. `counts` are their tokens, in ascending order; `fixed` is the number of tokens that the
/// graph reads, if it is fixed. At least one text, unless there is none.
pub fn run_length(counts: &[usize], fixed: Option<usize>) -> usize {
    let Some(&shortest) = counts.first() else { return 0 };
    let longest = (shortest + shortest * RUN_SPREAD_PERCENT / 100).max(shortest + RUN_SPREAD_MIN);
    let fits = |&(before, &count): &(usize, &usize)| {
        let padded = fixed.unwrap_or(count);
        count <= longest && (before + 1) * padded * padded <= RUN_SQUARES_MAX
    };
    counts.iter().enumerate().take(RUN_TEXTS_MAX).take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_bounded_by_rows_times_squared_tokens() {
        for (tokens, texts) in [(16, 32), (181, 32), (256, 16), (512, 4), (1024, 1), (1025, 1), (8000, 1)] {
            assert_eq!(run_length(&vec![tokens; 100], None), texts, "{tokens} tokens");
        }
        assert_eq!(run_length(&[3, 3], None), 2);
        assert_eq!(run_length(&[], None), 0);
    }

    #[test]
    fn padding_of_a_fixed_length_counts() {
        assert_eq!(run_length(&[3; 100], Some(512)), 4);
        assert_eq!(run_length(&[3; 100], Some(4096)), 1);
    }

    #[test]
    fn texts_of_one_run_have_similar_lengths() {
        assert_eq!(run_length(&[4, 12, 13], None), 2);
        assert_eq!(run_length(&[100, 125, 126], None), 2);
    }

    #[test]
    fn every_text_is_in_one_run() {
        let mut counts: Vec<usize> = (0..10_000).map(|at: usize| at * 7919 % 8000 + 1).collect();
        counts.sort_unstable();
        let mut rest = counts.as_slice();
        while !rest.is_empty() {
            let (run, later) = rest.split_at(run_length(rest, None));
            let longest = run[run.len() - 1];
            assert!(run.len() == 1 || run.len() * longest * longest <= RUN_SQUARES_MAX, "{run:?}");
            rest = later;
        }
    }
}
