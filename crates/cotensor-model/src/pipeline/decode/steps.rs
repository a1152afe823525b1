use super::state::DecoderState;
use crate::engine::OutputAllocator;
use cotensor_core::Result;
use cotensor_preprocess::generation::Settings;

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
        let token = settings.next_token(&mut scores, prompt, &tokens)?;
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
