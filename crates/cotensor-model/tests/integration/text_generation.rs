//! Models that write text give the tokens of transformers' `generate` with the same weights.

use crate::support::onnx::engines;
use crate::support::{copy, fixtures, runtime, tiny, user};
use cotensor_core::ErrorKind;
use cotensor_model::Runtime;
use cotensor_model::engine::{Engine, FileMode, RtenEngine};
use cotensor_model::model::{Model, StageSource};
use cotensor_model::pipeline::decode::{Sampling, Settings, process};
use cotensor_model::pipeline::{Answer, Inputs, User, UserReport, run_user, run_user_keeping, run_user_streaming};
use cotensor_store::LocalStore;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

const CAUSAL: [&str; 5] = ["llama", "mistral", "qwen2", "qwen3", "gpt2"];

struct Greedy {
    text: String,
    ids: Vec<i64>,
    tokens: Vec<i64>,
    text_of_tokens: String,
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn ids(list: &Value) -> Vec<i64> {
    list.as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect()
}

fn greedy(family: &str) -> Greedy {
    let file = json_of(&tiny(family).join("greedy.json"));
    assert!(file["margins"].as_array().unwrap().iter().all(|margin| margin.as_f64().unwrap() > 1e-2));
    let text = |name: &str| file[name].as_str().unwrap().to_owned();
    Greedy {
        text: text("text"),
        ids: ids(&file["ids"]),
        tokens: ids(&file["tokens"]),
        text_of_tokens: text("text_of_tokens"),
    }
}

/// A user who decodes as many tokens as the reference, without sampling.
fn writer(family: &str, tokens: usize) -> User {
    let task = if CAUSAL.contains(&family) { "text-generation" } else { "text2text-generation" };
    let limits = (Some(tokens), Some(tokens));
    User { min_new_tokens: limits.0, max_new_tokens: limits.1, do_sample: Some(false), ..user("writer", family, task) }
}

fn tokens(report: &UserReport) -> Vec<i64> {
    report.outputs[0].values.iter().map(|&token| token as i64).collect()
}

fn text(report: &UserReport) -> &str {
    let Answer::Text { text, .. } = &report.answer else { panic!("{:?}", report.answer) };
    text
}

/// Compares a model in `folder` with the reference of `family`, on every engine. Returns rten's report.
fn check(family: &str, folder: &Path) -> UserReport {
    let reports = engines().into_iter().map(|engine| (engine.name(), check_on(engine, family, folder)));
    let mut reports: HashMap<_, _> = reports.collect();
    reports.remove(RtenEngine::NAME).unwrap()
}

fn check_on(engine: Arc<dyn Engine>, family: &str, folder: &Path) -> UserReport {
    let greedy = greedy(family);
    let runtime = Runtime::new(LocalStore::builder().build(), Arc::clone(&engine));
    let model = runtime.open(folder).unwrap();
    let encoded = model.text().unwrap().encode(&[&greedy.text]).unwrap();
    assert_eq!(encoded.ids.as_i64().unwrap(), greedy.ids, "{family}");
    let user = writer(family, greedy.tokens.len());
    let inputs = Inputs::default().with_text(&greedy.text);
    let mut streamed = String::new();
    let mut on_text = |piece: &str| {
        streamed.push_str(piece);
        Ok(())
    };
    let holder = runtime.store().holder("writer");
    let (report, _) = run_user_streaming(&model, &user, &inputs, &holder, &mut on_text).unwrap();
    let end = model.json("generation_config.json").unwrap().unwrap()["eos_token_id"].clone();
    let mut expected = greedy.tokens.clone();
    // The end token is not part of our result.
    expected.pop_if(|last| end == json!(*last));
    assert_eq!(tokens(&report), expected, "{family}");
    assert_eq!(text(&report).trim_start(), greedy.text_of_tokens.trim_start(), "{family}");
    assert_eq!(streamed, text(&report), "{family}");
    let Answer::Text { tokens: count, prompt_tokens, .. } = report.answer else { panic!("text") };
    assert_eq!((count, prompt_tokens), (expected.len(), greedy.ids.len()), "{family}");
    // A second run is answered from the store, as a whole.
    let mut pieces = String::new();
    let (again, _) = run_user_streaming(&model, &user, &inputs, &holder, &mut |piece| {
        pieces.push_str(piece);
        Ok(())
    })
    .unwrap();
    assert!(again.outputs == report.outputs && pieces == streamed && !again.stages.last().unwrap().computed);
    // A private copy gives the same.
    let private = Model::open(folder, StageSource::Private(engine.into(), FileMode::Read)).unwrap();
    assert_eq!(run_user(&private, &user, &inputs, &holder).unwrap().outputs, report.outputs, "{family}");
    report
}

#[test]
fn chat_of_a_message_is_the_text_that_the_template_makes_of_it() {
    let folder = tempfile::tempdir().unwrap();
    copy(&tiny("llama"), folder.path());
    let chats: Value = serde_json::from_slice(&fs::read(fixtures().join("chat/chats.json")).unwrap()).unwrap();
    let case = chats.as_array().unwrap().iter().find(|case| case["template"] == "llama-2").unwrap();
    let run = |chat: Option<bool>, text: &str| {
        let runtime = runtime(LocalStore::builder());
        let model = runtime.open(folder.path()).unwrap();
        let writer = User { chat, max_new_tokens: Some(4), ..user("one", "llama", "text-generation") };
        run_user(&model, &writer, &Inputs::default().with_text(text), &runtime.store().holder("one"))
    };
    let text = case["text"].as_str().unwrap();
    let error = run(Some(true), text).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("one.chat")), "{error}");
    fs::copy(fixtures().join("chat/llama-2.jinja"), folder.path().join("chat_template.jinja")).unwrap();
    let count = |report: &UserReport| {
        let Answer::Text { prompt_tokens, .. } = report.answer else { panic!("{:?}", report.answer) };
        prompt_tokens
    };
    let chat = run(Some(true), text).unwrap();
    assert_eq!(count(&chat), case["ids"].as_array().unwrap().len());
    // The tokenizer adds the start token that the prompt has already.
    let prompt = case["prompt"].as_str().unwrap().strip_prefix("<s>").unwrap();
    assert_eq!(run(None, prompt).unwrap().outputs, chat.outputs);
    // A text is continued, unless a chat is wanted.
    assert_ne!(count(&run(None, text).unwrap()), count(&chat));
    let bert = runtime(LocalStore::builder());
    let user = User { chat: Some(true), ..user("one", "bert", "sentence-embedding") };
    let holder = bert.store().holder("one");
    let error =
        run_user(&bert.open(&tiny("bert")).unwrap(), &user, &Inputs::default().with_text("x"), &holder).unwrap_err();
    assert_eq!(error.field(), Some("one.chat"), "{error}");
}

#[test]
fn text_to_text_tokens_equal_the_reference() {
    for family in ["t5", "bart"] {
        let report = check(family, &tiny(family));
        // Each cached row is copied at most once: when the first one gets room.
        let step = report.stages.iter().find(|stage| stage.role == "decoder_with_past").unwrap();
        assert_eq!(step.cache_copied_bytes, 2 * 2 * 16 * 4, "{family}");
    }
}

#[test]
fn merged_decoder_gives_the_tokens_of_the_pair() {
    let folder = tempfile::tempdir().unwrap();
    copy(&tiny("t5"), folder.path());
    for graph in ["decoder_model", "decoder_with_past_model"] {
        fs::remove_file(folder.path().join(format!("onnx/{graph}.onnx"))).unwrap();
    }
    let report = check("t5", folder.path());
    assert_eq!(report.stages.last().unwrap().role, "decoder_merged");
    assert!(report.stages.last().unwrap().cache_copied_bytes <= 2 * 2 * 16 * 4, "{:?}", report.stages);
}

#[test]
fn causal_tokens_equal_the_reference() {
    for family in CAUSAL {
        check(family, &tiny(family));
    }
}

#[test]
fn users_share_the_prompt_and_differ_in_the_settings() {
    let runtime = runtime(LocalStore::builder());
    let model = runtime.open(&tiny("llama")).unwrap();
    let holder = runtime.store().holder("writer");
    let inputs = Inputs::default().with_text(greedy("llama").text);
    let run = |user: &User| run_user_keeping(&model, user, &inputs, &holder).unwrap().0;
    let published = || runtime.store().stats().total_tensors;
    let first = run(&writer("llama", 4));
    let before = published();
    let second = run(&writer("llama", 6));
    // The second decoding published its tokens only: the prompt's results were there.
    assert_eq!(published(), before + 1);
    assert_eq!(tokens(&second)[..4], tokens(&first)[..]);
    assert!(second.notices.iter().any(|notice| notice.contains("max_new_tokens")), "{:?}", second.notices);
}

#[test]
fn seeds_decide_sampled_texts() {
    let inputs = Inputs::default().with_text(greedy("llama").text);
    let sampled = |seed: Option<u64>| {
        let runtime = runtime(LocalStore::builder());
        let model = runtime.open(&tiny("llama")).unwrap();
        let user = User {
            do_sample: None,
            seed,
            top_k: Some(0),
            temperature: Some(2.0),
            top_p: Some(1.0),
            ..writer("llama", 12)
        };
        run_user(&model, &user, &inputs, &runtime.store().holder("writer")).unwrap()
    };
    assert_eq!(tokens(&sampled(Some(1))), tokens(&sampled(Some(1))));
    assert_ne!(tokens(&sampled(Some(1))), tokens(&sampled(Some(2))));
    let unseeded = sampled(None);
    assert_eq!(tokens(&unseeded), tokens(&sampled(Some(0))));
    assert!(unseeded.notices.iter().any(|notice| notice.contains("seed 0")), "{:?}", unseeded.notices);
}

/// The scores of each sampled step, before and after transformers' processors.
#[test]
fn scores_equal_those_of_the_reference() {
    let folder = tiny("llama");
    let file = json_of(&folder.join("greedy.json"));
    let configured = json_of(&folder.join("generation_config.json"));
    let bytes = fs::read(folder.join("sampled.safetensors")).unwrap();
    let arrays = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |name: &str| -> Vec<f32> {
        let data = arrays.tensor(name).unwrap();
        data.data().as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    };
    let prompt = ids(&file["ids"]);
    let cases = file["sampled"].as_array().unwrap();
    assert!(cases.len() >= 6);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let of = |name: &str| case["parameters"].get(name).or(configured.get(name)).cloned();
        let number = |name: &str, default: f64| of(name).map_or(default, |value| value.as_f64().unwrap());
        let list = |name: &str| of(name).map_or_else(Vec::new, |value| ids(&value));
        let settings = Settings {
            min: 3,
            ends: list("eos_token_id"),
            suppressed: list("suppress_tokens"),
            suppressed_first: list("begin_suppress_tokens"),
            repetition_penalty: number("repetition_penalty", 1.0) as f32,
            no_repeat_ngram: number("no_repeat_ngram_size", 0.0) as usize,
            sampling: Some(Sampling {
                temperature: number("temperature", 1.0) as f32,
                top_k: number("top_k", 50.0) as usize,
                top_p: number("top_p", 1.0) as f32,
                min_p: number("min_p", 0.0) as f32,
                seed: 0,
            }),
            ..Settings::greedy(3)
        };
        let tokens = ids(&case["tokens"]);
        for step in 0..3 {
            let mut scores = floats(&format!("{name}.{step}.logits"));
            process(&mut scores, &settings, &prompt, &tokens[..step]);
            let reference = floats(&format!("{name}.{step}.scores"));
            for (token, (given, expected)) in scores.iter().zip(&reference).enumerate() {
                let close = (given - expected).abs() <= 1e-5 * expected.abs().max(1.0);
                assert!(given == expected || close, "{name} step {step} token {token}: {given} {expected}");
            }
            assert!(reference.iter().any(|score| score.is_infinite()), "{name}: the end token is excluded");
        }
    }
}

fn set(folder: &Path, file: &str, field: &str, value: Value) {
    let mut json = json_of(&folder.join(file));
    json[field] = value;
    fs::write(folder.join(file), serde_json::to_vec(&json).unwrap()).unwrap();
}

#[test]
fn parameters_of_the_task_are_read_and_reported() {
    let inputs = Inputs::default().with_text(greedy("t5").text);
    let runtime = runtime(LocalStore::builder());
    let model = runtime.open(&tiny("t5")).unwrap();
    let run = |task: &str| run_user(&model, &user("one", "t5", task), &inputs, &runtime.store().holder("one")).unwrap();
    let summary = run("summarization");
    let Answer::Text { tokens, prompt_tokens, .. } = summary.answer else { panic!("text") };
    // The prefix of the task has tokens; max_length includes the start token.
    assert!(prompt_tokens > greedy("t5").ids.len() && tokens <= 11);
    assert!(summary.notices.iter().any(|notice| notice.contains("num_beams = 4")), "{:?}", summary.notices);
    let Answer::Text { prompt_tokens, .. } = run("translation_en_to_de").answer else { panic!("text") };
    assert_eq!(prompt_tokens, greedy("t5").ids.len(), "config.json has no parameters for this pair");
}

#[test]
fn bad_models_and_options_are_refused_by_name() {
    let refused = |family: &str, change: &dyn Fn(&Path), user: User| {
        let folder = tempfile::tempdir().unwrap();
        copy(&tiny(family), folder.path());
        change(folder.path());
        let runtime = runtime(LocalStore::builder());
        let model = runtime.open(folder.path()).unwrap();
        let inputs = Inputs::default().with_text(greedy(family).text);
        run_user(&model, &user, &inputs, &runtime.store().holder("one")).unwrap_err()
    };
    // A decoder without past.
    let error = refused(
        "t5",
        &|folder| {
            fs::remove_file(folder.join("onnx/decoder_model_merged.onnx")).unwrap();
            fs::remove_file(folder.join("onnx/decoder_with_past_model.onnx")).unwrap();
        },
        writer("t5", 4),
    );
    assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("decoder_with_past_model"), "{error}");
    // A graph of another model.
    let error = refused("llama", &|folder| set(folder, "config.json", "vocab_size", json!(500)), writer("llama", 4));
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("logits of 480"), "{error}");
    assert!(error.file().unwrap().ends_with("config.json") && error.field() == Some("vocab_size"), "{error}");
    // A tokenizer of another model.
    let error = refused("llama", &|folder| set(folder, "config.json", "vocab_size", json!(40)), writer("llama", 4));
    assert!(error.file().unwrap().ends_with("config.json") && error.field() == Some("vocab_size"), "{error}");
    let error = refused(
        "bart",
        &|folder| set(folder, "generation_config.json", "eos_token_id", json!("two")),
        writer("bart", 4),
    );
    assert!(error.file().unwrap().ends_with("generation_config.json"), "{error}");
    assert_eq!(error.field(), Some("eos_token_id"));
    // More tokens than the model has positions.
    let error =
        refused("llama", &|_| {}, User { max_new_tokens: Some(128), min_new_tokens: None, ..writer("llama", 4) });
    assert_eq!(error.field(), Some("writer.max_new_tokens"), "{error}");
    let error = refused("llama", &|_| {}, User { temperature: Some(0.5), ..writer("llama", 4) });
    assert_eq!(error.field(), Some("writer.temperature"), "{error}");
}

#[test]
fn reader_of_the_stream_can_stop_it() {
    let runtime = runtime(LocalStore::builder());
    let model = runtime.open(&tiny("gpt2")).unwrap();
    let inputs = Inputs::default().with_text(greedy("gpt2").text);
    let holder = runtime.store().holder("writer");
    let mut pieces = 0;
    let mut stop = |_: &str| {
        pieces += 1;
        if pieces == 2 { Err(cotensor_core::Error::new(ErrorKind::Conflict, "enough")) } else { Ok(()) }
    };
    let user = writer("gpt2", 16);
    assert_eq!(run_user_streaming(&model, &user, &inputs, &holder, &mut stop).unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(pieces, 2);
    // The unfinished decoding is not a result: the next call computes it.
    assert!(run_user(&model, &user, &inputs, &holder).unwrap().stages.last().unwrap().computed);
}
