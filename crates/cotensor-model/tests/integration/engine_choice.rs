//! Each graph runs on the first engine that computes it rightly, and the explanation says which one and why.

use crate::support::onnx::{engines, f32_tensor, int_attribute, node, string_attribute};
use crate::support::{copy, edit, fixtures, inputs, tiny, user};
use cotensor_core::{ContentHash, DerivedFiles, ErrorKind, Hold, Result};
use cotensor_model::Runtime;
use cotensor_model::engine::{self, AUTO, EngineOptions, Engines, RtenEngine};
use cotensor_model::pipeline::{Pipeline, explain, run_user};
use cotensor_store::{LocalStore, StoreReports, TensorStore};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn runtime(engines: impl Into<Engines>) -> Arc<Runtime> {
    Runtime::new(LocalStore::builder().build(), engines)
}

/// A ViT whose pixels first go through a cubic Resize to the same size, which changes nothing.
fn cubic(folder: &Path) {
    copy(&tiny("vit"), folder);
    edit(&folder.join("onnx/model.onnx"), |model| {
        let graph = model.graph.as_mut().unwrap();
        for used in graph.node.iter_mut().flat_map(|node| &mut node.input).filter(|name| *name == "pixel_values") {
            "resized".clone_into(used);
        }
        let mode = vec![string_attribute("mode", "cubic"), int_attribute("exclude_outside", 0)];
        graph.node.insert(0, node("Resize", &["pixel_values", "", "unit_scales"], &["resized"], mode));
        graph.initializer.push(f32_tensor("unit_scales", &[4], &[1.0; 4]));
    });
}

#[test]
fn cubic_resize_is_refused_on_rten_and_runs_on_the_other_engine() {
    let folder = tempfile::tempdir().unwrap();
    cubic(folder.path());
    let task = user("one", "vit", "image-embedding");
    let run = |runtime: &Arc<Runtime>, folder: &Path| {
        run_user(&*runtime.open(folder)?, &task, &inputs(), &runtime.store().holder("one"))
    };
    let rten = runtime(Arc::new(RtenEngine::new(Some(1))));
    let error = run(&rten, folder.path()).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("node \"Resize node\"")), "{error}");
    let expected = run(&rten, &tiny("vit")).unwrap();
    for engine in engines().into_iter().filter(|engine| engine.name() != RtenEngine::NAME) {
        let given = run(&runtime(engine), folder.path()).unwrap();
        assert!(given.outputs[0].max_abs_diff(&expected.outputs[0]) < 1e-4);
    }
}

#[test]
fn explanation_names_the_engine_of_each_stage() {
    let pipeline = "[[user]]\nname = 'one'\nmodel = 'bert'\ntask = 'sentence-embedding'\n";
    let pipeline = Pipeline::parse(pipeline).unwrap();
    let models = tiny("bert");
    let models = models.parent().unwrap();
    for engine in engines() {
        let (name, version) = (engine.name(), engine.version());
        let stage = explain(&pipeline, models, &runtime(engine)).unwrap().stages.remove(0);
        assert!(stage.engine.starts_with(&format!("{name} {version}")), "{}", stage.engine);
        assert!(stage.engine_reasons.is_empty(), "{:?}", stage.engine_reasons);
    }
    let auto = Engines::open(AUTO, Some(1)).unwrap();
    let stage = explain(&pipeline, models, &runtime(auto.clone())).unwrap().stages.remove(0);
    assert!(stage.engine.starts_with(auto.first().name()), "{}", stage.engine);
    assert_eq!(stage.engine_reasons, auto.absent());
    // Without its library, the reason has the command that installs it.
    assert!(auto.absent().iter().all(|reason| reason.contains("pip install")), "{:?}", auto.absent());
}

/// Results of one engine are not given to another: they may round differently.
#[test]
fn engines_do_not_exchange_results() {
    let store = LocalStore::builder().build();
    let task = user("one", "bert", "sentence-embedding");
    let mut embeddings = Vec::new();
    for engine in engines() {
        let runtime = Runtime::new(store.clone(), engine);
        let model = runtime.open(&tiny("bert")).unwrap();
        let report = run_user(&model, &task, &inputs(), &runtime.store().holder("one")).unwrap();
        assert!(report.stages.iter().all(|stage| stage.computed), "{:?}", report.stages);
        embeddings.push((report.stages[0].space.clone(), report.outputs[0].clone()));
    }
    let (space, embedding) = &embeddings[0];
    assert!(embeddings.iter().all(|(other, _)| other == space), "the numbers mean the same");
    assert!(embeddings.iter().all(|(_, other)| other.max_abs_diff(embedding) < 1e-5));
}

/// With files that the engine derives from the weights, no weight stays in the store, and a further process reads none.
#[test]
fn derived_files_replace_weights() {
    let task = user("one", "bert", "sentence-embedding");
    let folders = [tiny("bert"), fixtures().join("low-bit/bert")];
    for (engine, folder) in
        engines().into_iter().flat_map(|engine| folders.each_ref().map(|folder| (engine.clone(), folder)))
    {
        let open = || {
            let store = LocalStore::builder().build();
            let runtime = Runtime::new(store.clone(), engine.clone());
            let model = runtime.open(folder).unwrap();
            let stage = model.stage("encoder").unwrap();
            let leased = store.stats().total_tensors;
            let report = run_user(&model, &task, &inputs(), &store.holder("one")).unwrap();
            (stage, leased, report.outputs[0].clone())
        };
        let (first, first_leased, expected) = open();
        let (stage, leased, output) = open();
        let derives = stage.runs_on().engine.ends_with(" prepacked");
        assert_eq!(derives, engine.name() == "ort", "{}", engine.name());
        assert_eq!((first_leased == 0, leased == 0), (derives, derives), "{}", engine.name());
        assert_eq!(output.max_abs_diff(&expected), 0.0);
        // Reports count the same weights.
        assert!(!stage.weights().is_empty() && stage.weights() == first.weights());
    }
}

/// Derived files in a folder where one file cannot be written: the engine's, or the one with the weights for it.
struct Unwritable {
    root: tempfile::TempDir,
    takes_weights: bool,
}

impl DerivedFiles for Unwritable {
    fn find_files(&self, _: &ContentHash) -> Option<PathBuf> {
        None
    }

    fn hold_files(&self, key: &ContentHash) -> Option<Hold> {
        self.find_files(key).map(|_| Box::new(()) as Hold)
    }

    fn remove_files(&self, _: &ContentHash) {}

    fn make_files(&self, key: &ContentHash, fill: &mut dyn FnMut(&Path) -> Result<()>) -> Result<PathBuf> {
        let folder = self.root.path().join(key.to_string());
        if self.takes_weights {
            std::fs::create_dir_all(folder.join("model.data")).unwrap()
        } else {
            std::fs::write(&folder, []).unwrap()
        }
        fill(&folder).map(|()| folder)
    }
}

/// Neither a failure to write the weights nor one of onnxruntime to write its files is one to load the model.
#[test]
fn without_room_for_derived_files_the_store_has_the_weights() {
    for takes_weights in [false, true] {
        let derived = Arc::new(Unwritable { root: tempfile::tempdir().unwrap(), takes_weights });
        let options = EngineOptions { threads: Some(1), derived: Some(derived) };
        for engine in engine::names().filter_map(|name| engine::open(name, options.clone()).ok()) {
            let store = LocalStore::builder().build();
            let runtime = Runtime::new(store.clone(), engine);
            let model = runtime.open(&tiny("bert")).unwrap();
            let stage = model.stage("encoder").unwrap();
            assert!(!stage.runs_on().engine.contains("prepacked"), "{}", stage.runs_on().engine);
            assert!(store.stats().total_tensors > 0);
            run_user(&model, &user("one", "bert", "sentence-embedding"), &inputs(), &store.holder("one")).unwrap();
        }
    }
}

/// onnxruntime expands codes of the store for each run: another engine is better, and a notice names the reason where the program chose this one.
#[test]
fn without_room_for_packed_codes_another_engine_runs_the_graph() {
    for takes_weights in [false, true] {
        let derived = Arc::new(Unwritable { root: tempfile::tempdir().unwrap(), takes_weights });
        let options = EngineOptions { threads: Some(1), derived: Some(derived) };
        let Ok(ort) = engine::open("ort", options.clone()) else { return };
        let stage = |engines: Engines| {
            let store = LocalStore::builder().build();
            let model = Runtime::new(store, engines).open(&fixtures().join("low-bit/bert")).unwrap();
            model.stage("encoder").unwrap().runs_on().clone()
        };
        let chosen = stage(ort.into());
        assert!(chosen.engine.starts_with("ort ") && !chosen.engine.contains("prepacked"), "{chosen:?}");
        assert!(chosen.notice.as_ref().is_some_and(|notice| notice.contains("cannot keep packed codes")), "{chosen:?}");
        let best = stage(Engines::auto(options));
        assert!(best.engine.starts_with("rten ") && best.notice.is_none(), "{best:?}");
        assert!(
            best.reasons.iter().any(|reason| reason.starts_with("ort: ") && reason.contains("packed codes")),
            "{best:?}"
        );
    }
    // Without a folder, the reason is known before the graph is loaded.
    let Ok(ort) = engine::open("ort", Some(1)) else { return };
    let model = runtime(ort).open(&fixtures().join("low-bit/bert")).unwrap();
    let notice = model.stage("encoder").unwrap().runs_on().notice.clone();
    assert!(notice.as_ref().is_some_and(|notice| notice.contains("without a cache")), "{notice:?}");
}
