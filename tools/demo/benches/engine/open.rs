//! The time in which a further process opens BERT-base, after another one has made what the engines keep in the cache.

use crate::inputs::{OUTPUT, bert};
use crate::processes::start;
use crate::{ENGINE, at_most, median, model, ms, runtime, timed};
use cotensor::model::engine;
use cotensor::model::tensor::Value;
use std::path::Path;

const ROUNDS: usize = 9;

/// What a child prints, in milliseconds.
const STEPS: [&str; 3] = ["starting the engine", "opening the model", "the first run"];

pub(crate) fn run(cache: &Path) {
    model(cache, "bert-base");
    let engines: Vec<&str> = engine::names().filter(|engine| runtime(cache, engine).is_some()).collect();
    let mut taken = vec![[const { Vec::new() }; STEPS.len()]; engines.len()];
    // The first round makes the files of the cache.
    for round in 0..=ROUNDS {
        for (engine, steps) in engines.iter().zip(&mut taken) {
            let (mut child, mut lines) = start(cache, "open", engine, round);
            let line = lines.next().unwrap().unwrap();
            assert!(child.wait().unwrap().success());
            for (step, time) in steps.iter_mut().zip(line.split(' ')).filter(|_| round > 0) {
                step.push(time.parse::<f64>().unwrap());
            }
        }
    }
    for (engine, steps) in engines.iter().zip(taken) {
        let medians = steps.map(median);
        for (what, figure) in STEPS.iter().zip(medians) {
            println!("  {figure:9.1}  {engine}: ms for {what}");
        }
        if *engine == ENGINE {
            at_most("ms in which a second process opens BERT-base", medians[1], 200.0);
        }
    }
}

/// Prints the milliseconds of each step.
pub(crate) fn child(cache: &Path, engine: &str) {
    let folder = model(cache, "bert-base");
    let (start, runtime) = timed(|| runtime(cache, engine).unwrap());
    let (open, stage) = timed(|| runtime.open(&folder).unwrap().stage("encoder").unwrap());
    let inputs = bert(0);
    let inputs: Vec<(&str, &Value)> = inputs.iter().map(|(name, value)| (*name, value)).collect();
    let (first, _) = timed(|| stage.run(&inputs, &[OUTPUT], &runtime.store().holder("bench")).unwrap());
    println!("{} {} {}", ms(start), ms(open), ms(first));
}
