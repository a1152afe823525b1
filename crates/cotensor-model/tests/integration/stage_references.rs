//! Compares each stage of each family, on each engine, with the outputs of the reference implementation for the same weights and inputs.

use crate::support::onnx::{engines, load_graph, open_for};
use crate::support::{array, difference, other_fixtures, tiny as folder};
use cotensor_model::engine::{Engine, LoadedGraph};
use cotensor_model::quantize::{Activations, QuantizeOptions, quantize_folder};
use cotensor_model::tensor::TensorRef;
use cotensor_quant::{Scheme, Width};
use cotensor_store::{LocalStore, Store};
use safetensors::SafeTensors;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The largest allowed difference, in standard deviations of the reference.
const TOLERANCE: f64 = 1e-4;
/// With weights of 8 bits.
const TOLERANCE_OF_8_BITS: f64 = 0.2;

fn graph_path(folder: &Path, stage: &str) -> PathBuf {
    folder.join(format!("onnx/{stage}.onnx"))
}

fn load(engine: &dyn Engine, path: &Path, store: &dyn Store) -> Arc<dyn LoadedGraph> {
    let graph = open_for(engine, path);
    assert!(!graph.weights().is_empty() || path.ends_with("head.onnx") || path.ends_with("head.entities.onnx"));
    load_graph(engine, &graph, store)
}

/// Runs all cases of a family with the graphs in a folder. Returns its stages with the number of cases of each.
fn check_family(engine: &dyn Engine, family: &str, graphs_in: &Path, tolerance: f64) -> BTreeMap<String, usize> {
    let folder = folder(family);
    let file = std::fs::read(folder.join("reference.safetensors")).unwrap();
    let references = SafeTensors::deserialize(&file).unwrap();
    // "<stage>.<case>.in.<name>": parts may contain dots, so the longest stage with a graph counts.
    let split = |name: &str| {
        let (head, port, input) = match name.split_once(".in.") {
            Some((head, port)) => (head, port, true),
            None => name.split_once(".out.").map(|(head, port)| (head, port, false)).unwrap(),
        };
        let cuts = head.rmatch_indices('.').map(|(cut, _)| head.split_at(cut));
        let (stage, case) = cuts.into_iter().find(|(stage, _)| graph_path(&folder, stage).is_file()).unwrap();
        (stage.to_owned(), case[1..].to_owned(), port.to_owned(), input)
    };
    let names: Vec<_> = references.names().into_iter().map(split).collect();
    let cases: BTreeSet<_> = names.iter().map(|(stage, case, ..)| (stage.clone(), case.clone())).collect();
    let store = LocalStore::builder().build();
    let mut graphs = BTreeMap::new();
    let mut counts = BTreeMap::new();
    for (stage, case) in cases {
        let graph =
            graphs.entry(stage.clone()).or_insert_with(|| load(engine, &graph_path(graphs_in, &stage), &*store));
        let ports = |wanted: bool| {
            let here = names.iter().filter(|(s, c, _, input)| *s == stage && *c == case && *input == wanted);
            let way = if wanted { "in" } else { "out" };
            here.map(|(.., port, _)| {
                (port.clone(), array(&references.tensor(&format!("{stage}.{case}.{way}.{port}")).unwrap()))
            })
            .collect::<Vec<_>>()
        };
        let (inputs, outputs) = (ports(true), ports(false));
        let views: Vec<_> = inputs.iter().map(|(name, array)| (name.as_str(), TensorRef::from(array))).collect();
        let wanted: Vec<_> = outputs.iter().map(|(name, _)| name.as_str()).collect();
        assert!(!wanted.is_empty(), "{family} {stage}.{case} has no outputs");
        let given = graph.run_alone(&views, &wanted).unwrap();
        for ((name, reference), given) in outputs.iter().zip(&given) {
            assert_eq!(given.shape(), reference.shape(), "{family} {stage}.{case} {name}");
            let difference = difference(given.as_f32().unwrap(), reference.as_f32().unwrap());
            println!("{} {family} {stage}.{case} {name}: {difference:.1e}", engine.name());
            assert!(difference <= tolerance, "{} {family} {stage}.{case} {name}: {difference:e}", engine.name());
        }
        *counts.entry(stage).or_default() += 1;
    }
    counts
}

fn check(family: &str, stages: &[&str]) {
    for engine in engines() {
        let graph = |stage: &&str| open_for(&*engine, &graph_path(&folder(family), stage));
        if let Some(error) = stages.iter().find_map(|stage| engine.check(&graph(stage)).err()) {
            // The exporter writes an operator that the engine refuses by name.
            assert!(other_fixtures().is_some(), "{} {family}: {error}", engine.name());
            println!("{} {family} refused: {error}", engine.name());
            continue;
        }
        let counts = check_family(&*engine, family, &folder(family), TOLERANCE);
        for stage in stages {
            assert!(counts.get(*stage).is_some_and(|&cases| cases >= 2), "{family} {stage}: {counts:?}");
        }
    }
}

#[test]
fn bert_stages_match_the_reference() {
    check("bert", &["model", "head"]);
}

#[test]
fn vit_stages_match_the_reference() {
    check("vit", &["model", "head"]);
}

#[test]
fn clip_stages_match_the_reference() {
    check("clip", &["vision_model", "text_model", "head"]);
}

#[test]
fn whisper_stages_match_the_reference() {
    check("whisper", &["encoder_model", "decoder_model", "decoder_with_past_model", "head"]);
}

#[test]
fn deit_and_dinov2_stages_match_the_reference() {
    check("deit", &["model"]);
    check("dinov2", &["model"]);
}

#[test]
fn siglip_stages_match_the_reference() {
    check("siglip", &["vision_model", "text_model"]);
    check("siglip-whole", &["model"]);
}

#[test]
fn detr_stages_match_the_reference() {
    check("detr", &["model"]);
}

#[test]
fn blip_and_llava_stages_match_the_reference() {
    check("blip", &["vision_model", "decoder_model", "decoder_with_past_model"]);
    check("llava", &["vision_encoder", "embed_tokens", "decoder_model_merged"]);
}

#[test]
fn text_to_text_stages_match_the_reference() {
    for family in ["t5", "bart"] {
        check(family, &["encoder_model", "decoder_model", "decoder_with_past_model"]);
    }
}

#[test]
fn causal_stages_match_the_reference() {
    for family in ["llama", "mistral", "qwen2", "qwen3", "gpt2"] {
        check(family, &["model"]);
    }
}

#[test]
fn stages_of_8_bits_are_near_the_reference() {
    let target = tempfile::tempdir().unwrap();
    let options = QuantizeOptions {
        width: Width::Eight,
        group: 32,
        scheme: Scheme::Search,
        rotates: false,
        activations: Activations::Float32,
        keep: vec![],
        mixed_bits: None,
        max_error: None,
    };
    for family in
        ["bert", "clip", "whisper", "dinov2", "siglip", "detr", "blip", "llava", "t5", "bart", "qwen2", "gpt2"]
    {
        let graphs = target.path().join(family);
        let report = quantize_folder(&folder(family), &graphs, &options, None, &mut |_, _, _| {}).unwrap();
        assert!(report.graphs.iter().map(|graph| graph.matrices.len()).sum::<usize>() > 5, "{report:?}");
        for engine in engines() {
            if report.graphs.iter().any(|graph| engine.check(&open_for(&*engine, &graphs.join(&graph.file))).is_err()) {
                assert!(other_fixtures().is_some(), "{} {family}", engine.name());
                continue;
            }
            let counts = check_family(&*engine, family, &graphs, TOLERANCE_OF_8_BITS);
            assert_eq!(counts, check_family(&*engine, family, &folder(family), TOLERANCE));
        }
    }
}
