//! Variants of a graph (float16, int8, 4 bits) give what plain onnxruntime gives for the same file.

use crate::support::onnx::engines;
use crate::support::{tiny, user};
use cotensor_core::ErrorKind;
use cotensor_model::Runtime;
use cotensor_model::engine::{Engine, OwnMemory, RtenEngine};
use cotensor_model::model::{Model, StageSource};
use cotensor_model::pipeline::decode::{Decoder, DecoderGraph};
use cotensor_model::pipeline::{Inputs, User, run_user};
use cotensor_store::LocalStore;
use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

/// The variants, and the largest difference of a logit on onnxruntime and on other engines, in standard deviations of the
/// reference. float16 is rounded at other places by other kernels.
const VARIANTS: [(&str, f64, f64); 3] = [("fp16", 5e-3, 2e-2), ("int8", 1e-4, 1e-4), ("q4", 1e-4, 1e-4)];

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// Decodes on one engine. False if the engine refuses the graph.
fn check(engine: &Arc<dyn Engine>, variant: &str, reference: &Value, tolerance: f64) -> bool {
    let runtime = Runtime::new(LocalStore::builder().build(), Arc::clone(engine));
    let source = StageSource::Shared(Arc::clone(runtime.loader()));
    let model = Model::open_variant(&tiny("qwen2"), source, Some(variant)).unwrap();
    let stage = match model.stage("decoder") {
        Ok(stage) => stage,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            return false;
        }
    };
    let family = model.family();
    let graph = DecoderGraph { graph: &**stage.graph(), def: family.stage("decoder").unwrap() };
    let values = HashMap::new();
    let def = family.decoder.as_ref().unwrap();
    let decoder = Decoder { def, prompt: graph, step: graph, values: &values, embed: None };
    let ids: Vec<i64> = numbers(&reference["ids"]).iter().map(|&id| id as i64).collect();
    let (_, scores) = decoder.start(&ids, 128, &OwnMemory::default()).unwrap();
    let logits = numbers(&reference[variant]["logits"]);
    let mean = logits.iter().sum::<f64>() / logits.len() as f64;
    let std = (logits.iter().map(|logit| (logit - mean).powi(2)).sum::<f64>() / logits.len() as f64).sqrt();
    assert_eq!(scores.len(), logits.len());
    let difference = scores.iter().zip(&logits).map(|(&a, b)| (f64::from(a) - b).abs()).fold(0.0, f64::max) / std;
    println!("{} {variant}: {difference:.1e}", engine.name());
    assert!(difference <= tolerance, "{} {variant}: {difference:e}", engine.name());

    let tokens: Vec<f32> = numbers(&reference[variant]["tokens"]).iter().map(|&token| token as f32).collect();
    let limit = Some(tokens.len());
    let writer = User { max_new_tokens: limit, min_new_tokens: limit, ..user("writer", "qwen2", "text-generation") };
    let inputs = Inputs::default().with_text("The harbour wakes");
    let report = run_user(&model, &writer, &inputs, &runtime.store().holder("writer")).unwrap();
    assert_eq!(report.outputs[0].values, tokens, "{} {variant}", engine.name());
    true
}

#[test]
fn variants_equal_plain_onnxruntime() {
    let reference: Value = serde_json::from_slice(&fs::read(tiny("qwen2").join("variants.json")).unwrap()).unwrap();
    for (variant, tolerance, of_others) in VARIANTS {
        for engine in engines() {
            let is_rten = engine.name() == RtenEngine::NAME;
            let ran = check(&engine, variant, &reference, if is_rten { of_others } else { tolerance });
            assert!(ran || is_rten, "{} runs every graph", engine.name());
        }
    }
}
