//! Texts that a decoder writes.

use crate::support::Workspace;
use std::fs;

/// A task of tiny/llama with the number of tokens of its reference.
const LLAMA: [&str; 8] =
    ["run", "llama", "--text", "The harbour wakes", "--max-new-tokens", "16", "--min-new-tokens", "16"];

fn with(more: &[&'static str]) -> Vec<&'static str> {
    [&LLAMA[..], more].concat()
}

#[test]
fn text_equals_the_reference_as_a_whole_and_streamed() {
    let workspace = Workspace::with("llama");
    let greedy = fs::read(workspace.path("llama/greedy.json")).unwrap();
    let greedy: serde_json::Value = serde_json::from_slice(&greedy).unwrap();
    let expected = greedy["text_of_tokens"].as_str().unwrap();
    let report = workspace.json(&with(&["--do-sample=false", "--json"]));
    let answer = &report["users"][0]["answer"];
    assert_eq!(answer["text"].as_str().unwrap().trim_start(), expected.trim_start());
    assert_eq!(report["users"][0]["task"], "text-generation");
    assert_eq!(answer["tokens"], 16);
    let streamed = workspace.run(&with(&["--do-sample=false", "--stream"]));
    assert!(streamed.status.success());
    let text = String::from_utf8(streamed.stdout).unwrap();
    assert_eq!(text, format!("{}\n", answer["text"].as_str().unwrap()));
    assert!(String::from_utf8_lossy(&streamed.stderr).contains("notice: decoding was stopped after 16 tokens"));
}

#[test]
fn seed_decides_a_sampled_text() {
    let workspace = Workspace::with("llama");
    let text = |seed| {
        let sampled = with(&["--temperature", "2", "--top-k", "0", "--top-p", "1", "--json", "--seed", seed]);
        workspace.json(&sampled)["users"][0]["answer"]["text"].clone()
    };
    assert_eq!(text("1"), text("1"));
    assert_ne!(text("1"), text("2"));
}

#[test]
fn wrong_options_are_refused() {
    let workspace = Workspace::with("llama");
    workspace.expect_error(&with(&["--do-sample=false", "--seed", "1"]), &["seed", "do_sample"]);
    workspace.expect_error(&with(&["--temperature", "0"]), &["temperature", "above 0"]);
    workspace.expect_error(&["run", "llama", "--text", "x", "--max-new-tokens", "4000"], &["max_new_tokens", "room"]);
    let bert = Workspace::with("bert");
    bert.expect_error(&["run", "bert", "--text", "x", "--stream"], &["--stream", "decodes no text"]);
    bert.expect_error(&["run", "bert", "--text", "x", "--seed", "1"], &["seed", "decodes no text"]);
    bert.expect_error(&["run", "pipeline.toml", "--text", "x", "--stream"], &["--stream", "pipeline"]);
}
