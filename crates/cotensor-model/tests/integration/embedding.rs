//! Embeddings of many texts equal those of single texts.

use crate::support::onnx::engines;
use crate::support::{self, fixtures, user};
use cotensor_core::ErrorKind;
use cotensor_model::Runtime;
use cotensor_model::pipeline::{Inputs, TextEmbedder, run_user};
use cotensor_store::LocalStore;
use std::path::Path;

/// Of many lengths, with an equal pair.
const TEXTS: [&str; 7] = [
    "The Harbour wakes before the city does.",
    "Gulls.",
    "Two ferries leave at six, and the third one waits for the train that comes from the mountains with the mail.",
    "Gulls.",
    "Nets dry on the quay.",
    "A crane lifts grain.",
    "The pilot boat returns.",
];

#[test]
fn many_texts_give_the_embeddings_of_each() {
    let forms = ["sentence-embedding", "pooled", "decoder-embedding"].map(|form| fixtures().join("forms").join(form));
    for folder in forms.iter().chain([&fixtures().join("tiny/bert")]) {
        let unpacked = support::unpacked(folder);
        for engine in engines() {
            let name = format!("{} on {}", folder.display(), engine.name());
            let runtime = Runtime::new(LocalStore::builder().build(), engine);
            let model = runtime.open(unpacked.path()).unwrap();
            let holder = runtime.store().holder("one");
            let embedder = TextEmbedder::open(&model).unwrap();
            let together = embedder.embed(&TEXTS, None, None).unwrap();
            assert_eq!(together[1], together[3]);
            assert!(together[2].tokens >= together[1].tokens);
            for (text, embedding) in TEXTS.iter().zip(&together) {
                let inputs = Inputs::default().with_text(*text);
                let report = run_user(&model, &user("one", "model", "sentence-embedding"), &inputs, &holder).unwrap();
                let single = &report.outputs[0].values;
                assert_eq!(single.len(), embedding.values.len());
                let worst = single.iter().zip(&embedding.values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-5, "{name}: {worst}");
            }
        }
    }
}

/// The largest difference of a number between a text among others and alone.
fn difference(embedder: &TextEmbedder) -> f32 {
    let together = embedder.embed(&TEXTS, None, None).unwrap();
    let alone = TEXTS.iter().map(|text| embedder.embed(&[text], None, None).unwrap().remove(0).values);
    let pairs = together.into_iter().zip(alone).flat_map(|(one, other)| one.values.into_iter().zip(other));
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Each operator of a dynamically quantized graph scales by the range of the whole batch.
#[test]
fn texts_of_a_graph_that_joins_rows_run_alone() {
    let bert = fixtures().join("tiny/bert");
    let unpacked = support::unpacked(&bert);
    let variant = "model_quantized.onnx";
    std::fs::copy(bert.join("int8").join(variant), unpacked.path().join("onnx").join(variant)).unwrap();
    for engine in engines() {
        let name = engine.name();
        let runtime = Runtime::new(LocalStore::builder().build(), engine);
        let open = |variant| runtime.open_variant(unpacked.path(), Path::new(""), variant).unwrap();
        let (plain, quantized) = (open(None), open(Some("int8")));
        let role = "encoder";
        assert_eq!(plain.stage(role).unwrap().joins_rows().unwrap(), None);
        assert!(quantized.stage(role).unwrap().joins_rows().unwrap().unwrap().starts_with("DynamicQuantizeLinear \""));
        assert_eq!(difference(&TextEmbedder::open(&quantized).unwrap()), 0.0, "{name}");
    }
}

#[test]
fn positions_do_not_count_padding() {
    let unpacked = support::unpacked(&fixtures().join("tiny/bert"));
    let path = unpacked.path().join("tokenizer_config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["padding_side"] = "left".into();
    std::fs::write(path, config.to_string()).unwrap();
    let runtime = Runtime::new(LocalStore::builder().build(), engines().remove(0));
    let embedder = TextEmbedder::open(&runtime.open(unpacked.path()).unwrap()).unwrap();
    assert!(difference(&embedder) < 1e-5);
}

#[test]
fn embeddings_are_results_in_the_store() {
    let unpacked = support::unpacked(&fixtures().join("tiny/bert"));
    let runtime = Runtime::new(LocalStore::builder().build(), engines().remove(0));
    let holder = runtime.store().holder("one");
    let embedder = TextEmbedder::open(&runtime.open(unpacked.path()).unwrap()).unwrap();
    let first = embedder.embed(&TEXTS, None, Some(&holder)).unwrap();
    let tensors = runtime.store().stats().total_tensors;
    let second = embedder.embed(&TEXTS, None, Some(&holder)).unwrap();
    assert_eq!(first, second);
    assert_eq!(runtime.store().stats().total_tensors, tensors, "the second call made none");
    assert_eq!(embedder.embed(&[], None, None).unwrap(), []);
}

#[test]
fn model_without_sentence_embeddings_is_refused() {
    let unpacked = support::unpacked(&fixtures().join("tiny/vit"));
    let runtime = Runtime::new(LocalStore::builder().build(), engines().remove(0));
    let refused = TextEmbedder::open(&runtime.open(unpacked.path()).unwrap()).err().unwrap();
    assert_eq!((refused.kind(), refused.file().is_some()), (ErrorKind::Unsupported, true), "{refused}");
}
