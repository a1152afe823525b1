//! Models that are loaded, kept and unloaded by name.

use cotensor_core::ErrorKind;
use cotensor_daemon::testing::{Running, until};
use cotensor_functions::{Arguments, CallError, Entries, Functions, Provider, Value};
use cotensor_model::Runtime;
use cotensor_model::engine::RtenEngine;
use cotensor_serving::{LoadedModels, ServingOptions};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A daemon and a process that offers models.
struct Served {
    functions: Functions,
    _provider: Provider,
    _running: Running,
}

impl Served {
    fn start(options: ServingOptions) -> Self {
        let running = Running::start(|_| {});
        let serving = running.connect("models");
        let runtime = Runtime::new(serving.clone(), Arc::new(RtenEngine::new(Some(1))));
        let models = LoadedModels::new(runtime, options).unwrap();
        let provider = cotensor_serving::model_functions(Provider::builder(serving), models).start().unwrap();
        Self { functions: Functions::new(running.connect("caller")), _provider: provider, _running: running }
    }

    fn call(&self, function: &str, arguments: Arguments) -> Result<Entries, CallError> {
        self.functions.call(function, &arguments).map(|answer| answer.as_map().unwrap().clone())
    }

    fn list(&self) -> Vec<Entries> {
        let answer = self.call("model.list", Arguments::new()).unwrap();
        answer["models"].as_list().unwrap().iter().map(|model| model.as_map().unwrap().clone()).collect()
    }

    fn names(&self) -> Vec<String> {
        self.list().iter().map(|model| text(model, "display_name").to_owned()).collect()
    }

    fn embed(&self, model: &str) {
        let texts: Vec<Value> = vec!["gulls".into()];
        self.call("model.embed", Arguments::new().named("model", model).named("texts", texts)).unwrap();
    }
}

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny").join(name);
    folder.canonicalize().unwrap().to_str().unwrap().to_owned()
}

/// Another folder of the same model. Its inner folders are links.
fn copy_of(model: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(Path::new(model).join(file), copy.path().join(file)).unwrap();
    }
    for inner in ["onnx", "1_Pooling"] {
        std::os::unix::fs::symlink(Path::new(model).join(inner), copy.path().join(inner)).unwrap();
    }
    copy
}

fn load(model: &str) -> Arguments {
    Arguments::new().named("model", model)
}

fn text<'a>(entry: &'a Entries, field: &str) -> &'a str {
    entry[field].as_str().unwrap()
}

#[test]
fn loaded_models_are_listed_with_memory_and_requests() {
    let served = Served::start(ServingOptions::default());
    let (bert, whisper) = (fixture("bert"), fixture("whisper"));
    let loaded = served.call("model.load", load(&bert)).unwrap();
    assert!(loaded["weights_bytes"].as_int().unwrap() > 100_000, "its graph is loaded");
    assert_eq!(loaded["requests"].as_int().unwrap(), 0);
    served.call("model.load", load(&whisper)).unwrap();
    served.embed(&bert);
    served.embed(&bert);
    let reference = served.functions.call("model.open", &Arguments::new().arg(&*bert)).unwrap();
    let list = served.list();
    assert_eq!(served.names(), ["bert", "whisper"]);
    assert_eq!(list[0]["requests"].as_int().unwrap(), 2);
    assert!(list[0]["in_use"].as_bool().unwrap() && !list[1]["in_use"].as_bool().unwrap(), "by a reference");
    let stages: Vec<&str> = list[1]["stages"].as_list().unwrap().iter().map(|stage| stage.as_str().unwrap()).collect();
    assert!(stages.contains(&"encoder") && stages.len() > 1, "{stages:?}");
    drop(reference);
    // The same weights under another name are not counted as a further copy.
    let copy = copy_of(&bert);
    let second = served.call("model.load", load(copy.path().to_str().unwrap())).unwrap();
    assert_eq!(second["shared_bytes"].as_int().unwrap(), second["weights_bytes"].as_int().unwrap());
}

#[test]
fn pinned_models_stay_and_others_are_unloaded() {
    let served = Served::start(ServingOptions { model_ttl: Some(Duration::ZERO), ..ServingOptions::default() });
    let (bert, gpt2, vit) = (fixture("bert"), fixture("gpt2"), fixture("vit"));
    let pinned = served.call("model.load", load(&bert).named("pinned", true)).unwrap();
    assert!(pinned["pinned"].as_bool().unwrap() && matches!(pinned["unload_in_s"], Value::Null));
    let kept = served.call("model.load", load(&gpt2).named("ttl_s", 3600)).unwrap();
    assert!(kept["unload_in_s"].as_float().unwrap() > 3000.0);
    served.call("model.load", load(&vit)).unwrap();
    until("the model is unloaded", || served.list().len() <= 2);
    assert_eq!(served.names(), ["bert", "gpt2"]);
    // Not pinned any more.
    served.call("model.load", load(&bert).named("pinned", false)).unwrap();
    until("the model is unloaded", || served.list().len() <= 1);
    let unloaded = served.call("model.unload", load(&gpt2)).unwrap();
    assert_eq!(unloaded["unloaded"].as_list().unwrap()[0].as_str().unwrap(), gpt2);
    assert!(served.list().is_empty());
}

#[test]
fn end_of_requests_is_reported_after_each_use() {
    static REPORTS: AtomicUsize = AtomicUsize::new(0);
    let on_idle = || {
        REPORTS.fetch_add(1, Ordering::Relaxed);
    };
    let served = Served::start(ServingOptions { on_idle: Some(on_idle), ..ServingOptions::default() });
    let start = Instant::now();
    let wait_for = |count| {
        while REPORTS.load(Ordering::Relaxed) < count {
            assert!(start.elapsed() < Duration::from_secs(60), "no report {count}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    for count in 1..=2 {
        served.call("model.load", load(&fixture("bert"))).unwrap();
        wait_for(count);
    }
    let opened = served.functions.call("model.open", &Arguments::new().arg(fixture("bert"))).unwrap();
    wait_for(3);
    // The end of a request counts, and not only its beginning, which may be long ago or have no name of a model.
    let arguments = Arguments::new().arg(opened.clone()).named("task", "sentence-embedding").named("text", "gulls");
    served.call("model.run", arguments).unwrap();
    wait_for(4);
}

#[test]
fn wrong_arguments_name_the_field_and_load_nothing() {
    let served = Served::start(ServingOptions::default());
    let bert = fixture("bert");
    let refused = |function: &str, arguments: Arguments, field: &str| {
        let error = served.call(function, arguments).unwrap_err().to_string();
        assert!(error.contains(field), "{function}: {error}");
    };
    refused("model.load", Arguments::new(), "model");
    refused("model.load", load("tiny/bert"), "not an absolute path");
    refused("model.load", load(&bert).named("ttl_s", 60).named("pinned", true), "ttl_s");
    refused("model.load", load(&bert).named("ttl_s", -1), "ttl_s");
    refused("model.load", load(&bert).named("ttl_s", i64::MAX), "ttl_s");
    refused("model.load", load(&bert).named("variant", "none"), "variant");
    refused("model.unload", Arguments::new(), "all=true");
    refused("model.unload", load(&bert), "no model is loaded");
    refused("model.list", load(&bert), "model");
    assert!(served.list().is_empty(), "{:?}", served.names());
    let missing = served.call("model.load", load(&fixture("bert").replace("bert", "none"))).unwrap_err();
    assert_eq!((missing.kind(), &*missing.failure().unwrap().kind), (ErrorKind::Engine, "not_found"));
}

#[test]
fn changed_model_is_loaded_again() {
    let served = Served::start(ServingOptions::default());
    let bert = fixture("bert");
    let copy = copy_of(&bert);
    let name = copy.path().to_str().unwrap();
    // Until the times of the files show every further change.
    let start = Instant::now();
    while served.list().first().is_none_or(|model| model["requests"].as_int().unwrap() < 2) {
        assert!(start.elapsed() < Duration::from_secs(60), "the model is loaded again without a change");
        served.embed(name);
    }
    let config = std::fs::read_to_string(copy.path().join("config.json")).unwrap();
    std::fs::write(copy.path().join("config.json"), format!("{config}\n")).unwrap();
    served.embed(name);
    let list = served.list();
    assert_eq!((list.len(), list[0]["requests"].as_int().unwrap()), (1, 1), "a new version");
}
