//! A text that a decoder writes for a user.

use super::decoding::{Decoding, IsText, TextPieces, Writing};
use super::host::{DecoderTask, Host};
use super::vocabulary::check_vocabulary;
use cotensor_core::Result;
use cotensor_preprocess::generation::GenerationConfig;
use std::cell::RefCell;
use std::rc::Rc;

/// The tokens that the decoder writes after `prompt`, without the end token. The user gets the text of the tokens for which
/// `is_text` is true, piece by piece; it continues that of the prompt, or is a text of its own.
///
/// # Errors
/// As [`check_vocabulary`] and [`Decoding::new`]; the errors of the host.
pub(super) async fn write<H: Host>(
    host: &mut H,
    task: &DecoderTask<'_>,
    config: &GenerationConfig,
    prompt: Vec<i64>,
    continues: bool,
    is_text: IsText,
) -> Result<Vec<i64>> {
    check_vocabulary(&task.model, prompt.iter().copied())?;
    let decoding = Decoding::new(task.user, config, &task.model, prompt.len())?;
    decoding.notices.iter().for_each(|notice| host.notice(notice.clone()));
    let before = if continues { prompt.as_slice() } else { &[] };
    let pieces = RefCell::new(Some(TextPieces::new(host.tokenizer()?, before, is_text)));
    let writing = Rc::new(Writing { decoding, prompt, pieces });
    let (tokens, is_decoded) = host.decode(&writing).await?;
    // Another user has decoded: the text comes at once.
    let known = if is_decoded { &[] } else { tokens.as_slice() };
    for &token in known {
        if let Some(piece) = writing.piece(token)? {
            host.give(&piece).await?;
        }
    }
    let rest = writing.pieces.take().map_or(Ok(None), TextPieces::finish)?;
    if let Some(rest) = rest {
        host.give(&rest).await?;
    }
    if let Some(notice) = writing.decoding.cut_notice(tokens.len()) {
        host.notice(notice);
    }
    Ok(tokens)
}
