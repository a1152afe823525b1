//! The most tokens that the positions of a model allow.

use crate::family::scaled_positions;
use cotensor_core::{Error, Result};
use serde_json::Value;

/// What `position_embedding_type` may be: whether the positions are those of a table, in which RoBERTa has entries that it skips.
const POSITION_TYPES: [(&str, bool); 6] = [
    ("absolute", true),
    ("relative_key", true),
    ("relative_key_query", true),
    ("alibi", false),
    ("rope", false),
    ("rotary", false),
];

/// The most tokens of a text for an encoder of BERT's family with this config.json; `None` where its positions set no limit.
/// RoBERTa and MPNet count positions from the one after the padding token's on, so that 514 positions hold 512 tokens. Positions
/// that are computed (alibi, rotary) have the limit that the configuration states for them.
///
/// # Errors
/// `Unsupported` for an unknown `position_embedding_type`; the error names the field.
pub fn position_limit(config: &Value) -> Result<Option<usize>> {
    const TYPE: &str = "position_embedding_type";
    let has_table = match config.get(TYPE) {
        None | Some(Value::Null) => true,
        Some(named) => {
            let known = POSITION_TYPES.iter().find(|(known, _)| named.as_str() == Some(known));
            let (_, has_table) = known.ok_or_else(|| {
                let known = POSITION_TYPES.map(|(known, _)| known).join(", ");
                Error::unsupported(format!(
                    "{named} is not known, and with it the most tokens of a text; known: {known}"
                ))
                .in_field(TYPE)
            })?;
            *has_table
        }
    };
    Ok(limit(config, has_table))
}

fn limit(config: &Value, has_table: bool) -> Option<usize> {
    let number = |name: &str| config.get(name).and_then(Value::as_u64);
    let skipped = match config.get("model_type").and_then(Value::as_str) {
        Some("roberta" | "xlm-roberta") if has_table => number("pad_token_id").unwrap_or(1).checked_add(1)?,
        Some("mpnet") => 2,
        // Relative positions only.
        Some("deberta-v2") if config.get("position_biased_input") == Some(&Value::Bool(false)) => return None,
        _ => 0,
    };
    // The code of nomic-bert has the names of GPT-2.
    let field = ["max_position_embeddings", "n_positions"].into_iter().find(|name| number(name).is_some())?;
    let limit = usize::try_from(scaled_positions(config, field)?.checked_sub(skipped)?).ok()?;
    (limit > 0).then_some(limit)
}

/// Whether the positions of a text depend on the tokens of the longest text in its batch: rotary positions that are scaled by the
/// length.
pub fn positions_depend_on_length(config: &Value) -> bool {
    let scaling = ["rope_scaling", "rope_parameters"].iter().find_map(|name| config.get(*name)?.as_object());
    let name = scaling.and_then(|scaling| ["rope_type", "type"].iter().find_map(|name| scaling.get(*name)?.as_str()));
    // nomic-bert's name of the factor.
    name.is_some_and(|name| ["dynamic", "longrope"].contains(&name))
        || config.get("rotary_scaling_factor").is_some_and(Value::is_number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ErrorKind;
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
            (
                Some(8192),
                json!({"model_type": "bert", "max_position_embeddings": 8192, "position_embedding_type": "alibi"}),
            ),
            (
                Some(8194),
                json!({"model_type": "xlm-roberta", "max_position_embeddings": 8194, "position_embedding_type": "rotary"}),
            ),
            (
                Some(512),
                json!({"model_type": "roberta", "max_position_embeddings": 514, "position_embedding_type": "relative_key"}),
            ),
            (
                Some(8192),
                json!({"model_type": "new", "max_position_embeddings": 8192, "position_embedding_type": "rope",
                    "rope_scaling": {"type": "ntk", "factor": 2.0}}),
            ),
            (Some(8192), json!({"model_type": "nomic_bert", "n_positions": 8192, "max_trained_positions": 2048})),
            (None, json!({})),
        ] {
            assert_eq!(position_limit(&config).unwrap(), expected, "{config}");
        }
    }

    #[test]
    fn unknown_positions_are_refused_by_name() {
        for named in [json!("hyperbolic"), json!(1)] {
            let config =
                json!({"model_type": "bert", "max_position_embeddings": 512, "position_embedding_type": named});
            let error = position_limit(&config).unwrap_err();
            assert_eq!(
                (error.kind(), error.field()),
                (ErrorKind::Unsupported, Some("position_embedding_type")),
                "{error}"
            );
        }
    }

    #[test]
    fn scaling_by_the_length_is_known() {
        let depends = |name: &str, value: Value| positions_depend_on_length(&json!({ name: value }));
        assert!(depends("rope_scaling", json!({"type": "dynamic", "factor": 2.0})));
        assert!(depends("rope_parameters", json!({"rope_type": "longrope"})));
        assert!(depends("rotary_scaling_factor", json!(2.0)));
        assert!(!depends("rotary_scaling_factor", Value::Null));
        assert!(!depends("rope_scaling", json!({"type": "yarn", "factor": 2.0})));
        assert!(!depends("rope_scaling", Value::Null));
    }
}
