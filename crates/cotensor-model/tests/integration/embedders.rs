//! Embedding models whose code or modules are not those of BERT (fixtures/embedders): embeddings equal those of PyTorch.

use crate::support::{References, check_row, fixtures, runtimes, unpacked, user};
use cotensor_core::{Error, ErrorKind};
use cotensor_model::pipeline::{Inputs, TextEmbedder, TextEmbedding, User, run_user};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const TEXTS: [&str; 4] = [
    "The Harbour wakes before the city does.",
    "Gulls.",
    "Two ferries leave at six, and the third one waits for the train that comes from the mountains with the mail.",
    "Nets dry on the quay.",
];
/// Folder, prompt and reference.
const CASES: [(&str, Option<&str>, &str); 13] = [
    ("new", None, "new"),
    ("nomic", Some("query"), "nomic.query"),
    ("nomic", Some("document"), "nomic.document"),
    ("eurobert", None, "eurobert"),
    ("jina-v2", None, "jina-v2"),
    ("jina-v3", Some("retrieval.query"), "jina-v3.retrieval.query"),
    ("jina-v3", Some("query"), "jina-v3.retrieval.query"),
    ("jina-v3", Some("retrieval.passage"), "jina-v3.retrieval.passage"),
    ("jina-v3", Some("document"), "jina-v3.retrieval.passage"),
    ("jina-v3", Some("separation"), "jina-v3.separation"),
    ("jina-v3", Some("text-matching"), "jina-v3.text-matching"),
    ("gemma", Some("query"), "gemma.query"),
    ("gemma", Some("document"), "gemma.document"),
];

fn folder(name: &str) -> tempfile::TempDir {
    unpacked(&fixtures().join("embedders").join(name))
}

fn set(folder: &Path, file: &str, field: &str, value: Value) {
    let path = folder.join(file);
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config[field] = value;
    fs::write(path, config.to_string()).unwrap();
}

/// The embeddings of all texts on the first engine.
fn embed(folder: &Path, prompt: Option<&str>) -> Result<Vec<TextEmbedding>, Error> {
    let runtime = runtimes().remove(0);
    TextEmbedder::open(&runtime.open(folder)?)?.embed(&TEXTS, prompt, None)
}

#[test]
fn embeddings_are_those_of_the_reference_programs_together_and_alone() {
    let references = References::open(&fixtures().join("embedders/reference.safetensors"));
    for ((name, prompt, reference), runtime) in
        CASES.into_iter().flat_map(|case| runtimes().into_iter().map(move |runtime| (case, runtime)))
    {
        let folder = folder(name);
        let model = runtime.open(folder.path()).unwrap();
        let embedder = TextEmbedder::open(&model).unwrap();
        let expected = references.array(reference);
        let check = |values: &[f32], at: usize| check_row(values, &expected, at, reference);
        let holder = runtime.store().holder("test");
        for (at, embedding) in embedder.embed(&TEXTS, prompt, None).unwrap().iter().enumerate() {
            check(&embedding.values, at);
            assert_eq!(embedding.notice, None, "{name}");
            check(&embedder.embed(&[TEXTS[at]], prompt, None).unwrap()[0].values, at);
            let user = User { prompt_name: prompt.map(str::to_owned), ..user("one", "model", "sentence-embedding") };
            let report = run_user(&model, &user, &Inputs::default().with_text(TEXTS[at]), &holder).unwrap();
            check(&report.outputs[0].values, at);
            assert!(report.notices.iter().all(|notice| notice.contains("truncated")), "{name}: {:?}", report.notices);
        }
    }
}

#[test]
fn tasks_with_equal_tokens_have_embeddings_of_their_own_in_the_store() {
    let folder = folder("jina-v3");
    let runtime = runtimes().remove(0);
    let holder = runtime.store().holder("one");
    let embedder = TextEmbedder::open(&runtime.open(folder.path()).unwrap()).unwrap();
    let embed = |task| embedder.embed(&TEXTS, Some(task), Some(&holder)).unwrap();
    let (separation, matching) = (embed("separation"), embed("text-matching"));
    assert_ne!(separation, matching);
    assert_eq!((embed("separation"), embed("text-matching")), (separation, matching));
}

#[test]
fn model_with_tasks_needs_one_of_them() {
    let folder = folder("jina-v3");
    for prompt in [None, Some("clustering")] {
        let error = embed(folder.path(), prompt).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("prompt_name")), "{error}");
        assert!(
            ["retrieval.query", "retrieval.passage", "separation"].iter().all(|task| error.message().contains(task)),
            "{error}"
        );
    }
    // A default prompt names the default task.
    fs::write(
        folder.path().join("config_sentence_transformers.json"),
        json!({"default_prompt_name": "text-matching"}).to_string(),
    )
    .unwrap();
    assert_eq!(embed(folder.path(), None).unwrap(), embed(folder.path(), Some("text-matching")).unwrap());
    set(folder.path(), "config.json", "lora_adaptations", json!([1]));
    let error = embed(folder.path(), Some("query")).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("lora_adaptations")), "{error}");
    set(folder.path(), "config.json", "lora_adaptations", Value::Null);
    fs::remove_file(folder.path().join("config_sentence_transformers.json")).unwrap();
    let error = embed(folder.path(), None).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("lora_adaptations")), "{error}");
}

#[test]
fn task_of_a_graph_that_does_not_read_it_is_refused() {
    let folder = folder("new");
    set(folder.path(), "config.json", "lora_adaptations", json!(["retrieval.query", "separation"]));
    for prompt in ["query", "separation"] {
        let error = embed(folder.path(), Some(prompt)).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("lora_adaptations")), "{error}");
        assert_eq!(error.file(), Some(folder.path().join("config.json").as_path()));
        let runtime = runtimes().remove(0);
        let user = User { prompt_name: Some(prompt.to_owned()), ..user("one", "model", "sentence-embedding") };
        let inputs = Inputs::default().with_text(TEXTS[0]);
        let model = runtime.open(folder.path()).unwrap();
        let error = run_user(&model, &user, &inputs, &runtime.store().holder("one")).unwrap_err();
        assert_eq!(error.field(), Some("lora_adaptations"), "{error}");
    }
    embed(folder.path(), None).unwrap();
}

#[test]
fn fields_that_contradict_the_architecture_are_read_or_named() {
    let config = "config.json";
    // More positions than the tiny tokenizer allows for: the configuration decides.
    let limited = folder("jina-v2");
    set(limited.path(), "tokenizer_config.json", "model_max_length", json!(1e30));
    set(limited.path(), config, "max_position_embeddings", 12.into());
    assert_eq!(embed(limited.path(), None).unwrap()[2].tokens, 12);
    let nomic = folder("nomic");
    set(nomic.path(), "tokenizer_config.json", "model_max_length", json!(1e30));
    set(nomic.path(), config, "n_positions", 13.into());
    assert_eq!(embed(nomic.path(), None).unwrap()[2].tokens, 13);
    // Positions in a table: RoBERTa skips those before the padding token's. Rotary positions have no table.
    let rotary = folder("jina-v3");
    set(rotary.path(), "tokenizer_config.json", "model_max_length", json!(1e30));
    set(rotary.path(), config, "max_position_embeddings", 14.into());
    assert_eq!(embed(rotary.path(), Some("separation")).unwrap()[2].tokens, 14);
    set(rotary.path(), config, "position_embedding_type", "absolute".into());
    assert_eq!(embed(rotary.path(), Some("separation")).unwrap()[2].tokens, 13);
    set(rotary.path(), config, "position_embedding_type", "spherical".into());
    let error = embed(rotary.path(), Some("separation")).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("position_embedding_type")), "{error}");
    assert_eq!(error.file(), Some(rotary.path().join(config).as_path()));
}

#[test]
fn unknown_code_of_a_model_has_a_notice_in_each_answer() {
    let folder = folder("jina-v2");
    set(folder.path(), "config.json", "auto_map", json!({"AutoModel": "owner/name--modeling.OwnModel"}));
    let embedded = embed(folder.path(), None).unwrap();
    let notice = embedded[3].notice.as_deref().unwrap();
    assert!(notice.contains("OwnModel") && notice.contains("auto_map in config.json"), "{notice}");
    let runtime = runtimes().remove(0);
    let model = runtime.open(folder.path()).unwrap();
    let task = user("one", "model", "sentence-embedding");
    let report = run_user(&model, &task, &Inputs::default().with_text(TEXTS[0]), &runtime.store().holder("one"));
    assert_eq!(report.unwrap().notices, [notice]);
    // Two notices are one text.
    fs::remove_dir_all(folder.path().join("1_Pooling")).unwrap();
    set(folder.path(), "config.json", "_name_or_path", "jinaai/jina-embeddings-v2-base-en".into());
    set(folder.path(), "config.json", "architectures", json!(["JinaBertModel"]));
    let both = embed(folder.path(), None).unwrap().remove(0).notice.unwrap();
    assert!(both.contains("state no pooling") && both.ends_with(notice), "{both}");
}
