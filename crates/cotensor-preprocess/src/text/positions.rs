//! The most tokens that the positions of a model allow.

use serde_json::Value;

/// The most tokens of a text for an encoder of BERT's family with this config.json; `None` where its positions set no limit.
/// RoBERTa and MPNet count positions from the one after the padding token's on, so that 514 positions hold 512 tokens.
pub fn position_limit(config: &Value) -> Option<usize> {
    let number = |name: &str| config.get(name).and_then(Value::as_u64);
    let skipped = match config.get("model_type").and_then(Value::as_str) {
        Some("roberta" | "xlm-roberta") => number("pad_token_id").unwrap_or(1).checked_add(1)?,
        Some("mpnet") => 2,
        // Relative positions only.
        Some("deberta-v2") if config.get("position_biased_input") == Some(&Value::Bool(false)) => return None,
        _ => 0,
    };
    let limit = usize::try_from(scaled_positions(config, "max_position_embeddings")?.checked_sub(skipped)?).ok()?;
    (limit > 0).then_some(limit)
}

/// Scalings of rotary positions that multiply the number of positions in the same object. Other types (`llama3`, `longrope`)
/// state the extended number there.
const MULTIPLYING: [&str; 3] = ["linear", "dynamic", "yarn"];

/// The number of positions in `field` of this object, with the scaling of rotary positions beside it, as vLLM computes it: the
/// factor times `original_max_position_embeddings`, or times the field.
pub(crate) fn scaled_positions(config: &Value, field: &str) -> Option<u64> {
    let plain = config.get(field)?.as_u64()?;
    // Gemma 3 states the extended number.
    let is_gemma = config.get("model_type").and_then(Value::as_str).is_some_and(|name| name.starts_with("gemma3"));
    let scaling = ["rope_scaling", "rope_parameters"].iter().find_map(|name| config.get(*name)?.as_object());
    let Some(scaling) = scaling.filter(|_| !is_gemma) else { return Some(plain) };
    let name = ["rope_type", "type"].iter().find_map(|name| scaling.get(*name)?.as_str());
    if !name.is_some_and(|name| MULTIPLYING.contains(&name)) {
        return Some(plain);
    }
    let original = scaling.get("original_max_position_embeddings").and_then(Value::as_u64).unwrap_or(plain);
    let factor = scaling.get("factor").and_then(Value::as_f64).filter(|&factor| factor >= 1.0).unwrap_or(1.0);
    Some((original as f64 * factor) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn scaled(positions: u64, scaling: Value) -> Value {
        json!({"model_type": "qwen3", "max_position_embeddings": positions, "rope_scaling": scaling})
    }

    #[test]
    fn limit_is_that_of_the_positions_which_the_model_counts() {
        for (expected, config) in [
            (Some(512), json!({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0})),
            (Some(512), json!({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1})),
            (Some(8192), json!({"model_type": "xlm-roberta", "max_position_embeddings": 8194})),
            (Some(512), json!({"model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 7})),
            (Some(512), json!({"model_type": "deberta-v2", "max_position_embeddings": 512})),
            (None, json!({"model_type": "deberta-v2", "max_position_embeddings": 512, "position_biased_input": false})),
            (None, json!({"model_type": "roberta", "max_position_embeddings": 2})),
            (None, json!({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": u64::MAX})),
            (None, json!({"max_position_embeddings": -1})),
            // Qwen3 with its 40960 positions was trained on 32768, Qwen2 on those of the field.
            (
                Some(131_072),
                scaled(40_960, json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768})),
            ),
            (Some(131_072), scaled(32_768, json!({"type": "yarn", "factor": 4}))),
            (Some(8192), scaled(2048, json!({"type": "linear", "factor": 4.0}))),
            (Some(8192), scaled(4096, json!({"rope_type": "dynamic", "factor": 2.0}))),
            (
                Some(8192),
                json!({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
            ),
            (
                Some(131_072),
                scaled(
                    131_072,
                    json!({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}),
                ),
            ),
            (
                Some(131_072),
                scaled(131_072, json!({"type": "longrope", "factor": 32.0, "original_max_position_embeddings": 4096})),
            ),
            (Some(4096), scaled(4096, json!({"rope_type": "default"}))),
            (Some(4096), scaled(4096, json!({"rope_type": "yarn", "factor": "four"}))),
            (Some(4096), scaled(4096, json!(null))),
            (
                Some(131_072),
                json!({"model_type": "gemma3_text", "max_position_embeddings": 131_072, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
            ),
            (None, json!({})),
        ] {
            assert_eq!(position_limit(&config), expected, "{config}");
        }
    }
}
