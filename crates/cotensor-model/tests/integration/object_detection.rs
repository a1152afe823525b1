//! Object detection against transformers (fixtures/tiny/detr/objects.json).

use crate::support::{fixtures, runtime, tiny, user};
use cotensor_core::ErrorKind;
use cotensor_model::Runtime;
use cotensor_model::engine::{FileMode, RtenEngine};
use cotensor_model::model::{Model, StageSource};
use cotensor_model::pipeline::{Answer, Inputs, Object, UserReport, run_user};
use cotensor_store::LocalStore;
use serde_json::Value;
use std::sync::Arc;

fn image(path: &str) -> Inputs {
    Inputs::default().with_image(&fixtures().join("tiny/detr").join(path)).unwrap()
}

fn detect(runtime: &Arc<Runtime>, model: &Model, path: &str, threshold: Option<f32>) -> UserReport {
    let mut user = user("one", "detr", "object-detection");
    user.threshold = threshold;
    run_user(model, &user, &image(path), &runtime.store().holder("one")).unwrap()
}

fn objects(report: &UserReport) -> &[Object] {
    let Answer::Objects { objects } = &report.answer else { panic!("{:?}", report.answer) };
    objects
}

#[test]
fn objects_are_those_of_transformers() {
    let file = std::fs::read(tiny("detr").join("objects.json")).unwrap();
    let cases: Value = serde_json::from_slice(&file).unwrap();
    let runtime = runtime(LocalStore::builder());
    let model = runtime.open(&tiny("detr")).unwrap();
    let mut found = 0;
    for case in cases["cases"].as_array().unwrap() {
        let (path, threshold) = (case["image"].as_str().unwrap(), case["threshold"].as_f64().unwrap() as f32);
        let report = detect(&runtime, &model, path, Some(threshold));
        let wanted = case["objects"].as_array().unwrap();
        // The image that is not resized is compared exactly. A resized level may differ by 2 of 255.
        let allowed = if path.ends_with("tall.png") { 1e-4 } else { 0.02 };
        assert_eq!(objects(&report).len(), wanted.len(), "{path} {threshold}");
        for (given, wanted) in objects(&report).iter().zip(wanted) {
            assert_eq!(given.label, wanted["label"].as_str().unwrap());
            let number = |value: &Value| value.as_f64().unwrap() as f32;
            assert!((given.score - number(&wanted["score"])).abs() <= allowed, "{given:?} {wanted}");
            let edges = given.bounds.iter().zip(wanted["box"].as_array().unwrap());
            // Of an image of some hundred pixels.
            let far = edges.map(|(edge, wanted)| (edge - number(wanted)).abs()).fold(0.0, f32::max);
            assert!(far <= 500.0 * allowed, "{given:?} {wanted}");
        }
        found += wanted.len();
    }
    // All queries of two images, and some of them with a higher threshold.
    assert!(found > 16, "the thresholds leave {found} objects");
}

#[test]
fn users_with_other_thresholds_share_the_run() {
    let runtime = runtime(LocalStore::builder());
    let model = runtime.open(&tiny("detr")).unwrap();
    let all = detect(&runtime, &model, "../images/tall.png", Some(0.0));
    let some = detect(&runtime, &model, "../images/tall.png", None);
    assert_eq!([&all, &some].map(|report| report.stages[0].computed), [true, false]);
    assert!((1..objects(&all).len()).contains(&objects(&some).len()));
    assert!(objects(&some).iter().all(|object| object.score > 0.5 && objects(&all).contains(object)));
    let alone = StageSource::Private(Arc::new(RtenEngine::new(Some(1)).plain()).into(), FileMode::Read);
    let alone = Model::open(&tiny("detr"), alone).unwrap();
    let alone = detect(&runtime, &alone, "../images/tall.png", None);
    assert_eq!(alone.answer, some.answer);
    assert!(alone.outputs.iter().zip(&some.outputs).all(|(a, b)| a.max_abs_diff(b) == 0.0));
    let roles = |report: &UserReport| report.stages.iter().map(|stage| stage.role.clone()).collect::<Vec<_>>();
    assert_eq!((roles(&all), roles(&alone)), (vec!["encoder".into(), "detector".into()], vec!["detector".into()]));
}

#[test]
fn graph_that_cannot_be_cut_runs_whole() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("detr");
    crate::support::copy(&tiny("detr"), &folder);
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let cut = runtime(LocalStore::builder());
    let cut = detect(&cut, &cut.open(&tiny("detr")).unwrap(), "../images/tall.png", None);
    for (field, wrong) in [("encoder_layers", 1), ("encoder_layers", 3), ("decoder_layers", 4), ("decoder_layers", 1)] {
        std::fs::write(
            folder.join("config.json"),
            config.replace(&format!(r#""{field}": 2"#), &format!(r#""{field}": {wrong}"#)),
        )
        .unwrap();
        let runtime = runtime(LocalStore::builder());
        let model = runtime.open(&folder).unwrap();
        // A second run finds the loaded stage.
        for _ in 0..2 {
            let whole = detect(&runtime, &model, "../images/tall.png", None);
            assert_eq!(whole.stages.iter().map(|stage| &*stage.role).collect::<Vec<_>>(), ["detector"], "{field}");
            assert_eq!(whole.answer, cut.answer);
        }
        let error = model.space("encoder").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("attention products"), "{error}");
    }
}

#[test]
fn labels_of_another_number_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("detr");
    crate::support::copy(&tiny("detr"), &folder);
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    std::fs::write(folder.join("config.json"), config.replace(r#""2": "person""#, r#""2": "person", "3": "dog""#))
        .unwrap();
    let runtime = runtime(LocalStore::builder());
    let model = runtime.open(&folder).unwrap();
    let error = run_user(
        &model,
        &user("one", "detr", "object-detection"),
        &image("../images/tall.png"),
        &runtime.store().holder("one"),
    );
    let error = error.unwrap_err();
    let config = folder.join("config.json");
    assert_eq!((error.kind(), error.file(), error.field()), (ErrorKind::Invalid, Some(&*config), Some("id2label")));
}
