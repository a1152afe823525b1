//! The timestamp tokens of Whisper: which may come next, and how far a window of a long sound was transcribed.

use serde::Serialize;
use std::ops::Range;

/// The tokens that matter to timestamps. All tokens from `begin` on are timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Timestamps {
    /// The first timestamp: the beginning of the window.
    pub begin: i64,
    /// The token for a text without timestamps.
    pub none: i64,
    /// The token that ends a text.
    pub end: i64,
    /// The last timestamp with which a window may begin, in steps from `begin`.
    pub initial_max: Option<i64>,
}

/// A part of a window's text, between two timestamps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedSegment {
    /// The tokens, with the timestamps.
    pub tokens: Range<usize>,
    /// Beginning and end, in steps from the beginning of the window.
    pub steps: Range<i64>,
}

impl Timestamps {
    /// Excludes the tokens that cannot follow `tokens`: timestamps come in pairs, except before the end, and never
    /// decrease; the first token is a timestamp. If all timestamps together are likelier than any other token, a timestamp
    /// comes next. As `WhisperTimeStampLogitsProcessor` of transformers.
    pub fn filter(&self, scores: &mut [f32], tokens: &[i64]) {
        let count = scores.len() as i64;
        let mut exclude = |from: i64, to: i64| {
            let from = from.clamp(0, count);
            scores[from as usize..to.clamp(from, count) as usize].fill(f32::NEG_INFINITY);
        };
        let is_timestamp = |token: &i64| *token >= self.begin;
        exclude(self.none, self.none.saturating_add(1));
        let last = tokens.last().is_some_and(is_timestamp);
        let before_last = tokens.len() < 2 || is_timestamp(&tokens[tokens.len() - 2]);
        if last && before_last {
            exclude(self.begin, count);
        } else if last {
            exclude(0, self.end);
        }
        if let Some(&latest) = tokens.iter().rfind(|token| is_timestamp(token)) {
            // The second timestamp of a pair may be equal to the first one.
            exclude(self.begin, if last && !before_last { latest } else { latest + 1 });
        }
        if tokens.is_empty() {
            exclude(0, self.begin);
            if let Some(most) = self.initial_max {
                exclude(self.begin.saturating_add(most).saturating_add(1), count);
            }
        }
        let (texts, times) = scores.split_at_mut(self.begin.clamp(0, count) as usize);
        let highest = |scores: &[f32]| scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (text, time) = (highest(texts), highest(times));
        if time > f32::NEG_INFINITY {
            let sum: f64 = times.iter().map(|score| f64::from(score - time).exp()).sum();
            if f64::from(time) + sum.ln() > f64::from(text) {
                texts.fill(f32::NEG_INFINITY);
            }
        }
    }

    /// The segments of the `tokens` of a window of `steps` steps, and the step at which the next window begins; `None` for
    /// the end of this window. What follows the last pair of timestamps is not a segment: the speech is cut there, and
    /// the next window begins there. As `_retrieve_segment` of transformers' Whisper.
    pub fn segments(&self, tokens: &[i64], steps: i64) -> (Vec<TimedSegment>, Option<i64>) {
        let is_timestamp = |at: usize| tokens[at] >= self.begin;
        let step = |at: usize| tokens.get(at).map_or(0, |token| token - self.begin);
        let count = tokens.len();
        let mut cuts: Vec<usize> = (1..count).filter(|&at| is_timestamp(at - 1) && is_timestamp(at)).collect();
        let Some(&last) = cuts.last() else {
            let end = tokens.iter().rfind(|token| **token > self.begin).map_or(steps, |token| token - self.begin);
            return (vec![TimedSegment { tokens: 0..count, steps: 0..end }], None);
        };
        // No speech follows a single timestamp.
        let ends_in_one = is_timestamp(count - 1) && !is_timestamp(count - 2);
        if ends_in_one {
            cuts.push(count);
        } else if let Some(cut) = cuts.last_mut() {
            // The last segment has both timestamps.
            *cut += 1;
        }
        let (mut from, latest) = (0, cuts.len() - 1);
        let segments = cuts.iter().enumerate().map(|(index, &to)| {
            let tokens = std::mem::replace(&mut from, to)..to;
            let end = if index == latest && !ends_in_one { to.saturating_sub(2) } else { to - 1 };
            TimedSegment { steps: step(tokens.start)..step(end), tokens }
        });
        (segments.collect(), (!ends_in_one).then(|| step(last - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts 0 to 3, the end 4, no timestamps 5, timestamps 6 to 9.
    const TOKENS: Timestamps = Timestamps { begin: 6, none: 5, end: 4, initial_max: Some(1) };

    /// The tokens that are left after `tokens`. All texts have the score 0, all timestamps the score `time`.
    fn allowed(tokens: &[i64], time: f32) -> Vec<usize> {
        let mut scores = [0.0; 10];
        scores[6..].fill(time);
        TOKENS.filter(&mut scores, tokens);
        (0..10).filter(|&token| scores[token] > f32::NEG_INFINITY).collect()
    }

    #[test]
    fn timestamps_come_in_pairs_and_never_decrease() {
        assert_eq!(allowed(&[], -9.0), [6, 7], "a window begins with an early timestamp");
        assert_eq!(allowed(&[6], -9.0), [0, 1, 2, 3, 4], "a text follows");
        assert_eq!(allowed(&[6, 1], -9.0), [0, 1, 2, 3, 4, 7, 8, 9]);
        assert_eq!(allowed(&[6, 1, 8], -9.0), [4, 8, 9], "the second of a pair, or the end");
        assert_eq!(allowed(&[6, 1, 8, 8], -9.0), [0, 1, 2, 3, 4]);
        assert_eq!(allowed(&[6, 1, 8, 8, 2], -9.0), [0, 1, 2, 3, 4, 9]);
        // Three timestamps are together likelier than one text.
        assert_eq!(allowed(&[6, 1], -1.0), [7, 8, 9]);
        // Numbers of another vocabulary.
        let far = Timestamps { begin: 1 << 40, none: -3, end: i64::MAX, initial_max: Some(i64::MAX) };
        far.filter(&mut [0.0; 3], &[1, 2]);
    }

    #[test]
    fn window_is_transcribed_up_to_the_last_pair() {
        let segments = |tokens: &[i64]| {
            let (segments, next) = TOKENS.segments(tokens, 3);
            let segments = segments.into_iter().map(|each| (each.tokens, each.steps)).collect::<Vec<_>>();
            (segments, next)
        };
        assert_eq!(segments(&[6, 1, 2]), (vec![(0..3, 0..3)], None));
        assert_eq!(segments(&[6, 1, 8]), (vec![(0..3, 0..2)], None));
        assert_eq!(segments(&[6, 1, 8, 8, 2, 3]), (vec![(0..4, 0..2)], Some(2)));
        assert_eq!(segments(&[6, 1, 7, 7, 2, 8, 9, 3]), (vec![(0..3, 0..1), (3..7, 1..2)], Some(2)));
        assert_eq!(segments(&[6, 1, 8, 8, 2, 9]), (vec![(0..3, 0..2), (3..6, 2..3)], None));
        assert_eq!(segments(&[]), (vec![(0..0, 0..3)], None));
    }
}
