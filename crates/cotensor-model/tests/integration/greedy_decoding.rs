//! Greedy decoding gives the tokens of the reference implementation with the same weights.

use cotensor_model::Runtime;
use cotensor_model::engine::{Engine, FileMode, LoadedGraph, OwnMemory, RtenEngine};
use cotensor_model::pipeline::generate::{Decoder, Limits, greedy};
use cotensor_model::tensor::Array;
use cotensor_model::tensor::Value;
use cotensor_store::EmbeddedStore;
use safetensors::SafeTensors;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Not a token of the fixture: decoding continues to the maximum.
const NO_END: i64 = -1;

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

fn limits(min: usize, max: usize, end: i64) -> Limits {
    Limits { min, max, end }
}

#[test]
fn tokens_equal_the_reference_without_a_store() {
    let fixture = fixture();
    let engine = RtenEngine::new(Some(2));
    let open = |name: &str| -> Arc<dyn LoadedGraph> {
        engine.load_file(&fixture.folder.join(format!("onnx/{name}.onnx")), FileMode::Read).unwrap()
    };
    let (decoder, with_past) = (open("decoder_model"), open("decoder_with_past_model"));
    let inputs = [("input_features", fixture.features.tensor().unwrap())];
    let encoded = open("encoder_model").run_alone(&inputs, &["last_hidden_state"]).unwrap().remove(0);
    let encoded = Value::from(encoded);
    let decode = |limits: Limits, forbidden: &dyn Fn(usize, i64) -> bool| {
        let graphs = Decoder { prompt: &*decoder, step: &*with_past };
        greedy(&graphs, &fixture.prompt, &encoded, &limits, forbidden, &OwnMemory::default()).unwrap()
    };
    let all = fixture.tokens.len();
    assert_eq!(decode(limits(0, all, NO_END), &|_, _| false), fixture.tokens);

    // Limits and forbidden tokens.
    assert_eq!(decode(limits(0, 5, NO_END), &|_, _| false), fixture.tokens[..5]);
    let end = fixture.tokens[3];
    assert_eq!(decode(limits(0, all, end), &|_, _| false), fixture.tokens[..3], "the end token is omitted");
    let longer = decode(limits(6, all, end), &|_, _| false);
    assert!(longer.len() >= 6 && longer[..3] == fixture.tokens[..3] && !longer.contains(&end), "{longer:?}");
    let first = fixture.tokens[0];
    let other = decode(limits(0, 2, NO_END), &|step, token| step == 0 && token == first);
    assert_ne!(other[0], first);
}

#[test]
fn tokens_equal_the_reference_with_a_store() {
    let fixture = fixture();
    let runtime = Runtime::new(EmbeddedStore::builder().build(), Arc::new(RtenEngine::new(Some(2))));
    let model = runtime.open(&fixture.folder).unwrap();
    let stage = |role: &str| model.stage(role).unwrap();
    let holder = runtime.store().holder("greedy");
    let encoder = stage("encoder");
    let mut run = encoder.run(&[("input_features", &fixture.features)], &["last_hidden_state"], &holder).unwrap();
    let encoded = run.outputs.remove(0);
    assert!(encoded.lease().is_some(), "the decoder reads the encoder's output in the store");
    let (decoder, with_past) = (stage("decoder"), stage("decoder_with_past"));
    let limits = limits(0, fixture.tokens.len(), NO_END);
    let graphs = Decoder { prompt: &**decoder.graph(), step: &**with_past.graph() };
    let memory = OwnMemory::default();
    let tokens = greedy(&graphs, &fixture.prompt, &encoded, &limits, |_, _| false, &memory).unwrap();
    assert_eq!(tokens, fixture.tokens);
}
