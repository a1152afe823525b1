//! Greedy decoding gives the tokens of the reference implementation with the same weights.

use crate::support::onnx::engines;
use cotensor_core::{Error, ErrorKind};
use cotensor_model::Runtime;
use cotensor_model::engine::{Engine, FileMode, LoadedGraph, OwnMemory, RtenEngine};
use cotensor_model::family::{Source, family_of};
use cotensor_model::pipeline::decode::{Decoder, DecoderGraph, Settings, decode};
use cotensor_model::tensor::{Array, Value};
use cotensor_store::LocalStore;
use safetensors::SafeTensors;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The bytes of the cache that one token adds: 2 layers, keys and values, 32 elements of 4 bytes.
const ROW_BYTES: u64 = 2 * 2 * 32 * 4;

struct Fixture {
    folder: PathBuf,
    prompt: Vec<i64>,
    tokens: Vec<i64>,
    features: Value,
}

fn fixture() -> Fixture {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/whisper");
    let greedy: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("greedy.json")).unwrap()).unwrap();
    let list = |name: &str| greedy[name].as_array().unwrap().clone();
    let ids = |name: &str| -> Vec<i64> { list(name).iter().map(|id| id.as_i64().unwrap()).collect() };
    let tokens = ids("tokens");
    // A fixture with repeated tokens or nearly equal logits would prove little.
    assert!(tokens.iter().collect::<BTreeSet<_>>().len() >= 8, "{tokens:?}");
    assert!(list("margins").iter().all(|margin| margin.as_f64().unwrap() > 1e-2));
    let references = std::fs::read(folder.join("reference.safetensors")).unwrap();
    let references = SafeTensors::deserialize(&references).unwrap();
    let features = references.tensor(greedy["encoder_input"].as_str().unwrap()).unwrap();
    let values = features.data().as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    let features = Value::from(Array::f32(features.shape(), values).unwrap());
    Fixture { folder, prompt: ids("prompt"), tokens, features }
}

/// Whisper's decoder on two graphs.
fn decoder<'a>(graphs: [&'a dyn LoadedGraph; 2], values: &'a HashMap<Source, Value>) -> Decoder<'a> {
    let family = family_of("whisper").unwrap();
    let half = |graph, role| DecoderGraph { graph, def: family.stage(role).unwrap() };
    let def = family.decoder.as_ref().unwrap();
    let [prompt, step] = graphs;
    Decoder { def, prompt: half(prompt, "decoder"), step: half(step, "decoder_with_past"), values, embed: None }
}

fn encoded(value: Value) -> HashMap<Source, Value> {
    HashMap::from([(Source::stage("encoder", "last_hidden_state"), value)])
}

#[test]
fn tokens_equal_the_reference_without_a_store() {
    engines().iter().for_each(|engine| check_without_a_store(&**engine));
}

fn check_without_a_store(engine: &dyn Engine) {
    let fixture = fixture();
    let open = |name: &str| -> Arc<dyn LoadedGraph> {
        engine.load_file(&fixture.folder.join(format!("onnx/{name}.onnx")), FileMode::Read).unwrap()
    };
    let (prompt, step) = (open("decoder_model"), open("decoder_with_past_model"));
    let inputs = [("input_features", fixture.features.tensor().unwrap())];
    let values = encoded(open("encoder_model").run_alone(&inputs, &["last_hidden_state"]).unwrap().remove(0).into());
    let decoder = decoder([&*prompt, &*step], &values);
    let memory = OwnMemory::default();
    let start = &fixture.prompt;
    let tokens = |settings: &Settings| {
        let (state, scores) = decoder.start(start, 448, &memory).unwrap();
        let mut seen = Vec::new();
        let mut on_token = |token| {
            seen.push(token);
            Ok(())
        };
        let decoded = decode(state, scores, start, settings, &mut on_token).unwrap();
        assert_eq!(decoded.tokens, seen, "each token is given as soon as it is chosen");
        decoded
    };
    let all = fixture.tokens.len();
    let whole = tokens(&Settings::greedy(all));
    assert_eq!(whole.tokens, fixture.tokens);
    let prompt_rows = fixture.prompt.len() as u64;
    let copied_rows = match engine.name() {
        // The cache of the prompt gets room once. No step copies it.
        RtenEngine::NAME => prompt_rows,
        // Each step copies the rows before it.
        _ => (0..all as u64 - 1).map(|step| prompt_rows + step).sum(),
    };
    assert_eq!(whole.copied_bytes, copied_rows * ROW_BYTES, "{}", engine.name());

    // Limits and forbidden tokens.
    assert_eq!(tokens(&Settings::greedy(5)).tokens, fixture.tokens[..5]);
    let end = fixture.tokens[3];
    let ending = Settings { ends: vec![end], ..Settings::greedy(all) };
    assert_eq!(tokens(&ending).tokens, fixture.tokens[..3], "the end token is omitted");
    let longer = tokens(&Settings { min: 6, ..ending }).tokens;
    assert!(longer.len() >= 6 && longer[..3] == fixture.tokens[..3] && !longer.contains(&end), "{longer:?}");
    let first = fixture.tokens[0];
    let other = tokens(&Settings { suppressed_first: vec![first], ..Settings::greedy(2) }).tokens;
    assert_ne!(other[0], first);

    // A caller stops the decoding.
    let (state, scores) = decoder.start(start, 448, &memory).unwrap();
    let mut left = 2;
    let mut stop = |_| {
        left -= 1;
        if left == 0 { Err(Error::new(ErrorKind::Conflict, "stopped")) } else { Ok(()) }
    };
    let stopped = decode(state, scores, start, &Settings::greedy(all), &mut stop);
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn cache_of_a_stored_prompt_is_continued() {
    engines().iter().for_each(|engine| check_continued_prompt(&**engine));
}

fn check_continued_prompt(engine: &dyn Engine) {
    let fixture = fixture();
    let open = |name: &str| -> Arc<dyn LoadedGraph> {
        engine.load_file(&fixture.folder.join(format!("onnx/{name}.onnx")), FileMode::Read).unwrap()
    };
    let (prompt, step) = (open("decoder_model"), open("decoder_with_past_model"));
    let inputs = [("input_features", fixture.features.tensor().unwrap())];
    let values = encoded(open("encoder_model").run_alone(&inputs, &["last_hidden_state"]).unwrap().remove(0).into());
    let decoder = decoder([&*prompt, &*step], &values);
    let memory = OwnMemory::default();
    let start = &fixture.prompt;
    let read = decoder.read_prompt(start, &memory).unwrap();
    let read: Vec<Value> = read.into_iter().map(|output| output.into_array().unwrap().into()).collect();
    for _ in 0..2 {
        let (state, scores) = decoder.resume(&read, start.len(), 448, &memory).unwrap();
        let settings = Settings::greedy(fixture.tokens.len());
        let decoded = decode(state, scores, start, &settings, &mut |_| Ok(())).unwrap();
        assert_eq!(decoded.tokens, fixture.tokens);
        // rten copies what it extends once, and reads the encoder's part in place.
        let prompt_bytes = fixture.prompt.len() as u64 * ROW_BYTES;
        assert!(decoded.copied_bytes >= prompt_bytes);
        assert!(decoded.copied_bytes == prompt_bytes || engine.name() != RtenEngine::NAME);
    }
    assert_eq!(decoder.resume(&read[1..], 4, 448, &memory).err().unwrap().kind(), ErrorKind::Corrupt);
}

#[test]
fn graphs_that_do_not_fit_are_refused() {
    let fixture = fixture();
    let engine = RtenEngine::new(Some(1));
    let open = |name: &str| -> Arc<dyn LoadedGraph> {
        engine.load_file(&fixture.folder.join(format!("onnx/{name}.onnx")), FileMode::Read).unwrap()
    };
    let (prompt, step) = (open("decoder_model"), open("decoder_with_past_model"));
    let values = encoded(Array::f32([1, 3, 32], vec![0.5; 96]).unwrap().into());
    let start = |graphs, values| {
        let decoder = decoder(graphs, values);
        decoder.start(&fixture.prompt, 448, &OwnMemory::default()).map(drop)
    };
    let error = start([&*prompt, &*prompt], &values).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("with past"), "{error}");
    let error = start([&*step, &*step], &values).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.field().unwrap().contains(".encoder."), "{error}");
    let error = start([&*prompt, &*step], &HashMap::new()).unwrap_err();
    assert!(error.to_string().contains("encoder.last_hidden_state"), "{error}");
}

#[test]
fn tokens_equal_the_reference_with_a_store() {
    engines().into_iter().for_each(check_with_a_store);
}

fn check_with_a_store(engine: Arc<dyn Engine>) {
    let fixture = fixture();
    let runtime = Runtime::new(LocalStore::builder().build(), engine);
    let model = runtime.open(&fixture.folder).unwrap();
    let stage = |role: &str| model.stage(role).unwrap();
    let holder = runtime.store().holder("greedy");
    let encoder = stage("encoder");
    let mut run = encoder.run(&[("input_features", &fixture.features)], &["last_hidden_state"], &holder).unwrap();
    let encoder_output = run.outputs.remove(0);
    assert!(encoder_output.lease().is_some(), "the decoder reads the encoder's output in the store");
    let (prompt, step) = (stage("decoder"), stage("decoder_with_past"));
    let values = encoded(encoder_output);
    let decoder = decoder([&**prompt.graph(), &**step.graph()], &values);
    let memory = OwnMemory::default();
    let start = &fixture.prompt;
    let (state, scores) = decoder.start(start, 448, &memory).unwrap();
    let settings = Settings::greedy(fixture.tokens.len());
    let decoded = decode(state, scores, start, &settings, &mut |_| Ok(())).unwrap();
    assert_eq!(decoded.tokens, fixture.tokens);
}
