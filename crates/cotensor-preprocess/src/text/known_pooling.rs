//! The pooling of models whose files do not state it.

use super::pooling::POOLINGS;
use crate::family::known_pooling;
use serde_json::Value;

/// The file that states the pooling.
const FILE: &str = "1_Pooling/config.json";

/// What is known of the pooling of a model without the files of sentence-transformers.
pub(super) enum Known {
    /// The pooling that the model's name stands for, and the notice that belongs to each embedding.
    ByName(&'static str, String),
    /// Nothing: the field that refuses, and the message.
    Nothing(&'static str, String),
}

/// The pooling of the model with this config.json; `name` is its name on the hub, or that of its folder.
pub(super) fn of(config: &Value, name: &str) -> Known {
    let architecture = config.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
    if let Some(head) = architecture.filter(|name| name.contains("For") && !name.ends_with("ForMaskedLM")) {
        let message = format!("a {head} was trained for another task than embeddings; {}", settled_by());
        return Known::Nothing("architectures", message);
    }
    let path = config.get("_name_or_path").and_then(Value::as_str).unwrap_or_default();
    match [name, path].into_iter().find_map(|name| Some((known_pooling(name)?, name))) {
        Some((pooling, name)) => {
            let notice = format!(
                "the model's files state no pooling; {pooling:?} is that of models named as {name:?} ({FILE} settles it)"
            );
            Known::ByName(pooling, notice)
        }
        None => Known::Nothing(FILE, format!("the model's files state no pooling; {}", settled_by())),
    }
}

/// What a user does about an unknown pooling.
fn settled_by() -> String {
    let names: Vec<&str> = POOLINGS.iter().map(|(name, ..)| *name).collect();
    format!(
        "give one (--pooling cls, or pooling=\"cls\" in Python; known: {}), or write {{\"pooling_mode\": \"cls\"}} into {FILE}",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pooling_is_that_of_the_longest_known_beginning_of_the_name() {
        let pooling = |name: &str| match of(&json!({"model_type": "bert"}), name) {
            Known::ByName(pooling, notice) => {
                assert!(notice.contains(name) && notice.contains(pooling), "{notice}");
                Some(pooling)
            }
            Known::Nothing(field, message) => {
                assert!(field == FILE && message.contains("--pooling cls"), "{message}");
                None
            }
        };
        for (expected, name) in [
            (Some("cls"), "Xenova/bge-small-en-v1.5"),
            (Some("cls"), "mixedbread-ai/mxbai-embed-large-v1"),
            (Some("mean"), "mixedbread-ai/mxbai-embed-xsmall-v1"),
            (Some("cls"), "Snowflake/snowflake-arctic-embed-m-v2.0"),
            (Some("mean"), "Xenova/all-MiniLM-L6-v2"),
            (Some("mean"), "thenlper/gte-base"),
            (Some("cls"), "Alibaba-NLP/gte-base-en-v1.5"),
            (Some("mean"), "intfloat/multilingual-e5-large"),
            (Some("cls"), "multi-qa-mpnet-base-dot-v1"),
            (Some("mean"), "multi-qa-mpnet-base-cos-v1"),
            (None, "bert-base-uncased"),
            (None, "e5"),
            (None, "my-bge-small"),
            (None, ""),
        ] {
            assert_eq!(pooling(name), expected, "{name}");
        }
    }

    #[test]
    fn name_of_the_configuration_is_known_and_another_task_is_refused() {
        let config = json!({"_name_or_path": "BAAI/bge-base-en", "architectures": ["BertModel"]});
        assert!(matches!(of(&config, "model"), Known::ByName("cls", _)));
        for task in ["BertForSequenceClassification", "XLMRobertaForTokenClassification"] {
            let config = json!({"_name_or_path": "BAAI/bge-base-en", "architectures": [task]});
            let Known::Nothing(field, message) = of(&config, "bge-reranker-base") else { panic!("{task}") };
            assert!(field == "architectures" && message.contains(task), "{message}");
        }
    }
}
