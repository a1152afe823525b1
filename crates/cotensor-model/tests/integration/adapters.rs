//! Adapters between the encoders of two models: fitted, published and used in place of a stage.

use crate::support::{change_a_weight, copy, fixtures, runtime, tiny};
use cotensor_core::{ErrorKind, Result};
use cotensor_model::Runtime;
use cotensor_model::adapter::{Adapter, Rows, save_adapter};
use cotensor_model::model::Model;
use cotensor_model::pipeline::{Answer, Inputs, Medium, Pipeline, Samples, User, UserReport};
use cotensor_model::pipeline::{fit_adapter, inputs_of, run_user};
use cotensor_store::LocalStore;
use std::path::Path;
use std::sync::{Arc, Mutex};

const WORDS: [&str; 12] =
    ["harbour", "city", "wakes", "before", "the", "does", "a", "ship", "morning", "light", "of", "gulls"];

/// Different sentences of the words.
fn sentence(seed: usize) -> String {
    let word = |position: usize| WORDS[(seed * 7 + position * position * 5 + seed / 3) % WORDS.len()];
    let text: Vec<&str> = (0..4 + seed % 5).map(word).collect();
    format!("{} {seed}", text.join(" "))
}

/// The tiny BERT, and a BERT whose last weight differs by one bit.
fn two_berts(folder: &Path, runtime: &Arc<Runtime>) -> [Arc<Model>; 2] {
    copy(&tiny("bert"), folder);
    change_a_weight(folder);
    [runtime.open(&tiny("bert")).unwrap(), runtime.open(folder).unwrap()]
}

/// A pipeline's user of `model` that reads the encoder of the model in `source`.
fn reader(model: &str, task: &str, source: &Path, adapter: Option<&Path>) -> User {
    let adapter = adapter.map_or(String::new(), |file| format!("adapter = {file:?}\n"));
    let text = format!(
        "[[user]]\nname = 'reader'\nmodel = {model:?}\ntask = {task:?}\n[user.encoder]\nmodel = {source:?}\n{adapter}"
    );
    Pipeline::parse(&text).unwrap().users.remove(0)
}

fn run(runtime: &Arc<Runtime>, model: &Model, user: &User, inputs: &Inputs) -> Result<UserReport> {
    let holder = runtime.store().holder("reader");
    let inputs = inputs_of(user, model, inputs, Path::new("/"), runtime, &holder)?;
    run_user(model, user, &inputs, &holder)
}

/// The only output of a report.
fn vector(report: &UserReport) -> &[f32] {
    &report.outputs[0].values
}

#[test]
fn adapted_tensor_replaces_the_output_of_a_stage_that_is_not_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = {
        let runtime = runtime(LocalStore::builder());
        let [source, target] = two_berts(folder.path(), &runtime);
        let samples = Samples::of_texts((0..60).chain(0..3).map(sentence));
        let mut progress = Vec::new();
        let holder = runtime.store().holder("fit");
        let adapter =
            fit_adapter(&source, &target, &samples, &holder, &mut |done, all| progress.push((done, all))).unwrap();
        assert_eq!((progress.last(), adapter.info.samples), (Some(&(60, 60)), 60), "equal samples count once");
        assert_eq!(adapter.info.rows, Rows::Tokens);
        assert!(adapter.info.quality.r2 > 0.99 && adapter.info.quality.baseline_r2 < 0.1, "{:?}", adapter.info.quality);
        adapter
    };
    let file = folder.path().join("adapter.safetensors");
    save_adapter(&adapter, &file).unwrap();
    let runtime = runtime(LocalStore::builder());
    let loads = Arc::new(Mutex::new(Vec::new()));
    let observed = Arc::clone(&loads);
    runtime.observe_loads(move |_, model| observed.lock().unwrap().push(model.to_owned()));
    let [source, target] = two_berts(folder.path(), &runtime);
    let text = Inputs::default().with_text(sentence(1000));
    let without = reader("target", "sentence-embedding", &tiny("bert"), None);

    let error = run(&runtime, &target, &without, &text).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    for space in [source.space("encoder").unwrap(), target.space("encoder").unwrap()] {
        assert!(error.to_string().contains(&space.to_string()), "{error}");
    }

    let with = reader("target", "sentence-embedding", &tiny("bert"), Some(&file));
    let first = run(&runtime, &target, &with, &text).unwrap();
    assert!(first.notices.iter().any(|notice| notice.contains("held-out R²")), "{:?}", first.notices);
    assert!(first.stages.iter().any(|stage| stage.space == Some(adapter.space().to_string()) && stage.computed));
    drop(adapter.publish(&**runtime.store(), &runtime.store().holder("fit")).unwrap());
    let second = run(&runtime, &target, &without, &text).unwrap();
    assert!(second.stages.iter().all(|stage| !stage.computed), "the adapted tensor is shared: {:?}", second.stages);
    assert_eq!(vector(&first), vector(&second));
    assert_eq!(*loads.lock().unwrap(), ["bert"], "the target's encoder is not loaded");

    let own = User { encoder: None, ..with };
    let real = run(&runtime, &target, &own, &text).unwrap();
    let cosine: f32 = vector(&first).iter().zip(vector(&real)).map(|(a, b)| a * b).sum();
    assert!(cosine > 0.95 && vector(&first) != vector(&real), "{cosine}");
}

#[test]
fn tensor_of_the_same_space_needs_no_adapter() {
    let runtime = runtime(LocalStore::builder());
    let folder = tempfile::tempdir().unwrap();
    copy(&tiny("bert"), folder.path());
    let (source, target) = (runtime.open(&tiny("bert")).unwrap(), runtime.open(folder.path()).unwrap());
    let text = Inputs::default().with_text(sentence(1));
    let user = reader("copy", "sentence-embedding", &tiny("bert"), None);
    let report = run(&runtime, &target, &user, &text).unwrap();
    assert_eq!(report.notices, [""; 0]);
    let own = run(&runtime, &target, &User { encoder: None, ..user }, &text).unwrap();
    assert_eq!(vector(&report), vector(&own));
    let samples = Samples::of_texts((0..20).map(sentence));
    let holder = runtime.store().holder("fit");
    let error = fit_adapter(&source, &target, &samples, &holder, &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn image_patches_become_a_pooled_embedding() {
    let runtime = runtime(LocalStore::builder());
    let (source, target) = (runtime.open(&tiny("vit")).unwrap(), runtime.open(&tiny("clip")).unwrap());
    let photo = std::fs::read(fixtures().join("media/photo.png")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |seed: u32| folder.path().join(format!("{seed}.bmp"));
    for seed in 0..24 {
        std::fs::write(file(seed), bmp(seed)).unwrap();
    }
    let samples = Samples::open(folder.path()).unwrap();
    let holder = runtime.store().holder("fit");
    let adapter = fit_adapter(&source, &target, &samples, &holder, &mut |_, _| {}).unwrap();
    drop(adapter.publish(&**runtime.store(), &holder).unwrap());
    let photo = Inputs::default().with_image_bytes(photo).unwrap();
    let user = reader("clip", "image-embedding", &tiny("vit"), None);
    let given = run(&runtime, &target, &user, &photo).unwrap();
    let own = run(&runtime, &target, &User { encoder: None, ..user }, &photo).unwrap();
    assert_eq!(vector(&given).len(), vector(&own).len());
    assert!(adapter.info.quality.cosine.is_finite() && adapter.info.target.pooled);
    let texts = Samples::of_texts((0..20).map(sentence));
    let error = fit_adapter(&source, &target, &texts, &holder, &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "ViT reads no text");
    let few = Samples::of_files(Medium::Image, (0..5).map(file));
    let error = fit_adapter(&source, &target, &few, &holder, &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("at least 20"), "{error}");
}

#[test]
fn detector_reads_the_patches_of_another_encoder_for_images_of_any_size() {
    let runtime = runtime(LocalStore::builder());
    let (source, target) = (runtime.open(&tiny("vit")).unwrap(), runtime.open(&tiny("detr")).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..24).map(|seed| folder.path().join(format!("{seed}.bmp"))).collect();
    for (seed, file) in files.iter().enumerate() {
        std::fs::write(file, bmp(seed as u32)).unwrap();
    }
    let holder = runtime.store().holder("fit");
    let samples = Samples::of_files(Medium::Image, files.iter().cloned());
    let square = fit_adapter(&source, &target, &samples, &holder, &mut |_, _| {}).unwrap();
    assert!(
        matches!(square.info.rows, Rows::Patches { target, .. } if target.image.is_some()),
        "{:?}",
        square.info.rows
    );
    // One image of another shape.
    let tall = tiny("images").join("tall.png");
    let samples = Samples::of_files(Medium::Image, files.iter().cloned().chain([tall.clone()]));
    let adapter = fit_adapter(&source, &target, &samples, &holder, &mut |_, _| {}).unwrap();
    assert!(
        matches!(adapter.info.rows, Rows::Patches { target, .. } if target.image.is_none()),
        "{:?}",
        adapter.info.rows
    );
    drop(adapter.publish(&**runtime.store(), &holder).unwrap());

    let user = reader("detr", "object-detection", &tiny("vit"), None);
    for image in [&tall, &fixtures().join("media/photo.png"), &files[0]] {
        let inputs = Inputs::default().with_image(image).unwrap();
        let given = run(&runtime, &target, &user, &inputs).unwrap();
        assert!(matches!(given.answer, Answer::Objects { .. }));
        let roles: Vec<&str> = given.stages.iter().map(|stage| stage.role.as_str()).collect();
        assert_eq!(roles, ["adapter of encoder", "detector"]);
        let own = run(&runtime, &target, &User { encoder: None, ..user.clone() }, &inputs).unwrap();
        assert_eq!(given.outputs[1].shape, own.outputs[1].shape);
        assert_ne!(given.outputs[1].values, own.outputs[1].values);
    }
}

#[test]
fn decoders_of_other_models_read_one_encoder() {
    let runtime = runtime(LocalStore::builder());
    let holder = runtime.store().holder("fit");
    let bert = runtime.open(&tiny("bert")).unwrap();
    let samples = Samples::of_texts((0..40).map(sentence));
    for family in ["t5", "bart"] {
        let target = runtime.open(&tiny(family)).unwrap();
        let adapter = fit_adapter(&bert, &target, &samples, &holder, &mut |_, _| {}).unwrap();
        drop(adapter.publish(&**runtime.store(), &holder).unwrap());
    }
    let loads = Arc::new(Mutex::new(Vec::new()));
    let observed = Arc::clone(&loads);
    runtime.observe_loads(move |role, model| observed.lock().unwrap().push(format!("{role} of {model}")));
    let text = Inputs::default().with_text(sentence(1000));
    for family in ["t5", "bart"] {
        let target = runtime.open(&tiny(family)).unwrap();
        let user = User { max_new_tokens: Some(5), ..reader(family, "text2text-generation", &tiny("bert"), None) };
        let report = run(&runtime, &target, &user, &text).unwrap();
        let Answer::Text { prompt_tokens, .. } = report.answer else { panic!("{:?}", report.answer) };
        assert_eq!(prompt_tokens, target.text().unwrap().encode(&[text.text().unwrap()]).unwrap().ids.shape()[1]);
        assert!(report.stages.iter().all(|stage| stage.role != "encoder"), "{:?}", report.stages);
    }
    let loads = loads.lock().unwrap();
    assert!(!loads.is_empty() && loads.iter().all(|load| !load.starts_with("encoder of t5")), "{loads:?}");
}

/// A BMP file of 16 x 16 pixels with a pattern.
fn bmp(seed: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(b"BM");
    for field in [54u32 + 768, 0, 54, 40, 16, 16, 1 | 24 << 16, 0, 768, 2835, 2835, 0, 0] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend((0..768u32).map(|index| (index.wrapping_mul(31 + 2 * seed) / 7 + seed * 40) as u8));
    bytes
}

#[test]
fn other_tensors_are_no_adapters() {
    let store = LocalStore::builder().build();
    let holder = <dyn cotensor_store::Store>::holder(&*store, "test");
    let spec = cotensor_store::TensorSpec::new("adapter/x/y", cotensor_core::DType::F32, &[2, 2]);
    let lease = cotensor_store::TensorStore::reserve(&*store, spec, &holder).unwrap().publish().unwrap();
    let error = Adapter::of_lease(&lease).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("adapter/x/y"), "{error}");
}
