use serde::Serialize;

/// How a token is drawn, as transformers' generation parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sampling {
    /// The scores are divided by it.
    pub temperature: f32,
    /// The number of most likely tokens among which one is drawn; 0 for all.
    pub top_k: usize,
    /// Among the most likely tokens whose probabilities sum to this; 1 for all.
    pub top_p: f32,
    /// Among tokens with at least this share of the highest probability; 0 for all.
    pub min_p: f32,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for Sampling {
    /// transformers' defaults, and seed 0.
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 50, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

impl Sampling {
    /// Applies temperature, top-k, top-p and min-p, in this order, as transformers does: an excluded token gets negative
    /// infinity.
    pub fn filter(&self, scores: &mut [f32]) {
        if self.temperature != 1.0 {
            scores.iter_mut().for_each(|score| *score /= self.temperature);
        }
        if self.top_k > 0 && self.top_k < scores.len() {
            let mut sorted = scores.to_vec();
            let (_, least, _) = sorted.select_nth_unstable_by(self.top_k - 1, |a, b| b.total_cmp(a));
            let least = *least;
            exclude(scores, |_, score| score < least);
        }
        if self.top_p < 1.0 {
            let probabilities = probabilities(scores);
            let mut ascending: Vec<usize> = (0..scores.len()).collect();
            ascending.sort_by(|&a, &b| scores[a].total_cmp(&scores[b]));
            let mut sum = 0.0;
            let mut excluded = vec![false; scores.len()];
            // The most likely token always stays.
            for &token in &ascending[..ascending.len().saturating_sub(1)] {
                sum += probabilities[token];
                excluded[token] = sum <= 1.0 - f64::from(self.top_p);
            }
            exclude(scores, |token, _| excluded[token]);
        }
        if self.min_p > 0.0 {
            let probabilities = probabilities(scores);
            let highest = probabilities.iter().copied().fold(0.0, f64::max);
            exclude(scores, |token, _| probabilities[token] < f64::from(self.min_p) * highest);
        }
    }

    /// Draws a token by the softmax of `scores`. `step` counts the tokens before it: the same seed, step and scores give
    /// the same token. `None` if every token is excluded.
    pub fn draw(&self, scores: &[f32], step: usize) -> Option<usize> {
        let probabilities = probabilities(scores);
        let mut remaining = uniform(self.seed, step);
        let mut last = None;
        for (token, probability) in probabilities.into_iter().enumerate().filter(|(_, probability)| *probability > 0.0)
        {
            last = Some(token);
            if remaining < probability {
                break;
            }
            remaining -= probability;
        }
        last
    }
}

fn exclude(scores: &mut [f32], excluded: impl Fn(usize, f32) -> bool) {
    for (token, score) in scores.iter_mut().enumerate() {
        if excluded(token, *score) {
            *score = f32::NEG_INFINITY;
        }
    }
}

/// The softmax of `scores`; zeros if all are negative infinity.
fn probabilities(scores: &[f32]) -> Vec<f64> {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if highest == f32::NEG_INFINITY {
        return vec![0.0; scores.len()];
    }
    let mut values: Vec<f64> = scores.iter().map(|&score| f64::from(score - highest).exp()).collect();
    let sum: f64 = values.iter().sum();
    values.iter_mut().for_each(|value| *value /= sum);
    values
}

/// The random number of a step, at least 0 and below 1: output number `step` of SplitMix64 with state `seed`.
fn uniform(seed: u64, step: usize) -> f64 {
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut z = seed.wrapping_add(GAMMA.wrapping_mul((step as u64).wrapping_add(1)));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    (z >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_are_those_of_splitmix64() {
        // The first outputs of the reference implementation with seed 1234567.
        let reference = [6_457_827_717_110_365_317u64, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        for (step, expected) in reference.into_iter().enumerate() {
            assert_eq!(uniform(1_234_567, step), (expected >> 11) as f64 / (1u64 << 53) as f64);
        }
    }

    #[test]
    fn draws_follow_the_distribution_and_the_seed() {
        let scores = [0.5f32.ln(), f32::NEG_INFINITY, 0.3f32.ln(), 0.2f32.ln()];
        let sampling = |seed| Sampling { seed, ..Sampling::default() };
        let mut counts = [0usize; 4];
        for step in 0..20_000 {
            counts[sampling(3).draw(&scores, step).unwrap()] += 1;
        }
        // Six standard deviations of a count are below 430.
        for (count, expected) in counts.into_iter().zip([10_000usize, 0, 6_000, 4_000]) {
            assert!(count.abs_diff(expected) < 430, "{counts:?}");
        }
        let tokens = |seed| (0..32).map(|step| sampling(seed).draw(&scores, step)).collect::<Vec<_>>();
        assert_eq!(tokens(7), tokens(7));
        assert_ne!(tokens(7), tokens(8));
        assert_eq!(sampling(0).draw(&[f32::NEG_INFINITY; 3], 0), None);
    }

    #[test]
    fn most_likely_token_survives_every_filter() {
        let strict = Sampling { temperature: 0.01, top_k: 1, top_p: 1e-6, min_p: 1.0, seed: 0 };
        let mut scores = [1.0, 3.0, 2.0];
        strict.filter(&mut scores);
        assert_eq!(strict.draw(&scores, 0), Some(1));
    }
}
