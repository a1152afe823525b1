use cotensor_core::{Error, Result};
use serde::Serialize;
use serde_json::Value;
use tokenizers::Tokenizer;

/// The most bytes into which the replacements of a tokenizer may turn one byte, and the most pieces of a template. Tokenizers
/// of models have at most about 10 of each.
const GROWTH_MAX: usize = 256;
/// The most bytes that a tokenizer may put before a text.
const PREPENDED_BYTES_MAX: usize = 4096;
/// The most ids of one special token of a template.
const IDS_MAX: usize = 256;

/// Refuses a tokenizer that turns a short text into a long one: the library has no limits.
///
/// # Errors
/// `Invalid`, with the field of tokenizer.json.
pub(super) fn check_growth(tokenizer: &Tokenizer) -> Result<()> {
    for (field, part) in [
        ("normalizer", tokenizer.get_normalizer().map(to_value)),
        ("post_processor", tokenizer.get_post_processor().map(to_value)),
        ("decoder", tokenizer.get_decoder().map(to_value)),
    ] {
        let Some(part) = part else { continue };
        let part = part.map_err(|error| error.in_field(field))?;
        let growth = growth(&part);
        if growth.factor > GROWTH_MAX || growth.prepended > PREPENDED_BYTES_MAX {
            return Err(Error::invalid("it makes a text too much longer").in_field(field));
        }
    }
    Ok(())
}

fn to_value(part: &impl Serialize) -> Result<Value> {
    serde_json::to_value(part).map_err(|error| Error::corrupt(error.to_string()))
}

#[derive(Clone, Copy)]
struct Growth {
    factor: usize,
    prepended: usize,
}

/// By how much a part, and the parts in it, lengthen a text.
fn growth(part: &Value) -> Growth {
    let length = |field: &str| part.get(field).and_then(Value::as_str).map_or(0, str::len);
    let count = |field: &str| part.get(field).and_then(Value::as_array).map_or(0, Vec::len);
    let mut own = Growth { factor: 1, prepended: 0 };
    match part.get("type").and_then(Value::as_str) {
        Some("Replace") => own.factor = length("content").max(1),
        Some("Prepend") => own.prepended = length("prepend"),
        Some("TemplateProcessing") => {
            own.factor = count("single").max(count("pair")).max(1);
            let tokens = part.get("special_tokens").and_then(Value::as_object).into_iter().flat_map(|map| map.values());
            if tokens.filter_map(|token| token.get("ids")?.as_array()).any(|ids| ids.len() > IDS_MAX) {
                own.factor = usize::MAX;
            }
        }
        _ => {}
    }
    ["normalizers", "processors", "decoders"]
        .iter()
        .filter_map(|list| part.get(list)?.as_array())
        .flatten()
        .map(growth)
        .fold(own, |whole, inner| Growth {
            factor: whole.factor.saturating_mul(inner.factor),
            prepended: whole.prepended.saturating_add(inner.prepended),
        })
}
