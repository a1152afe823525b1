//! The numbers behind answers of all families in protocol/answers.json. `make protocol` writes the file. The browser package's tests
//! read it: models in browsers give the answers of the Rust library.

use crate::long_speech;
use crate::support::{fixtures, runtime, unpacked, user};
use cotensor_model::pipeline::{Inputs, User, run_user};
use cotensor_store::LocalStore;
use serde_json::{Value, json};
use std::path::Path;

/// Set to write the file.
const WRITE: &str = "COTENSOR_WRITE_PROTOCOL";
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../protocol/answers.json");
/// The last digits depend on the processor.
const DIFFERENCE_MAX: f64 = 1e-4;
/// The tokens of each text that a decoder writes.
const TOKENS_MAX: usize = 12;

/// The outputs of the task of `user` by name. `model` is a folder below `fixtures/`.
fn answer(model: &str, user: User, inputs: &Inputs) -> Value {
    let folder = unpacked(&fixtures().join(model));
    let runtime = runtime(LocalStore::builder());
    let opened = runtime.open(folder.path()).unwrap();
    let report = run_user(&opened, &user, inputs, &runtime.store().holder(model));
    let outputs = report.unwrap_or_else(|error| panic!("{model}: {error}")).outputs;
    outputs.iter().map(|output| (output.name.clone(), json!(output.values))).collect::<serde_json::Map<_, _>>().into()
}

fn of_task(task: &str) -> User {
    user("one", "model", task)
}

/// A user of a task that decodes a text.
fn writing(task: &str) -> User {
    User { max_new_tokens: Some(TOKENS_MAX), ..of_task(task) }
}

fn with_texts(task: &str, texts: &[&str]) -> User {
    User { texts: texts.iter().map(|&text| text.to_owned()).collect(), ..of_task(task) }
}

#[test]
fn golden_answers_of_all_families() {
    let media = |file: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/media").join(file);
    let photo = Inputs::default().with_image(&media("photo.png")).unwrap();
    let texts = ["a photo of a cat", "a photo of a dog", "a diagram"];
    let text = Inputs::default().with_text(texts[0]);
    let speech = Inputs::default().with_audio(&media("speech.wav")).unwrap();
    let part = |samples| Inputs::default().with_audio_bytes(long_speech::wav(&long_speech::speech(samples))).unwrap();
    let (long, second) = (part(40_000), part(8000));
    let about_image = photo.clone().with_text("a photo of <image>");
    let query = User { prompt_name: Some("query".to_owned()), ..of_task("sentence-embedding") };
    let found = json!({
        "bert": answer("tiny/bert", of_task("sentence-embedding"), &text),
        "jina-v3": answer("embedders/jina-v3", query.clone(), &text),
        "nomic": answer("embedders/nomic", query, &text),
        "roberta": answer("relatives/roberta", with_texts("rerank", &texts), &text),
        "reranker": answer("embedders/reranker", with_texts("rerank", &texts), &text),
        "vit": answer("tiny/vit", of_task("image-embedding"), &photo),
        "clip": answer("tiny/clip", with_texts("zero-shot-image-classification", &texts), &photo),
        "siglip": answer("tiny/siglip", with_texts("zero-shot-image-classification", &texts), &photo),
        "detr": answer("tiny/detr", of_task("object-detection"), &photo),
        "whisper": answer("tiny/whisper", writing("transcription"), &speech),
        "whisper-language": answer("sounds/whisper", of_task("language-identification"), &speech),
        "whisper-long": answer("sounds/whisper", of_task("transcription"), &long),
        "wav2vec2": answer("sounds/wav2vec2-ctc", of_task("transcription"), &second),
        "wav2vec2-classification": answer("sounds/wav2vec2-classification", of_task("audio-classification"), &second),
        "clap": answer("sounds/clap-even", with_texts("zero-shot-audio-classification", &texts), &speech),
        "clap-audio": answer("sounds/clap-even", of_task("audio-embedding"), &speech),
        "clap-text": answer("sounds/clap-even", of_task("text-embedding"), &text),
        "llama": answer("tiny/llama", writing("text-generation"), &text),
        "t5": answer("tiny/t5", writing("text2text-generation"), &text),
        "bart": answer("tiny/bart", writing("summarization"), &text),
        "blip": answer("tiny/blip", writing("image-to-text"), &photo),
        "llava": answer("tiny/llava", writing("image-text-to-text"), &about_image),
    });
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(FILE, serde_json::to_string_pretty(&found).unwrap() + "\n").unwrap();
    }
    let expected: Value = serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).unwrap();
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&expected), names(&found), "make protocol");
    let numbers = |value: &Value| value.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect::<Vec<_>>();
    for (model, outputs) in expected.as_object().unwrap() {
        for (name, values) in outputs.as_object().unwrap() {
            let (known, new) = (numbers(values), numbers(&found[model][name]));
            assert_eq!(known.len(), new.len(), "{model} {name}");
            let difference = known.iter().zip(&new).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(difference <= DIFFERENCE_MAX, "{model} {name}: {difference}");
        }
    }
}
