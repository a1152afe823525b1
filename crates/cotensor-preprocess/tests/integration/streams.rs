//! Text that arrives token by token.

use cotensor_preprocess::{TextProcessor, TextStream};
use std::collections::HashMap;

/// A tokenizer with this decoder, whose tokens are those of `vocabulary`.
fn tokenizer(decoder: &str, vocabulary: &[&str]) -> TextProcessor {
    let tokens: Vec<String> = vocabulary.iter().enumerate().map(|(id, token)| format!("\"{token}\": {id}")).collect();
    let (tokens, unknown) = (tokens.join(", "), vocabulary[0]);
    let model = format!(r#"{{"type": "WordLevel", "vocab": {{{tokens}}}, "unk_token": "{unknown}"}}"#);
    let text = format!(r#"{{"model": {model}, "added_tokens": [], "decoder": {decoder}}}"#);
    TextProcessor::open(&HashMap::from([("tokenizer.json".to_owned(), text.into_bytes())])).unwrap()
}

/// The pieces of `ids` after `before`.
fn pieces(tokenizer: &TextProcessor, before: &[u32], ids: &[u32]) -> Vec<String> {
    let mut stream = TextStream::new(tokenizer, before.to_vec());
    let mut pieces: Vec<String> = ids.iter().map(|&id| stream.step(id).unwrap()).collect();
    pieces.push(stream.finish().unwrap());
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

#[test]
fn text_goes_on_after_bytes_that_change_the_text_before_them() {
    let decoder = r#"{"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}"#;
    let tokenizer = tokenizer(decoder, &["<0x0A>", "<0xF0>", "▁x", "▁y"]);
    // A line feed and the first byte of a character are no characters together.
    assert_eq!(pieces(&tokenizer, &[0], &[1, 2, 3]), ["\u{fffd} x", " y"]);
    assert_eq!(pieces(&tokenizer, &[2, 0], &[2, 3]), [" x", " y"]);
}

#[test]
fn text_goes_on_after_the_first_half_of_a_character() {
    let tokenizer =
        tokenizer(r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false}"#, &["aÃ", "©", "b", "c"]);
    assert_eq!(pieces(&tokenizer, &[0], &[1, 2, 3]).concat(), "\u{fffd}bc");
}

// A browser has no unwinding: a panic ends the module there.
#[cfg(not(target_arch = "wasm32"))]
#[test]
fn decoder_that_panics_is_an_error() {
    let decoder = r#"{"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "_"}, "content": " "}, {"type": "Strip", "content": " ", "start": 1, "stop": 1}]}"#;
    let tokenizer = tokenizer(decoder, &["a", "_"]);
    assert_eq!(tokenizer.decode(&[]).unwrap(), "");
    let error = tokenizer.decode(&[1]).unwrap_err();
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
}
