//! Models over the daemon's store: the stages that one process ran, another does not run again.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod manage;
mod server;
mod shapes;
mod texts;
mod v1;

use cotensor_daemon::testing::Running;
use cotensor_model::Runtime;
use cotensor_model::engine::RtenEngine;
use cotensor_model::pipeline::{Inputs, Pipeline, UserReport, run_user};
use cotensor_serving::{LoadedModels, ServingOptions};
use cotensor_store::{Store, StoreReports, TensorStore};
use std::path::Path;
use std::sync::Arc;

/// Runs a tiny model as a client of its own does: with a runtime of its own, over what the daemon keeps.
fn run(store: Arc<dyn Store>, family: &str, task: &str) -> UserReport {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let toml = format!("[[user]]\nname = 'one'\nmodel = '{family}'\ntask = '{task}'\n");
    let user = Pipeline::parse(&toml).unwrap().users.remove(0);
    let runtime = Runtime::new(store, Arc::new(RtenEngine::new(Some(1))));
    let model = runtime.open(&fixtures.join("tiny").join(family)).unwrap();
    let inputs = Inputs::default().with_text("the harbour wakes before the city does");
    let inputs = inputs.with_image(&fixtures.join("media/photo.png")).unwrap();
    run_user(&model, &user, &inputs, &runtime.store().holder("one")).unwrap()
}

#[test]
fn second_client_reuses_results() {
    let running = Running::start(|_| {});
    for (family, task) in [("bert", "sentence-embedding"), ("vit", "image-embedding")] {
        let (first, second) = (running.connect("first"), running.connect("second"));
        let computed = run(first.clone(), family, task);
        let used = running.daemon.store().stats().memory_usage_bytes;
        let found = run(second.clone(), family, task);
        assert!(computed.stages.iter().all(|stage| stage.computed), "{family}");
        assert!(found.stages.iter().all(|stage| !stage.computed), "{family}");
        assert_eq!((&computed.answer, &computed.outputs), (&found.answer, &found.outputs));
        let added = running.daemon.store().stats().memory_usage_bytes - used;
        // A slab of the second client's own, if it published anything small.
        assert!(added <= 4 << 20, "{family}: {added} bytes for the second client");
        let alone = run(cotensor_store::LocalStore::builder().build(), family, task);
        assert_eq!(alone.outputs, found.outputs, "{family}: as in one process");
    }
}

#[test]
fn model_reference_runs_in_another_process() {
    use cotensor_core::ErrorKind;
    use cotensor_functions::{Arguments, Functions, Provider, Value};
    let running = Running::start(|_| {});
    let serving = running.connect("models");
    let runtime = Runtime::new(serving.clone(), Arc::new(RtenEngine::new(Some(1))));
    let models = LoadedModels::new(runtime, ServingOptions::default()).unwrap();
    let _provider = cotensor_serving::model_functions(Provider::builder(serving), models).start().unwrap();
    let store = running.connect("caller");
    let functions = Functions::new(store.clone());
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").canonicalize().unwrap();
    let folder = |family: &str| fixtures.join("tiny").join(family).to_str().unwrap().to_owned();
    let text = "the harbour wakes before the city does";

    let alone = run(cotensor_store::LocalStore::builder().build(), "bert", "sentence-embedding");
    let said = Arguments::new().named("model", folder("bert")).named("task", "sentence-embedding").named("text", text);
    let report = functions.call("model.run", &said).unwrap();
    let report = report.as_map().unwrap();
    let output = report["outputs"].as_map().unwrap()[&alone.outputs[0].name].as_tensor().unwrap();
    assert_eq!(output.typed::<f32>().unwrap(), alone.outputs[0].values, "as in one process");
    assert_eq!(report["answer"].as_map().unwrap()["type"].as_str().unwrap(), "embedding");

    // A reference to an open model; the image as a path, as bytes and as a tensor is the same image.
    let vit = functions.call("model.open", &Arguments::new().arg(folder("vit"))).unwrap();
    let photo = fixtures.join("media/photo.png");
    let bytes = std::fs::read(&photo).unwrap();
    let mut reservation =
        store.reserve(cotensor_daemon::testing::spec("photo", bytes.len()), &store.holder("")).unwrap();
    reservation.write(&bytes, cotensor_store::CopyReason::Put).unwrap();
    let images = [photo.to_str().unwrap().into(), Value::Bytes(bytes), reservation.publish().unwrap().into()];
    let alone = run(cotensor_store::LocalStore::builder().build(), "vit", "image-embedding");
    for (round, image) in images.into_iter().enumerate() {
        let said = Arguments::new().arg(vit.clone()).arg("image-embedding").named("image", image);
        let report = functions.call("model.run", &said).unwrap();
        let report = report.as_map().unwrap();
        let output = report["outputs"].as_map().unwrap()[&alone.outputs[0].name].as_tensor().unwrap();
        assert_eq!(output.typed::<f32>().unwrap(), alone.outputs[0].values);
        let computed = format!("{:?}", report["stages"].as_list().unwrap()[0].as_map().unwrap()["computed"]);
        assert_eq!(computed, format!("Bool({})", round == 0), "the second time, the result is there");
        assert!(!report["tensors"].as_map().unwrap().is_empty());
    }
    // The same stage on a tensor of the caller's own.
    let Value::Remote(reference) = &vit else { panic!("a reference") };
    let about = reference.call("describe", &Arguments::new()).unwrap();
    assert_eq!(about.as_map().unwrap()["family"].as_str().unwrap(), "vit");

    // The summary names every argument that the error of an unknown argument lists.
    let summary = functions.describe("model.run").unwrap().summary;
    let unknown = functions.call("model.run", &Arguments::new().named("colour", "red")).unwrap_err().to_string();
    let known: Vec<_> = unknown.split("expected: ").nth(1).unwrap().split(", ").map(str::trim).collect();
    assert!(known.len() > 7 && known.iter().all(|name| summary.contains(name)), "{known:?}: {summary}");
    let relative = functions.call("model.open", &Arguments::new().arg("tiny/vit")).unwrap_err();
    assert!(relative.to_string().contains("absolute"), "{relative}");
    for (option, wrong) in [("colour", Value::from("red")), ("top_k", 1.5.into()), ("chat", "yes".into())] {
        let said = Arguments::new().arg(vit.clone()).arg("image-embedding").named(option, wrong);
        assert!(functions.call("model.run", &said).unwrap_err().to_string().contains(option), "{option}");
    }
    let missing = functions.call("model.open", &Arguments::new().arg(folder("nothing"))).unwrap_err();
    assert_eq!((missing.kind(), &*missing.failure().unwrap().kind), (ErrorKind::Engine, "not_found"));
}
