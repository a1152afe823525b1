//! Chat templates give the prompts and the tokens of transformers' `apply_chat_template`.

use crate::support::{fixture, folder};
use cotensor_preprocess::{ChatTemplate, TextProcessor};
use serde_json::Value;

#[test]
fn prompts_and_tokens_equal_those_of_transformers() {
    let cases: Value = serde_json::from_slice(fixture("chat/chats.json")).unwrap();
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 10);
    for case in cases {
        let text = |field: &str| case[field].as_str().unwrap();
        let mut files = folder(&format!("tiny/{}", text("tokenizer")));
        let template = fixture(&format!("chat/{}.jinja", text("template")));
        files.insert("chat_template.jinja".to_owned(), template.to_vec());
        let has_image = text("tokenizer") == "llava";
        let template = ChatTemplate::open(&files).unwrap().unwrap();
        let prompt = template.prompt(text("text"), has_image).unwrap();
        assert_eq!(prompt, text("prompt"), "{}", text("template"));
        let tokenizer = TextProcessor::open(&files).unwrap();
        let plain = !has_image || template.has_start(&prompt);
        let batch = if plain { tokenizer.encode_plain(&prompt) } else { tokenizer.encode(&[&prompt]) };
        let mut expected: Vec<i64> = case["ids"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
        // The processor repeats the image's token for each row of the image's features.
        expected.dedup_by(|a, b| has_image && *a == 399 && *b == 399);
        assert_eq!(batch.unwrap().ids.as_i64().unwrap(), expected, "{}: {prompt:?}", text("template"));
    }
}
