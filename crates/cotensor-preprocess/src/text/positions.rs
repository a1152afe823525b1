//! The most tokens that the positions of an encoder allow.

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
    let limit = usize::try_from(number("max_position_embeddings")?.checked_sub(skipped)?).ok()?;
    (limit > 0).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
            (None, json!({})),
        ] {
            assert_eq!(position_limit(&config), expected, "{config}");
        }
    }
}
