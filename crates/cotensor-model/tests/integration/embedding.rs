//! Embeddings of many texts equal those of single texts.

use crate::support::onnx::engines;
use crate::support::{self, fixtures, user};
use cotensor_core::ErrorKind;
use cotensor_model::Runtime;
use cotensor_model::pipeline::{Inputs, TextEmbedder, run_user};
use cotensor_store::EmbeddedStore;

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
            let runtime = Runtime::new(EmbeddedStore::builder().build(), engine);
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

#[test]
fn embeddings_are_results_in_the_store() {
    let unpacked = support::unpacked(&fixtures().join("tiny/bert"));
    let runtime = Runtime::new(EmbeddedStore::builder().build(), engines().remove(0));
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
    let runtime = Runtime::new(EmbeddedStore::builder().build(), engines().remove(0));
    let refused = TextEmbedder::open(&runtime.open(unpacked.path()).unwrap()).err().unwrap();
    assert_eq!((refused.kind(), refused.file().is_some()), (ErrorKind::Unsupported, true), "{refused}");
}
