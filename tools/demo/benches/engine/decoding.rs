//! Greedy decoding with T5-base through Cotensor, beside a plain loop on the same engine. All begin with equal features
//! of an encoder, so they choose equal tokens.

use crate::peer::Peer;
use crate::{ENGINE, at_least, median, mib, model, ms, runtime, timed};
use cotensor::model::engine::{OwnMemory, RtenEngine};
use cotensor::model::family::Source;
use cotensor::model::pipeline::decode::{Decoded, Decoder, DecoderGraph, Settings, decode};
use cotensor::model::tensor::{Array, Value};
use rten::{Model, ModelOptions, NodeId, ValueOrView};
use rten_tensor::prelude::*;
use rten_tensor::{NdTensor, Tensor};
use std::collections::HashMap;
use std::path::Path;

/// Tokens of the encoder and of the answer, and values of each of the encoder's tokens.
const ROWS: usize = 64;
const TOKENS: usize = 96;
const WIDTH: usize = 768;

const ROUNDS: usize = 5;

pub(crate) fn run(cache: &Path) {
    let folder = model(cache, "t5-base");
    let features: Vec<f32> = (0..ROWS * WIDTH).map(|at| ((at * 7919) % 1000) as f32 / 500.0 - 1.0).collect();
    let onnx = folder.join("onnx");
    let plain = PlainRten::open(&onnx);
    compare(cache, RtenEngine::NAME, &features, || {
        let (time, tokens) = timed(|| plain.decode(&features));
        (ms(time), tokens)
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), features.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let path = |path: &Path| path.display().to_string();
    let Some(mut peer) = Peer::start("decoding", &[&path(&onnx), &path(file.path()), &TOKENS.to_string()]) else {
        return;
    };
    compare(cache, ENGINE, &features, || {
        let line = peer.ask();
        let (time, tokens) = line.split_once(' ').unwrap();
        (time.parse().unwrap(), tokens.split(' ').map(|token| token.parse().unwrap()).collect())
    });
}

/// Decodes through Cotensor and by `plain`, which gives its milliseconds and its tokens.
fn compare(cache: &Path, engine: &str, features: &[f32], mut plain: impl FnMut() -> (f64, Vec<i64>)) {
    let Some(runtime) = runtime(cache, engine) else { return };
    let model = runtime.open(&model(cache, "t5-base")).unwrap();
    let family = model.family();
    let stages = ["decoder", "decoder_with_past"].map(|role| (model.stage(role).unwrap(), family.stage(role).unwrap()));
    let features = Value::from(Array::f32([1, ROWS, WIDTH], features.to_vec()).unwrap());
    let mask = Value::from(Array::i64([1, ROWS], vec![1; ROWS]).unwrap());
    let values = HashMap::from([(Source::stage("encoder", "last_hidden_state"), features), (Source::TextMask, mask)]);
    let [prompt, step] = stages.each_ref().map(|(stage, def)| DecoderGraph { graph: &**stage.graph(), def });
    let decoder = Decoder { def: family.decoder.as_ref().unwrap(), prompt, step, values: &values, embed: None };
    let memory = OwnMemory::default();
    let ours = || -> Decoded {
        let (state, scores) = decoder.start(&[0], TOKENS + 1, &memory).unwrap();
        decode(state, scores, &[0], &Settings::greedy(TOKENS), &mut |_| Ok(())).unwrap()
    };
    let (mut taken, mut theirs, mut copied) = (Vec::new(), Vec::new(), 0);
    for round in 0..=ROUNDS {
        let (time, decoded) = timed(ours);
        let (other, tokens) = plain();
        assert_eq!(decoded.tokens, tokens, "{engine}");
        copied = decoded.copied_bytes;
        if round > 0 {
            taken.push(ms(time));
            theirs.push(other);
        }
    }
    let per_second = |times: Vec<f64>| TOKENS as f64 / median(times) * 1e3;
    let (taken, theirs) = (per_second(taken), per_second(theirs));
    println!("  {taken:9.1}  {engine}: tokens per second through Cotensor, T5-base");
    println!("  {theirs:9.1}  {engine}: tokens per second of a plain loop");
    at_least(&format!("{engine}: tokens per second through Cotensor over a plain loop"), taken / theirs, 0.95);
    let step = mib(copied) / (TOKENS - 1) as f64;
    println!(
        "  {step:9.3}  {engine}: MiB of the cache that the engine copies per step; at its end the cache has {:.3}",
        CACHE_MIB
    );
}

/// The cache of the answer at its end: keys and values of 12 layers.
const CACHE_MIB: f64 = (2 * 12 * TOKENS * WIDTH * 4) as f64 / (1 << 20) as f64;

/// T5's decoder on rten alone: each run gets the values of the run before as its own.
struct PlainRten {
    decoder: Model,
    step: Model,
}

impl PlainRten {
    fn open(folder: &Path) -> Self {
        let open = |name: &str| ModelOptions::with_all_ops().load_file(folder.join(name)).unwrap();
        Self { decoder: open("decoder_model.onnx"), step: open("decoder_with_past_model.onnx") }
    }

    fn decode(&self, features: &[f32]) -> Vec<i64> {
        let hidden = Tensor::from_data(&[1, ROWS, WIDTH], features.to_vec());
        let mask = Tensor::from_data(&[1, ROWS], vec![1i32; ROWS]);
        let mut tokens = vec![0];
        let mut cache = HashMap::new();
        while tokens.len() <= TOKENS {
            let is_first = tokens.len() == 1;
            let model = if is_first { &self.decoder } else { &self.step };
            let ids = Tensor::from_data(&[1, 1], vec![tokens[tokens.len() - 1] as i32]);
            let position = Tensor::from_data(&[1], vec![tokens.len() as i32 - 1]);
            let name = |id: NodeId| model.node_info(id).unwrap().name().unwrap().to_owned();
            let mut fixed = Vec::new();
            let mut inputs: Vec<(NodeId, ValueOrView<'_>)> = Vec::new();
            for &id in model.input_ids() {
                let name = name(id);
                let value = match name.as_str() {
                    "input_ids" => ids.view().into(),
                    "encoder_hidden_states" => hidden.view().into(),
                    "encoder_attention_mask" => mask.view().into(),
                    "cache_position" => position.view().into(),
                    // The cross-attention cache does not grow: it is read in place.
                    past if past.contains(".encoder.") => {
                        fixed.push((id, name));
                        continue;
                    }
                    past => ValueOrView::from(cache.remove(past).unwrap()),
                };
                inputs.push((id, value));
            }
            for (id, name) in &fixed {
                let value: &rten::Value = &cache[name];
                inputs.push((*id, ValueOrView::View(value.as_view())));
            }
            let made = model.run(inputs, model.output_ids(), None).unwrap();
            for (&id, value) in model.output_ids().iter().zip(made) {
                let name = name(id);
                if name == "logits" {
                    let logits: NdTensor<f32, 3> = value.try_into().unwrap();
                    let scores = logits.slice((0, 0));
                    let best = scores.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
                    tokens.push(best.unwrap().0 as i64);
                } else {
                    cache.insert(name.replace("present", "past_key_values"), value);
                }
            }
        }
        tokens.split_off(1)
    }
}
