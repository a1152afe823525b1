//! Similarities of images and texts: scale and bias come from the files of the model.

use crate::support::{copy, fixtures, runtime, tiny, user};
use cotensor_core::{ErrorKind, Result};
use cotensor_model::graph::{Graph, open_graph};
use cotensor_model::pipeline::{Answer, Constant, Inputs, UserReport, run_user};
use cotensor_store::LocalStore;
use std::fs;
use std::path::Path;

const TEXTS: [&str; 3] = ["a harbour", "the city sleeps", "science"];

fn rank(folder: &Path, family: &str) -> Result<UserReport> {
    let runtime = runtime(LocalStore::builder());
    let mut user = user("one", family, "zero-shot-image-classification");
    user.texts = TEXTS.map(str::to_owned).to_vec();
    let inputs = Inputs::default().with_image(&fixtures().join("media/photo.png")).unwrap();
    run_user(&*runtime.open(folder)?, &user, &inputs, &runtime.store().holder("one"))
}

/// Text, cosine similarity and probability, in the order of [`TEXTS`].
fn texts(report: &UserReport) -> Vec<(String, f32, f32)> {
    let Answer::Ranking { texts } = &report.answer else { panic!("{:?}", report.answer) };
    assert!(texts.is_sorted_by(|a, b| a.1 >= b.1), "{texts:?}");
    let mut texts = texts.clone();
    texts.sort_by_key(|(text, ..)| TEXTS.iter().position(|known| known == text));
    texts
}

fn constant(name: &str, value: f32, file: &str) -> Constant {
    Constant { name: name.to_owned(), value, file: file.to_owned() }
}

/// A safetensors file with one number for each name.
fn checkpoint(numbers: &[(&str, f32)]) -> Vec<u8> {
    let entry = |(at, (name, _)): (usize, &(&str, f32))| {
        format!(r#""{name}": {{"dtype": "F32", "shape": [], "data_offsets": [{}, {}]}}"#, 4 * at, 4 * at + 4)
    };
    let header = format!("{{{}}}", numbers.iter().enumerate().map(entry).collect::<Vec<_>>().join(", "));
    let data = numbers.iter().flat_map(|(_, number)| number.to_le_bytes());
    (header.len() as u64).to_le_bytes().into_iter().chain(header.bytes()).chain(data).collect()
}

#[test]
fn clip_takes_its_scale_from_the_checkpoint_else_from_before_training() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("clip");
    copy(&tiny("clip"), &folder);
    let before = rank(&folder, "clip").unwrap();
    assert_eq!(before.constants, [constant("logit_scale", 2.6592f64.exp() as f32, "config.json")]);
    assert!(before.notices.len() == 1 && before.notices[0].contains("before training"), "{:?}", before.notices);

    fs::write(folder.join("model.safetensors"), checkpoint(&[("logit_scale", 4.0)])).unwrap();
    let trained = rank(&folder, "clip").unwrap();
    assert_eq!(trained.constants, [constant("logit_scale", 4f32.exp(), "model.safetensors")]);
    assert!(trained.notices.is_empty(), "{:?}", trained.notices);
    for report in [&before, &trained] {
        let scale = report.constants[0].value;
        let texts = texts(report);
        let sum: f32 = texts.iter().map(|(_, cosine, _)| (cosine * scale).exp()).sum();
        for (text, cosine, probability) in texts {
            assert!((probability - (cosine * scale).exp() / sum).abs() < 1e-5, "{text}: {probability}");
        }
    }

    fs::remove_file(folder.join("model.safetensors")).unwrap();
    let config = fs::read_to_string(folder.join("config.json")).unwrap();
    fs::write(folder.join("config.json"), config.replace("logit_scale_init_value", "other")).unwrap();
    let error = rank(&folder, "clip").unwrap_err();
    assert_eq!((error.kind(), error.file(), error.field()), (ErrorKind::NotFound, Some(&*folder), Some("logit_scale")));
}

#[test]
fn siglip_gives_each_text_a_probability_of_its_own() {
    let (scale, bias) = (4.7f32.exp(), -16.5);
    let towers = rank(&tiny("siglip"), "siglip").unwrap();
    let constants = |file: &str| [constant("logit_scale", scale, file), constant("logit_bias", bias, file)];
    assert_eq!(towers.constants, constants("model.safetensors"));
    for (text, cosine, probability) in texts(&towers) {
        let expected = 1.0 / (1.0 + (-(cosine * scale + bias)).exp());
        assert!((probability - expected).abs() < 1e-6, "{text}: {probability}, {expected}");
    }

    // One graph of the whole model: each tower is a part of it, and scale and bias are constants of the graph.
    let whole = rank(&tiny("siglip-whole"), "siglip").unwrap();
    let (expected, found) = (constants("onnx/model.onnx"), &whole.constants);
    assert!(found.iter().zip(&expected).all(|(a, b)| (&a.name, &a.file) == (&b.name, &b.file)), "{found:?}");
    assert!(found.iter().zip(&expected).all(|(a, b)| (a.value - b.value).abs() < 1e-4 * b.value.abs()), "{found:?}");
    for (a, b) in texts(&towers).iter().zip(texts(&whole)) {
        assert!((a.1 - b.1).abs() < 1e-5 && (a.2 - b.2).abs() < 1e-3, "{a:?} {b:?}");
    }
}

#[test]
fn part_of_a_graph_has_only_what_its_outputs_need() {
    let open = || open_graph(&tiny("siglip-whole").join("onnx/model.onnx")).unwrap();
    let names = |graph: &Graph| graph.inputs().iter().map(|port| port.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&open()), ["input_ids", "pixel_values"]);
    let (image, text) = (open().part(&["image_embeds", "absent"]), open().part(&["text_embeds"]));
    assert_eq!((names(&image), names(&text)), (vec!["pixel_values".to_owned()], vec!["input_ids".to_owned()]));
    assert_eq!(image.outputs().len(), 1);
    assert!(image.operators().contains("Conv") && !text.operators().contains("Conv"));
    let known = |graph: &Graph, weight: &str| graph.weights().iter().any(|known| known.name == weight);
    assert!(image.weights().iter().all(|weight| !known(&text, &weight.name)), "the towers have no weight in common");
    assert_eq!(image.weights().len() + text.weights().len(), open().weights().len());
    // The logits need both towers; an output of another form has no scale.
    assert!(open().scale_and_bias("logits_per_text").is_some());
    assert_eq!(open().scale_and_bias("image_embeds"), None);
    assert_eq!(open().scale_and_bias("absent"), None);
}
