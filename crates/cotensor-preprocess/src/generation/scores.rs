//! The changes of the scores before a token is chosen, in the order of transformers' logits processors.

use super::settings::Settings;
use cotensor_core::{Error, Result};
use std::collections::BTreeSet;

/// Changes the scores of the next token. `prompt` and `tokens` are the tokens before it.
pub fn process(scores: &mut [f32], settings: &Settings, prompt: &[i64], tokens: &[i64]) {
    let step = tokens.len();
    let before = || prompt.iter().chain(tokens).copied();
    if settings.repetition_penalty != 1.0 {
        for token in before().collect::<BTreeSet<_>>() {
            if let Some(score) = usize::try_from(token).ok().and_then(|token| scores.get_mut(token)) {
                let penalty = settings.repetition_penalty;
                *score = if *score < 0.0 { *score * penalty } else { *score / penalty };
            }
        }
    }
    if settings.no_repeat_ngram > 0 {
        let all: Vec<i64> = before().collect();
        exclude(scores, &repeating(&all, settings.no_repeat_ngram));
    }
    if step < settings.min {
        exclude(scores, &settings.ends);
    }
    if let (Some(first), 0, 1) = (settings.forced_first, step, prompt.len()) {
        force(scores, &[first]);
    }
    if !settings.forced_last.is_empty() && step + 1 == settings.max {
        force(scores, &settings.forced_last);
    }
    exclude(scores, &settings.suppressed);
    // The forced token is not counted as the first one.
    let first = usize::from(settings.forced_first.is_some() && prompt.len() == 1);
    if step == first {
        exclude(scores, &settings.suppressed_first);
    }
    if let Some(timestamps) = &settings.timestamps {
        timestamps.filter(scores, tokens);
    }
    if let Some(sampling) = &settings.sampling {
        sampling.filter(scores);
    }
}

impl Settings {
    /// The next token after `prompt` and `tokens`, given the scores of all tokens, which it changes.
    ///
    /// # Errors
    /// `Corrupt` when no token is allowed.
    pub fn next_token(&self, scores: &mut [f32], prompt: &[i64], tokens: &[i64]) -> Result<i64> {
        process(scores, self, prompt, tokens);
        let token = match &self.sampling {
            None => likeliest(scores),
            Some(sampling) => sampling.draw(scores, tokens.len()),
        };
        Ok(token.ok_or_else(|| Error::corrupt("no token is allowed"))? as i64)
    }
}

/// The token with the highest score; of several, the one with the lowest id. `None` if every token is excluded.
fn likeliest(scores: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (token, &score) in scores.iter().enumerate() {
        if score > best.map_or(f32::NEG_INFINITY, |(_, highest)| highest) {
            best = Some((token, score));
        }
    }
    best.map(|(token, _)| token)
}

/// The tokens that would complete a sequence of `length` tokens that occurred before.
fn repeating(tokens: &[i64], length: usize) -> Vec<i64> {
    let Some(start) = (tokens.len() + 1).checked_sub(length) else { return Vec::new() };
    let current = &tokens[start..];
    tokens.windows(length).filter(|window| window[..length - 1] == *current).map(|window| window[length - 1]).collect()
}

fn exclude(scores: &mut [f32], tokens: &[i64]) {
    for &token in tokens {
        if let Some(score) = usize::try_from(token).ok().and_then(|token| scores.get_mut(token)) {
            *score = f32::NEG_INFINITY;
        }
    }
}

fn force(scores: &mut [f32], tokens: &[i64]) {
    scores.fill(f32::NEG_INFINITY);
    for &token in tokens {
        if let Some(score) = usize::try_from(token).ok().and_then(|token| scores.get_mut(token)) {
            *score = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_sequences_are_found() {
        assert_eq!(repeating(&[1, 2, 3, 1, 2], 3), [3]);
        assert_eq!(repeating(&[1, 2, 3, 1, 2], 2), [3]);
        assert_eq!(repeating(&[4, 4], 1), [4, 4]);
        assert!(repeating(&[1], 3).is_empty() && repeating(&[1, 2, 3], 3).is_empty());
    }

    #[test]
    fn tokens_beyond_the_vocabulary_are_ignored() {
        let settings =
            Settings { repetition_penalty: 2.0, suppressed: vec![9, -1], forced_last: vec![7], ..Settings::greedy(3) };
        let mut scores = [1.0, -1.0];
        process(&mut scores, &settings, &[0, 1, 5], &[]);
        assert_eq!(scores, [0.5, -2.0]);
        process(&mut scores, &settings, &[0], &[1, 1]);
        assert_eq!(scores, [f32::NEG_INFINITY; 2]);
    }

    #[test]
    fn first_of_equal_scores_is_chosen() {
        assert_eq!(likeliest(&[1.0, 3.0, 3.0]), Some(1));
        assert_eq!(likeliest(&[f32::NEG_INFINITY, -5.0]), Some(1));
        assert_eq!(likeliest(&[f32::NEG_INFINITY]), None);
        assert_eq!(likeliest(&[]), None);
    }
}
