//! The inputs of the measured graphs. Each index gives other values, so that no result is found in a store.

use cotensor::model::tensor::{Array, Value};

/// The output of both encoders.
pub(crate) const OUTPUT: &str = "last_hidden_state";

/// Ids, mask and types of 128 tokens.
pub(crate) fn bert(index: i64) -> Vec<(&'static str, Value)> {
    let tokens = |value: &dyn Fn(i64) -> i64| Value::from(Array::i64([1, 128], (0..128).map(value).collect()).unwrap());
    vec![
        ("input_ids", tokens(&|at| 1000 + (index * 131 + at * 37) % 20_000)),
        ("attention_mask", tokens(&|_| 1)),
        ("token_type_ids", tokens(&|_| 0)),
    ]
}

/// The pixels of an image of 224 by 224.
pub(crate) fn vit(index: i64) -> Vec<(&'static str, Value)> {
    let pixels = (0..3 * 224 * 224).map(|at| ((at * 7 + index * 1009) % 255) as f32 / 127.5 - 1.0);
    vec![("pixel_values", Value::from(Array::f32([1, 3, 224, 224], pixels.collect()).unwrap()))]
}
