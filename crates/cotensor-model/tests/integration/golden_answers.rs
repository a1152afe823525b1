//! The numbers behind answers of ten families in protocol/answers.json. `make protocol` writes the file. The browser package's tests
//! read it: models in browsers give the answers of the Rust library.

use crate::support::{runtime, tiny};
use cotensor_model::pipeline::{Inputs, User};
use cotensor_model::pool::{HardwarePreferences, ResourcePool};
use cotensor_store::LocalStore;
use serde_json::{Value, json};
use std::path::Path;

/// Set to write the file.
const WRITE: &str = "COTENSOR_WRITE_PROTOCOL";
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../protocol/answers.json");
/// The last digits depend on the processor.
const DIFFERENCE_MAX: f64 = 1e-4;

/// The outputs of a task by name.
fn answer(family: &str, task: &str, texts: &[&str], inputs: &Inputs) -> Value {
    let pool = ResourcePool::new(runtime(LocalStore::builder()), tiny(""), 1).unwrap();
    let model = pool.get_model(family, family, &HardwarePreferences::default()).unwrap();
    let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    let (name, task) = (family.to_owned(), task.to_owned());
    let writes = [
        "transcription",
        "text-generation",
        "text2text-generation",
        "summarization",
        "image-to-text",
        "image-text-to-text",
    ];
    let max_new_tokens = writes.contains(&task.as_str()).then_some(12);
    let user = User { name, model: family.into(), task, texts, max_new_tokens, ..User::default() };
    let outputs = model.process(&user, inputs).unwrap().report.outputs;
    outputs.iter().map(|output| (output.name.clone(), json!(output.values))).collect::<serde_json::Map<_, _>>().into()
}

#[test]
fn golden_answers_of_ten_families() {
    let media = |file: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/media").join(file);
    let photo = Inputs::default().with_image(&media("photo.png")).unwrap();
    let texts = ["a photo of a cat", "a photo of a dog", "a diagram"];
    let text = Inputs::default().with_text(texts[0]);
    let speech = Inputs::default().with_audio(&media("speech.wav")).unwrap();
    let found = json!({
        "bert": answer("bert", "sentence-embedding", &[], &text),
        "vit": answer("vit", "image-embedding", &[], &photo),
        "clip": answer("clip", "zero-shot-image-classification", &texts, &photo),
        "whisper": answer("whisper", "transcription", &[], &speech),
        "detr": answer("detr", "object-detection", &[], &photo),
        "llama": answer("llama", "text-generation", &[], &text),
        "t5": answer("t5", "text2text-generation", &[], &text),
        "bart": answer("bart", "summarization", &[], &text),
        "blip": answer("blip", "image-to-text", &[], &photo),
        "llava": answer("llava", "image-text-to-text", &[], &photo.clone().with_text("a photo of <image>")),
    });
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(FILE, serde_json::to_string_pretty(&found).unwrap() + "\n").unwrap();
    }
    let expected: Value = serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).unwrap();
    let numbers = |value: &Value| value.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect::<Vec<_>>();
    for (family, outputs) in expected.as_object().unwrap() {
        for (name, values) in outputs.as_object().unwrap() {
            let (known, new) = (numbers(values), numbers(&found[family][name]));
            assert_eq!(known.len(), new.len(), "{family} {name}");
            let difference = known.iter().zip(&new).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(difference <= DIFFERENCE_MAX, "{family} {name}: {difference}");
        }
    }
}
