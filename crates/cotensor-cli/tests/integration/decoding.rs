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
fn streamed_text_reaches_a_pipe_as_it_is() {
    let workspace = Workspace::with("llama");
    let text = |report: serde_json::Value| report["users"][0]["answer"]["text"].as_str().unwrap().to_owned();
    let arguments = ["--do-sample=false", "--json"];
    let letter = text(workspace.json(&with(&arguments))).chars().find(|c| c.is_alphanumeric()).unwrap();
    let file = workspace.path("llama/tokenizer.json");
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let replace = serde_json::json!({"type": "Replace", "pattern": {"String": letter}, "content": "\u{9b}\u{202e}\r"});
    let known = tokenizer["decoder"].take();
    tokenizer["decoder"] = serde_json::json!({"type": "Sequence", "decoders": [known, replace]});
    fs::write(file, tokenizer.to_string()).unwrap();
    let expected = text(workspace.json(&with(&arguments)));
    assert!(expected.contains("\u{9b}\u{202e}\r"), "{expected:?}");
    let streamed = workspace.run(&with(&["--do-sample=false", "--stream"]));
    assert_eq!(String::from_utf8(streamed.stdout).unwrap(), format!("{expected}\n"));
}

/// config.json has parameters for each pair of languages: a prefix and lengths.
#[test]
fn translation_has_the_parameters_of_its_languages() {
    let workspace = Workspace::with("t5");
    let file = workspace.path("t5/config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    config["task_specific_params"]["translation_en_to_de"] =
        serde_json::json!({"prefix": "translate English to German: ", "max_length": 5});
    fs::write(file, config.to_string()).unwrap();
    let run =
        |task: &str| workspace.json(&["run", "t5", task, "--text", "The harbour wakes", "--json"])["users"][0].clone();
    let (plain, german) = (run("translation"), run("translation_en_to_de"));
    assert_eq!((&plain["task"], &german["task"]), (&"translation".into(), &"translation_en_to_de".into()));
    let count = |user: &serde_json::Value, name: &str| user["answer"][name].as_u64().unwrap();
    assert!(count(&german, "prompt_tokens") > count(&plain, "prompt_tokens") && count(&german, "tokens") <= 4);
}

#[test]
fn variant_of_the_graphs_is_an_option_and_a_key_of_pipelines() {
    let workspace = Workspace::with("qwen2");
    let reference = fs::read(workspace.path("qwen2/variants.json")).unwrap();
    let reference: serde_json::Value = serde_json::from_slice(&reference).unwrap();
    let tokens = |user: &serde_json::Value| user["outputs"][0]["values"].clone();
    let expected = |variant: &str| {
        let tokens = reference[variant]["tokens"].as_array().unwrap();
        tokens.iter().map(|token| token.as_f64().unwrap().into()).collect::<Vec<serde_json::Value>>()
    };
    let count = expected("fp16").len().to_string();
    let run = |variant: &str| {
        let text = ["run", "qwen2", "--text", "The harbour wakes", "--json", "--variant", variant];
        workspace.json(&[&text[..], &["--max-new-tokens", &count, "--min-new-tokens", &count]].concat())
    };
    for (variant, name) in [("fp16", "fp16"), ("16", "fp16"), ("int8", "int8")] {
        assert_eq!(tokens(&run(variant)["users"][0]), serde_json::json!(expected(name)), "{variant}");
    }
    let user = |variant: &str| {
        format!(
            "[[user]]\nname = \"{variant}\"\nmodel = \"qwen2\"\ntask = \"text-generation\"\nvariant = \"{variant}\"\n\
             max_new_tokens = {count}\nmin_new_tokens = {count}\n"
        )
    };
    fs::write(workspace.path("both.toml"), user("fp16") + &user("int8")).unwrap();
    let both = workspace.json(&["run", "both.toml", "--text", "The harbour wakes", "--json", "--compare"]);
    for (at, variant) in ["fp16", "int8"].into_iter().enumerate() {
        assert_eq!(tokens(&both["users"][at]), serde_json::json!(expected(variant)), "{variant}");
    }
    workspace.expect_error(&["run", "qwen2", "--text", "x", "--variant", "fp15"], &["--variant", "fp15", "bnb4"]);
    fs::write(workspace.path("both.toml"), user("fp15")).unwrap();
    workspace.expect_error(&["run", "both.toml", "--text", "x"], &["both.toml", "user[0].variant", "fp15", "bnb4"]);
    workspace.expect_error(&["run", "both.toml", "--text", "x", "--variant", "fp16"], &["--variant", "pipeline"]);
    let bert = Workspace::with("bert");
    let missing = ["run", "bert", "--text", "x", "--variant", "q4"];
    bert.expect_error(&missing, &["bert", "variant", "\"q4\"", "onnx/model.onnx"]);
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
    workspace.expect_error(&with(&["--temperature", "nan"]), &["temperature", "finite"]);
    workspace.expect_error(&["run", "llama", "--text", "x", "--max-new-tokens", "4000"], &["max_new_tokens", "room"]);
    let bert = Workspace::with("bert");
    bert.expect_error(&["run", "bert", "--text", "x", "--stream"], &["--stream", "decodes no text"]);
    bert.expect_error(&["run", "bert", "--text", "x", "--seed", "1"], &["seed", "decodes no text"]);
    bert.expect_error(&["run", "pipeline.toml", "--text", "x", "--stream"], &["--stream", "pipeline"]);
    bert.expect_error(&["run", "pipeline.toml", "--text", "x", "--top-k", "3"], &["--top-k", "pipeline"]);
}
