use super::scores::process;
use super::settings::Settings;
use super::state::DecoderState;
use crate::engine::OutputAllocator;
use cotensor_core::{Error, Result};

/// Called with each token as soon as it is chosen. An error stops the decoding.
pub type OnToken<'a> = dyn FnMut(i64) -> Result<()> + 'a;

/// The tokens of a decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The tokens, without the prompt and without the end token.
    pub tokens: Vec<i64>,
    /// The bytes of the cache that the engine copied.
    pub copied_bytes: u64,
}

/// Decodes from a state that has read `prompt`; `scores` are the scores of the first token.
///
/// # Errors
/// As [`DecoderState::read`]; `Corrupt` when no token is allowed; the errors of `on_token`.
pub fn decode(
    mut state: DecoderState<'_>,
    mut scores: Vec<f32>,
    prompt: &[i64],
    settings: &Settings,
    on_token: &mut OnToken<'_>,
    allocator: &dyn OutputAllocator,
) -> Result<Decoded> {
    let mut tokens = Vec::new();
    while tokens.len() < settings.max {
        process(&mut scores, settings, prompt, &tokens);
        let token = match &settings.sampling {
            None => likeliest(&scores),
            Some(sampling) => sampling.draw(&scores, tokens.len()),
        };
        let token = token.ok_or_else(|| Error::corrupt("no token is allowed"))? as i64;
        if settings.ends.contains(&token) {
            break;
        }
        tokens.push(token);
        on_token(token)?;
        if tokens.len() < settings.max {
            scores = state.read(&[token], allocator)?;
        }
    }
    let copied_bytes = state.copied_bytes();
    allocator.record_state_copy(copied_bytes);
    Ok(Decoded { tokens, copied_bytes })
}

/// The token with the highest score; of several, the one with the lowest id. `None` if every token is excluded.
pub(super) fn likeliest(scores: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (token, &score) in scores.iter().enumerate() {
        if score > best.map_or(f32::NEG_INFINITY, |(_, highest)| highest) {
            best = Some((token, score));
        }
    }
    best.map(|(token, _)| token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_of_equal_scores_is_chosen() {
        assert_eq!(likeliest(&[1.0, 3.0, 3.0]), Some(1));
        assert_eq!(likeliest(&[f32::NEG_INFINITY, -5.0]), Some(1));
        assert_eq!(likeliest(&[f32::NEG_INFINITY]), None);
        assert_eq!(likeliest(&[]), None);
    }
}
