//! Spaces, hashes of weights, identities of inputs, keys of results and decoded tokens in protocol/keys.json. `make protocol` writes the file. The test
//! of the browser package reads it, too: equal keys in every language are equal results.

use crate::support::{runtime, tiny};
use cotensor_core::{ContentHash, DType};
use cotensor_graph::key::{Execution, StageIdentity, array_identity, output_identity};
use cotensor_model::preprocess::family::ModelConfig;
use cotensor_model::preprocess::generation::{GenerationConfig, languages, speech_prompt};
use cotensor_model::stage::Stage;
use cotensor_pipeline::{Decoding, User};
use cotensor_store::LocalStore;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Set to write the file.
const WRITE: &str = "COTENSOR_WRITE_PROTOCOL";
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../protocol/keys.json");

/// An engine that no machine has: the keys do not depend on the installed one.
fn execution(precision: DType, variant: &'static str) -> Execution<'static> {
    Execution { engine: "golden", version: "1.2", precision, variant }
}

/// A small array of each type, with its bytes.
fn arrays() -> Vec<(DType, Vec<usize>, Vec<u8>)> {
    let integers = |values: &[i64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    vec![
        (DType::I64, vec![1, 3], integers(&[101, -1, 102])),
        (DType::I64, vec![3], integers(&[101, -1, 102])),
        (DType::F32, vec![2, 2], floats(&[0.0, -1.5, 0.1, 3e8])),
        (DType::Bool, vec![2], vec![0, 1]),
        (DType::F32, vec![0, 4], vec![]),
    ]
}

fn described(stage: &Stage) -> Value {
    let (precision, space) = (stage.graph().precision(), stage.space().unwrap());
    let ports = |ports: &[cotensor_model::graph::Port]| ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>();
    let (inputs, outputs) = (ports(stage.graph().inputs()), ports(stage.graph().outputs()));
    let identities: Vec<ContentHash> =
        arrays().iter().map(|(dtype, shape, bytes)| array_identity(*dtype, shape, bytes)).collect();
    let bound: Vec<(&str, ContentHash)> =
        inputs.iter().enumerate().map(|(at, name)| (name.as_str(), identities[at % identities.len()])).collect();
    let identity = StageIdentity { space, execution: execution(precision, "") };
    let before = stage.before().map(|(before, _)| execution(before.graph().precision(), ""));
    let key = identity.key(before, &bound, &[&outputs[0]]);
    let once =
        StageIdentity { execution: execution(precision, "kernels"), ..identity }.key_once("decoding", &identities);
    let weights: Vec<Value> = stage.weights().iter().map(|(hash, bytes)| json!([hash.to_string(), bytes])).collect();
    json!({
        "role": stage.role, "kind": stage.kind.name(), "space": space.0.to_string(), "precision": precision.name(),
        "continues": stage.before().map(|(_, input)| input), "inputs": inputs, "outputs": outputs, "weights": weights,
        "key": key.to_string(), "output": output_identity(key, 0).to_string(), "key_once": once.to_string(),
    })
}

/// The step at which the end token is the likeliest, unless a text has ended before.
const END_STEP: usize = 40;

/// The scores of the tokens before step `step`. Exact in `float32`.
fn scores(step: usize, count: usize, end: usize) -> Vec<f32> {
    let mut scores: Vec<f32> =
        (0..count).map(|token| ((token * 7919 + step * 104_729) % 2048) as f32 / 128.0).collect();
    if step == END_STEP {
        scores[end] = 64.0;
    }
    scores
}

/// Texts that tiny Whisper's rules write from [`scores`].
fn decodings() -> Value {
    let file = |name: &str| serde_json::from_slice(&std::fs::read(tiny("whisper").join(name)).unwrap()).unwrap();
    let (values, found): (Value, Value) = (file("config.json"), file("generation_config.json"));
    let family = cotensor_model::family::family_of("whisper").unwrap();
    let config = ModelConfig { family, values: &values, folder: Path::new("") };
    let count = values["vocab_size"].as_u64().unwrap() as usize;
    let end = found["eos_token_id"].as_u64().unwrap() as usize;
    let requests = [
        (json!({"user": "u", "max_new_tokens": 30}), false),
        (json!({"user": "u"}), false),
        (json!({"user": "u", "max_new_tokens": 30}), true),
        (
            json!({"user": "u", "max_new_tokens": 30, "temperature": 0.75, "top_k": 40, "top_p": 0.875, "seed": 7}),
            false,
        ),
    ];
    let written = requests.map(|(request, timed)| {
        let plain = GenerationConfig::of(&config, Some(&found), "transcription").unwrap();
        let mut prompt = speech_prompt(&plain, Some(languages(&plain)[1].1), "transcribe").unwrap();
        let generation = if timed { plain.with_timestamps().unwrap().unwrap().0 } else { plain };
        prompt.extend(generation.token("no_timestamps_token_id").unwrap().filter(|_| !timed));
        let mut options = request.as_object().unwrap().clone();
        options.remove("user");
        let user = User { name: "u".to_owned(), ..User::with_options(&options).unwrap() };
        let settings = Decoding::new(&user, &generation, &config, prompt.len()).unwrap().settings;
        let mut tokens = Vec::new();
        while tokens.len() < settings.max {
            let token = settings.next_token(&mut scores(tokens.len(), count, end), &prompt, &tokens).unwrap();
            if settings.ends.contains(&token) {
                break;
            }
            tokens.push(token);
        }
        let (cut, hash) = (tokens.len() == settings.max, settings.hash().to_string());
        json!({"request": request, "timestamps": timed, "prompt": prompt, "tokens": tokens, "cut": cut, "settings": hash})
    });
    for cut in [false, true] {
        assert!(written.iter().any(|each| each["cut"] == cut), "texts that end, and texts that reach the most tokens");
    }
    json!({"vocabulary": count, "end": end, "end_step": END_STEP, "texts": written})
}

#[test]
fn golden_keys_are_equal() {
    let runtime = runtime(LocalStore::builder());
    let mut models = Map::new();
    for name in ["bert", "vit", "clip", "whisper"] {
        let model = runtime.open(&tiny(name)).unwrap();
        let mut stages = Vec::new();
        for def in model.family().stages_of_form(None, |file| tiny(name).join(file).is_file()) {
            let stage = model.stage(&def.role).unwrap();
            stages.extend(stage.before().map(|(before, _)| described(before)));
            stages.push(described(&stage));
        }
        assert!(!stages.is_empty(), "{name}");
        models.insert(name.to_owned(), Value::Array(stages));
    }
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let arrays = arrays().into_iter().map(|(dtype, shape, bytes)| {
        let identity = array_identity(dtype, &shape, &bytes).to_string();
        json!({"dtype": dtype.name(), "shape": shape, "bytes": hex(&bytes), "identity": identity})
    });
    let content = ContentHash::of(b"cotensor").to_string();
    let golden = json!({"models": models, "arrays": arrays.collect::<Vec<_>>(), "content_of_cotensor": content,
        "decodings": decodings()});
    let text = format!("{:#}\n", golden);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(FILE, &text).unwrap();
    }
    let known = std::fs::read_to_string(Path::new(FILE)).unwrap();
    assert!(known == text, "protocol/keys.json differs from the code: `make protocol` writes it");
}
