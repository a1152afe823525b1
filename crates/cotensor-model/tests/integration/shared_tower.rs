//! One vision tower under two models that read different layers of it.

use crate::support::{copy, fixtures, runtime, tiny, user};
use cotensor_model::Runtime;
use cotensor_model::graph::{BlockEnd, open_graph};
use cotensor_model::pipeline::{Inputs, Pipeline, explain, run_user};
use cotensor_model::stage::StageRun;
use cotensor_model::tensor::{Array, Value};
use cotensor_store::LocalStore;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Inputs and outputs of the reference cases of a family's image stage.
fn cases(family: &str, stage: &str, output: &str) -> Vec<(Array, Array)> {
    let file = fs::read(tiny(family).join("reference.safetensors")).unwrap();
    let references = safetensors::SafeTensors::deserialize(&file).unwrap();
    let array = |name: &str| {
        let tensor = references.tensor(name).unwrap();
        let values = tensor.data().as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        Array::f32(tensor.shape().to_vec(), values.collect()).unwrap()
    };
    let case = |case: &str| {
        (array(&format!("{stage}.{case}.in.pixel_values")), array(&format!("{stage}.{case}.out.{output}")))
    };
    ["b1", "b3"].map(case).to_vec()
}

fn run(runtime: &Arc<Runtime>, folder: &Path, role: &str, output: &str, pixels: &Array) -> StageRun {
    let stage = runtime.open(folder).unwrap().stage(role).unwrap();
    let pixels = Value::from(pixels.clone());
    stage.run(&[("pixel_values", &pixels)], &[output], &runtime.store().holder("test")).unwrap()
}

/// max |a - b| / std(b)
fn difference(run: &StageRun, reference: &Array) -> f64 {
    assert_eq!(run.outputs[0].shape(), reference.shape());
    let (given, wanted) = (run.outputs[0].to_f32().unwrap(), reference.as_f32().unwrap());
    let mean = wanted.iter().map(|&value| f64::from(value)).sum::<f64>() / wanted.len() as f64;
    let variance = wanted.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum::<f64>() / wanted.len() as f64;
    let largest = given.iter().zip(wanted).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    assert!(given.iter().all(|value| value.is_finite()));
    largest / variance.sqrt()
}

/// Whether the blocks ran for this run.
fn ran_blocks(run: &StageRun) -> Option<bool> {
    run.before.as_ref().map(|before| before.computed)
}

#[test]
fn clip_and_llava_compute_the_common_blocks_once() {
    let runtime = runtime(LocalStore::builder());
    let models = ["clip", "llava"].map(|family| runtime.open(&tiny(family)).unwrap());
    let stages = [models[0].stage("vision_tower").unwrap(), models[1].stage("vision_encoder").unwrap()];
    let blocks = stages.each_ref().map(|stage| stage.before().unwrap().0);
    assert!(Arc::ptr_eq(blocks[0], blocks[1]), "one loaded graph of the blocks");
    assert!(!blocks[0].weights().is_empty() && stages[0].space() != stages[1].space());

    let clip = cases("clip", "vision_model", "image_embeds");
    let llava = cases("llava", "vision_encoder", "image_features");
    for (pixels, reference) in &llava {
        let features = run(&runtime, &tiny("llava"), "vision_encoder", "image_features", pixels);
        assert_eq!((features.computed, ran_blocks(&features)), (true, Some(true)));
        assert!(difference(&features, reference) <= 1e-4);
        let embeds = run(&runtime, &tiny("clip"), "vision_tower", "image_embeds", pixels);
        assert_eq!((embeds.computed, ran_blocks(&embeds)), (true, Some(false)), "LLaVA ran the blocks");
        let again = run(&runtime, &tiny("clip"), "vision_tower", "image_embeds", pixels);
        assert_eq!((again.computed, ran_blocks(&again)), (false, None));
    }
    for (pixels, reference) in &clip {
        let embeds = run(&runtime, &tiny("clip"), "vision_tower", "image_embeds", pixels);
        assert_eq!(ran_blocks(&embeds), Some(true));
        assert!(difference(&embeds, reference) <= 1e-4);
    }
}

#[test]
fn other_layer_or_other_weights_share_no_blocks_and_stay_right() {
    let place = tempfile::tempdir().unwrap();
    let other = place.path().join("other");
    copy(&tiny("clip"), &other);
    // The lowest bit of the class embedding or of another weight of the first block.
    let file = other.join("onnx/vision_model.onnx_data");
    let mut bytes = fs::read(&file).unwrap();
    bytes[0] ^= 1;
    fs::write(&file, bytes).unwrap();
    let runtime = runtime(LocalStore::builder());
    let pixels = &cases("clip", "vision_model", "image_embeds")[0];
    let first = run(&runtime, &tiny("clip"), "vision_tower", "image_embeds", &pixels.0);
    let second = run(&runtime, &other, "vision_tower", "image_embeds", &pixels.0);
    assert_eq!((ran_blocks(&first), ran_blocks(&second)), (Some(true), Some(true)));
    let spaces =
        [&tiny("clip"), &other].map(|folder| runtime.open(folder).unwrap().stage("vision_tower").unwrap().space());
    assert_ne!(spaces[0], spaces[1], "a stage that continues other blocks is in another space");

    // A configuration that does not say where the blocks end: the whole graph runs.
    let whole = place.path().join("whole");
    copy(&tiny("llava"), &whole);
    let config = fs::read_to_string(whole.join("config.json")).unwrap();
    for layer in ["-3", "7", "[-2]", "null"] {
        let changed = config.replace(r#""vision_feature_layer": -2"#, &format!(r#""vision_feature_layer": {layer}"#));
        assert_ne!(changed, config);
        fs::write(whole.join("config.json"), changed).unwrap();
        for (pixels, reference) in cases("llava", "vision_encoder", "image_features") {
            let features = run(&runtime, &whole, "vision_encoder", "image_features", &pixels);
            assert_eq!(ran_blocks(&features), None, "{layer}");
            assert!(difference(&features, &reference) <= 1e-4);
        }
    }
}

#[test]
fn explanation_shows_the_common_blocks() {
    let toml = |name: &str, task: &str| {
        format!("[[user]]\nname = '{name}'\nmodel = '{}'\ntask = '{task}'\n", tiny("clip").display())
    };
    let pipeline = Pipeline::parse(&(toml("one", "image-embedding") + &toml("two", "image-text-retrieval"))).unwrap();
    let runtime = runtime(LocalStore::builder());
    let explanation = explain(&pipeline, Path::new(""), &runtime).unwrap();
    let shared: Vec<_> =
        explanation.stages.iter().map(|stage| (stage.role.as_str(), stage.shared_with.len())).collect();
    let image = [("vision_blocks", 1), ("vision_tower", 1)];
    assert_eq!(shared, [&image[..], &image[..], &[("text_tower", 0)]].concat());

    let model = runtime.open(&tiny("clip")).unwrap();
    let inputs = Inputs::default().with_image(&fixtures().join("media/photo.png")).unwrap();
    let report =
        run_user(&model, &user("one", "clip", "image-embedding"), &inputs, &runtime.store().holder("one")).unwrap();
    let ran: Vec<_> = report.stages.iter().map(|stage| (stage.role.as_str(), stage.computed)).collect();
    assert_eq!(ran, [("vision_tower", true), ("vision_blocks", true)]);
}

#[test]
fn place_that_cannot_be_proved_is_refused_with_the_reason() {
    let open = || open_graph(&tiny("clip").join("onnx/vision_model.onnx")).unwrap();
    let place = BlockEnd { blocks: 2, before: 1, width: 32 };
    assert_eq!(open().blocks_before("hidden", place).unwrap().outputs()[0].name, "hidden");
    let after = open().blocks_after("hidden", place).unwrap();
    assert_eq!((after.inputs()[0].name.as_str(), after.outputs()[0].name.as_str()), ("hidden", "image_embeds"));
    for (reason, place) in [
        ("3 blocks have 6 attention products", BlockEnd { blocks: 3, ..place }),
        ("attention products", BlockEnd { blocks: usize::MAX, ..place }),
        ("no end of block 0", BlockEnd { before: 0, ..place }),
        ("no end of block 3", BlockEnd { before: 3, ..place }),
        ("no end of block", BlockEnd { before: usize::MAX, ..place }),
        ("not over 31 elements", BlockEnd { width: 31, ..place }),
    ] {
        for half in [open().blocks_before("hidden", place), open().blocks_after("hidden", place)] {
            let error = half.err().unwrap().to_string();
            assert!(error.contains(reason), "{reason:?}: {error}");
        }
    }
}
