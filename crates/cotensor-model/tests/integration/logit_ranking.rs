//! A causal language model as a reranker (fixtures/embedders/reranker): scores equal those of sentence-transformers.

use crate::support::{References, fixtures, runtimes, unpacked, user};
use cotensor_core::{Error, ErrorKind};
use cotensor_model::Runtime;
use cotensor_model::pipeline::{Answer, Inputs, UserReport, run_user};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::sync::Arc;

const QUERY: &str = "Gulls.";
const TEXTS: [&str; 4] = [
    "The Harbour wakes before the city does.",
    "Gulls.",
    "Two ferries leave at six, and the third one waits for the train that comes from the mountains with the mail.",
    "Nets dry on the quay.",
];

fn rank(runtime: &Arc<Runtime>, folder: &Path, name: &str, texts: &[&str]) -> Result<UserReport, Error> {
    let model = runtime.open(folder)?;
    let mut user = user(name, "model", "rerank");
    user.texts = texts.iter().map(|&text| text.to_owned()).collect();
    run_user(&model, &user, &Inputs::default().with_text(QUERY), &runtime.store().holder(name))
}

fn folder() -> tempfile::TempDir {
    unpacked(&fixtures().join("embedders/reranker"))
}

#[test]
fn scores_are_those_of_sentence_transformers() {
    let references = References::open(&fixtures().join("embedders/reference.safetensors"));
    let folder = folder();
    for runtime in runtimes() {
        let report = rank(&runtime, folder.path(), "one", &TEXTS).unwrap();
        for (output, reference) in report.outputs.iter().zip(["reranker.scores", "reranker.logits"]) {
            for (given, expected) in output.values.iter().zip(references.array(reference).as_f32().unwrap()) {
                assert!((given - expected).abs() <= 1e-5, "{reference}: {given} for {expected}");
            }
        }
        let Answer::Scores { texts } = &report.answer else { panic!("{:?}", report.answer) };
        assert_eq!(
            texts.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>(),
            [TEXTS[1], TEXTS[2], TEXTS[3], TEXTS[0]]
        );
        let again = rank(&runtime, folder.path(), "two", &[TEXTS[3], TEXTS[0]]).unwrap();
        assert!(again.stages.iter().filter(|stage| !stage.signature.is_empty()).all(|stage| !stage.computed));
        assert_eq!(again.outputs[1].values, [report.outputs[1].values[3], report.outputs[1].values[0]]);
    }
}

#[test]
fn model_without_what_makes_a_score_is_refused() {
    let runtime = runtimes().remove(0);
    let refused = |folder: &Path, texts: &[&str]| rank(&runtime, folder, "one", texts).unwrap_err();
    let embedder = unpacked(&fixtures().join("forms/decoder-embedding"));
    let error = refused(embedder.path(), &TEXTS);
    assert!(error.kind() == ErrorKind::Unsupported && error.message().contains("LogitScore"), "{error}");
    assert_eq!(error.file(), Some(embedder.path().join("modules.json").as_path()));
    let long = "gulls ".repeat(300);
    let error = refused(folder().path(), &[TEXTS[0], &long]);
    assert!(error.kind() == ErrorKind::Invalid && error.message().starts_with("text 1: the prompt"), "{error}");
    // The limit of the module is below that of the tokenizer.
    let short = folder();
    let file = short.path().join("sentence_bert_config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    config["max_seq_length"] = json!(8);
    fs::write(file, config.to_string()).unwrap();
    let error = refused(short.path(), &TEXTS);
    assert!(error.kind() == ErrorKind::Invalid && error.message().starts_with("text 0: the prompt"), "{error}");
    let plain = folder();
    fs::write(plain.path().join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    let error = refused(plain.path(), &TEXTS);
    assert!(error.kind() == ErrorKind::Unsupported && error.message().contains("roles query and document"), "{error}");
    // The query alone has this text, too.
    let first = "{% for message in messages if message.role == 'query' %}{{ message.content }}{% endfor %}";
    fs::write(plain.path().join("chat_template.jinja"), first).unwrap();
    assert!(refused(plain.path(), &[QUERY]).message().contains("roles query and document"));
    fs::remove_file(plain.path().join("chat_template.jinja")).unwrap();
    assert!(refused(plain.path(), &TEXTS).message().contains("needs a chat template"));
    let outside = folder();
    let score = json!({"true_token_id": 400});
    fs::write(outside.path().join("1_LogitScore/config.json"), score.to_string()).unwrap();
    assert_eq!(refused(outside.path(), &TEXTS).field(), Some("true_token_id"));
}
