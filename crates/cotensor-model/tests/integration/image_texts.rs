//! Models that write texts about images give the tokens of transformers' `generate` with the same weights.

use crate::support::onnx::engines;
use crate::support::{copy, fixtures, runtime, tiny, user};
use cotensor_core::ErrorKind;
use cotensor_model::Runtime;
use cotensor_model::family::Medium;
use cotensor_model::pipeline::{Answer, Inputs, User, UserReport, default_task, run_user, run_user_streaming};
use cotensor_store::LocalStore;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::Arc;

fn greedy(family: &str) -> Value {
    let greedy: Value = serde_json::from_slice(&fs::read(tiny(family).join("greedy.json")).unwrap()).unwrap();
    assert!(greedy["margins"].as_array().unwrap().iter().all(|margin| margin.as_f64().unwrap() > 1e-2));
    greedy
}

fn tokens(report: &UserReport) -> Vec<i64> {
    report.outputs[0].values.iter().map(|&token| token as i64).collect()
}

fn writer(family: &str) -> User {
    let task = if family == "blip" { "image-to-text" } else { "image-text-to-text" };
    User { min_new_tokens: Some(16), max_new_tokens: Some(16), ..user("writer", family, task) }
}

fn picture(greedy: &Value) -> Inputs {
    Inputs::default().with_image(&fixtures().join("tiny").join(greedy["image"].as_str().unwrap())).unwrap()
}

#[test]
fn captions_and_answers_equal_the_reference() {
    for family in ["blip", "llava"] {
        let greedy = greedy(family);
        let expected: Vec<i64> = greedy["tokens"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
        for engine in engines() {
            let runtime = Runtime::new(LocalStore::builder().build(), Arc::clone(&engine));
            let model = runtime.open(&tiny(family)).unwrap();
            let mut inputs = picture(&greedy);
            if family == "llava" {
                inputs = inputs.with_text(greedy["text"].as_str().unwrap());
            }
            let holder = runtime.store().holder("writer");
            let mut streamed = String::new();
            let mut on_text = |piece: &str| {
                streamed.push_str(piece);
                Ok(())
            };
            let (report, _) = run_user_streaming(&model, &writer(family), &inputs, &holder, &mut on_text).unwrap();
            assert_eq!(tokens(&report), expected, "{family} on {}", engine.name());
            let Answer::Text { text, .. } = &report.answer else { panic!("{:?}", report.answer) };
            assert_eq!(text.trim_start(), greedy["text_of_tokens"].as_str().unwrap().trim_start(), "{family}");
            assert_eq!(&streamed, text);
            assert!(report.stages.iter().all(|stage| stage.computed && !stage.signature.is_empty()), "{report:?}");
            // Another user gets the same text without a run.
            let again = run_user(&model, &writer(family), &inputs, &holder).unwrap();
            assert!(again.outputs == report.outputs && again.stages.iter().all(|stage| !stage.computed), "{again:?}");
        }
    }
}

#[test]
fn caption_continues_the_beginning_of_the_user() {
    let continued = &greedy("blip")["continued"];
    let expected: Vec<i64> = continued["tokens"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
    let writer = User { texts: vec![continued["text"].as_str().unwrap().to_owned()], ..writer("blip") };
    for engine in engines() {
        let runtime = Runtime::new(LocalStore::builder().build(), Arc::clone(&engine));
        let model = runtime.open(&tiny("blip")).unwrap();
        let report = run_user(&model, &writer, &picture(&greedy("blip")), &runtime.store().holder("writer")).unwrap();
        assert_eq!(tokens(&report), expected, "{}", engine.name());
        let Answer::Text { prompt_tokens, .. } = report.answer else { panic!("{:?}", report.answer) };
        assert!(prompt_tokens >= 3);
        assert_eq!(default_task(&model, &[Medium::Text, Medium::Image]).unwrap().name, "image-to-text");
        let two = User { texts: vec!["a".into(), "b".into()], ..writer.clone() };
        let error = run_user(&model, &two, &picture(&greedy("blip")), &runtime.store().holder("writer")).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("one text"), "{error}");
    }
}

/// LLaVA with a chat template.
fn with_template() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&tiny("llava"), folder.path());
    fs::copy(fixtures().join("chat/llava.jinja"), folder.path().join("chat_template.jinja")).unwrap();
    folder
}

#[test]
fn message_about_an_image_becomes_the_prompt_of_the_chat_template() {
    let greedy = greedy("llava");
    let folder = with_template();
    let runtime = runtime(LocalStore::builder());
    let model = runtime.open(folder.path()).unwrap();
    let run = |text: &str, chat: Option<bool>| {
        let user = User { chat, ..writer("llava") };
        run_user(&model, &user, &picture(&greedy).with_text(text), &runtime.store().holder("writer"))
    };
    let expected: Vec<i64> = greedy["tokens"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
    // The reference's text is what the template makes of this message.
    assert_eq!(greedy["text"], "USER: <image>\nWhat is this? ASSISTANT:");
    for chat in [None, Some(true)] {
        assert_eq!(tokens(&run("What is this?", chat).unwrap()), expected);
    }
    assert_eq!(tokens(&run(greedy["text"].as_str().unwrap(), None).unwrap()), expected, "with the image's token");
    let error = run("What is this?", Some(false)).unwrap_err();
    assert!(error.to_string().contains("<image>"), "{error}");
    let error = run(&"word ".repeat(200), None).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("text")), "{error}");
    fs::write(folder.path().join("chat_template.jinja"), "{{ raise_exception('no images') }}").unwrap();
    let model = runtime.open(folder.path()).unwrap();
    let inputs = picture(&greedy).with_text("What is this?");
    let error = run_user(&model, &writer("llava"), &inputs, &runtime.store().holder("writer")).unwrap_err();
    assert!(error.to_string().contains("chat_template.jinja") && error.to_string().contains("no images"), "{error}");
}

#[test]
fn another_image_gives_another_answer() {
    let greedy = greedy("llava");
    let runtime = runtime(LocalStore::builder());
    let model = runtime.open(&tiny("llava")).unwrap();
    let run = |image: &str| {
        let inputs = Inputs::default().with_image(&fixtures().join(image)).unwrap();
        let inputs = inputs.with_text(greedy["text"].as_str().unwrap());
        tokens(&run_user(&model, &writer("llava"), &inputs, &runtime.store().holder("writer")).unwrap())
    };
    assert_ne!(
        run(greedy["image"].as_str().map(|image| format!("tiny/{image}")).unwrap().as_str()),
        run("media/photo.png")
    );
    // The prompt with the image, 43 tokens of 16 numbers, is put together in memory.
    let copies = runtime.store().diagnostics().recent_copies;
    let prompt = copies.iter().find(|copy| copy.tensor == "prompt with an image").unwrap();
    assert_eq!(prompt.bytes, 43 * 16 * 4);
}

#[test]
fn texts_and_models_that_do_not_fit_are_refused() {
    let greedy = greedy("llava");
    let refused = |text: &str, change: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        copy(&tiny("llava"), folder.path());
        change(folder.path());
        let runtime = runtime(LocalStore::builder());
        let model = runtime.open(folder.path()).unwrap();
        let inputs = picture(&greedy).with_text(text);
        run_user(&model, &writer("llava"), &inputs, &runtime.store().holder("writer")).unwrap_err()
    };
    for text in ["What is this?", "<image> and <image>"] {
        let error = refused(text, &|_| {});
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("<image>"), "{error}");
    }
    let text = greedy["text"].as_str().unwrap();
    let error = refused(text, &|folder| {
        let path = folder.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config["image_token_index"] = json!("image");
        fs::write(path, config.to_string()).unwrap();
    });
    assert_eq!(error.field(), Some("image_token_index"), "{error}");
    let error = refused(text, &|folder| fs::remove_file(folder.join("onnx/embed_tokens.onnx")).unwrap());
    assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("embed_tokens"), "{error}");
}
