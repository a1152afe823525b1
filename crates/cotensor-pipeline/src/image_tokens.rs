//! Images in a text: the decoder reads their features in place of the embeddings of a token that stands for an image.

use super::texts::config_file;
use cotensor_core::{Error, Result};
use cotensor_preprocess::TextProcessor;
use cotensor_preprocess::family::ModelConfig;

/// The token that stands for an image, by config.json. `None` for a family whose texts have no images.
///
/// # Errors
/// `Invalid` without a token id.
pub fn image_token(config: &ModelConfig<'_>) -> Result<Option<i64>> {
    let Some(images) = config.family.decoder.as_ref().and_then(|decoder| decoder.images.as_ref()) else {
        return Ok(None);
    };
    let token = images.token.iter().find_map(|field| config.at(field)?.as_i64());
    token.map(Some).ok_or_else(|| {
        let field = images.token.first().map_or("", String::as_str);
        Error::invalid("a token id is required").in_file(config_file(config)).in_field(field)
    })
}

/// The text of a token.
pub(super) fn token_text(tokenizer: &TextProcessor, token: i64) -> String {
    tokenizer.token(token).unwrap_or_else(|| token.to_string())
}

/// The tokens of a prompt, with as many image tokens as the image's features have rows. `features` is the shape of the
/// features.
///
/// # Errors
/// `Invalid` for a text with another number of images than one; `Corrupt` for features of another shape.
pub(super) fn expanded(ids: &[i64], token: i64, features: &[usize], tokenizer: &TextProcessor) -> Result<Vec<i64>> {
    let &[1, rows, _] = features else {
        return Err(Error::corrupt(format!("features of shape {features:?}; [1, rows, width] is required")));
    };
    let count = ids.iter().filter(|&&id| id == token).count();
    // A text of another program can have the token once for each row.
    if count == rows {
        return Ok(ids.to_vec());
    }
    if count != 1 {
        let name = token_text(tokenizer, token);
        return Err(Error::invalid(format!("the text has {count} tokens {name}; one is required, where the image is")));
    }
    let of_token = |&id: &i64| std::iter::repeat_n(id, if id == token { rows } else { 1 });
    Ok(ids.iter().flat_map(of_token).collect())
}

/// The embeddings of tokens, row by row: those of words from `of_words`, those of the image token from `of_image`. Rows have
/// `width` elements.
pub(super) fn merged(ids: &[i64], token: i64, of_words: &[f32], of_image: &[f32], width: usize) -> Vec<f32> {
    let (mut of_words, mut of_image) = (of_words.chunks_exact(width.max(1)), of_image.chunks_exact(width.max(1)));
    let mut all = Vec::with_capacity(ids.len() * width);
    for &id in ids {
        let row = if id == token { of_image.next() } else { of_words.next() };
        all.extend_from_slice(row.unwrap_or_default());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_replace_the_rows_of_the_image_token() {
        assert_eq!(merged(&[1, 9, 9, 2], 9, &[1.0, 2.0], &[8.0, 7.0], 1), [1.0, 8.0, 7.0, 2.0]);
    }
}
