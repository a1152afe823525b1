//! One run of an encoder through Cotensor, beside plain onnxruntime at its default settings and torch.

use crate::inputs::{OUTPUT, bert, vit};
use crate::peer::Peer;
use crate::{ENGINE, at_most, median, model, ms, runtime, timed};
use cotensor::model::tensor::Value;
use std::path::Path;

const ROUNDS: i64 = 25;

type Inputs = fn(i64) -> Vec<(&'static str, Value)>;

/// A model, its name in the output, and the kind of input that the peers make.
const MODELS: [(&str, &str, Inputs); 2] =
    [("bert-base", "BERT-base, 128 tokens", bert), ("vit-base", "ViT-base, 224", vit)];

pub(crate) fn run(cache: &Path) {
    let Some(runtime) = runtime(cache, ENGINE) else { return };
    let holder = runtime.store().holder("bench");
    for (name, title, inputs) in MODELS {
        let folder = model(cache, name);
        let stage = runtime.open(&folder).unwrap().stage("encoder").unwrap();
        let graph = folder.join("onnx/model.onnx").display().to_string();
        let mut plain = Peer::start("onnxruntime", &[name, &graph]);
        let mut torch = Peer::start("torch", &[name]);
        let (mut ours, mut theirs, mut eager) = (Vec::new(), Vec::new(), Vec::new());
        // The first round warms up.
        for round in 0..=ROUNDS {
            let given = inputs(round);
            let given: Vec<(&str, &Value)> = given.iter().map(|(name, value)| (*name, value)).collect();
            let (time, run) = timed(|| stage.run(&given, &[OUTPUT], &holder).unwrap());
            assert!(run.computed);
            let others = [&mut plain, &mut torch].map(|peer| peer.as_mut().map(Peer::run));
            if round > 0 {
                ours.push(ms(time));
                theirs.extend(others[0]);
                eager.extend(others[1]);
            }
        }
        let ours = median(ours);
        println!("  {ours:9.1}  {title}: ms through Cotensor");
        if plain.is_some() {
            let theirs = median(theirs);
            println!("  {theirs:9.1}  {title}: ms of plain onnxruntime");
            at_most(&format!("{title}: a run through Cotensor over plain onnxruntime"), ours / theirs, 1.05);
        }
        if torch.is_some() {
            let eager = median(eager);
            println!("  {eager:9.1}  {title}: ms of torch eager");
            let what = format!("{title}: a run through Cotensor over torch eager");
            match name {
                "bert-base" => at_most(&what, ours / eager, 0.75),
                _ => println!("  {:9.3}  {what}", ours / eager),
            }
        }
    }
}
