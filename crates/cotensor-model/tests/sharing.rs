//! Models over one store: what is shared and what is refused; and the pool.
#![allow(clippy::unwrap_used)]

use cotensor_core::{ErrorKind, Kind};
use cotensor_model::engine::{Engine, FileMode, RtenEngine};
use cotensor_model::model::{Model, StageSource};
use cotensor_model::pipeline::{Inputs, Pipeline, User, run_user};
use cotensor_model::pool::{HardwarePreferences, ResourcePool};
use cotensor_model::runtime::Runtime;
use cotensor_store::{EmbeddedStore, SharingConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn tiny(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny").join(family)
}

fn engine() -> Arc<dyn Engine> {
    Arc::new(RtenEngine::new(Some(2)))
}

fn user(name: &str, task: &str) -> User {
    let text = format!("[[user]]\nname = '{name}'\nmodel = 'm'\ntask = '{task}'\n");
    Pipeline::parse(&text).unwrap().users.remove(0)
}

#[test]
fn concurrent_users_compute_an_encoder_once() {
    let runtime = Runtime::new(EmbeddedStore::builder().build(), engine());
    let inputs = Inputs::default().with_text("The harbour wakes before the town does.");
    let ran = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (runtime, inputs, ran) = (&runtime, &inputs, &ran);
            scope.spawn(move || {
                let model = runtime.open(&tiny("bert")).unwrap();
                let user = user(&format!("user {thread}"), "sentence-embedding");
                let report = run_user(&model, &user, inputs, &runtime.store().holder(&user.name)).unwrap();
                ran.fetch_add(usize::from(report.stages[0].computed), Ordering::SeqCst);
            });
        }
    });
    assert_eq!(ran.into_inner(), 1);
}

#[test]
fn a_refused_kind_is_computed_privately_and_counted() {
    let config = SharingConfig { allowed_types: Some(vec![Kind::VisionEmbedding]), ..SharingConfig::default() };
    let runtime = Runtime::new(EmbeddedStore::builder().config(config).build(), engine());
    let inputs = Inputs::default().with_text("The harbour wakes.");
    let model = runtime.open(&tiny("bert")).unwrap();
    let alone = Model::open(&tiny("bert"), StageSource::Private(engine(), FileMode::Read)).unwrap();
    let holder = runtime.store().holder("a");
    let user = user("a", "sentence-embedding");
    let expected = run_user(&alone, &user, &inputs, &holder).unwrap().outputs;
    for _ in 0..2 {
        let report = run_user(&model, &user, &inputs, &holder).unwrap();
        assert!(report.stages[0].computed, "nothing was there to share");
        assert_eq!(report.outputs[0].max_abs_diff(&expected[0]), 0.0);
    }
    assert_eq!(runtime.store().stats().refused.values().sum::<u64>(), 2);
}

#[test]
fn a_copy_of_a_model_adds_no_weights() {
    let store = EmbeddedStore::builder().build();
    let runtime = Runtime::new(store.clone(), engine());
    let first = runtime.open(&tiny("bert")).unwrap().stage("encoder").unwrap();
    let before = store.memory_usage_bytes();
    let copy = tempfile::tempdir().unwrap();
    std::fs::create_dir(copy.path().join("onnx")).unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "onnx/model.onnx", "onnx/model.onnx_data"] {
        std::fs::copy(tiny("bert").join(file), copy.path().join(file)).unwrap();
    }
    let second = runtime.open(copy.path()).unwrap().stage("encoder").unwrap();
    assert_eq!(first.space(), second.space());
    assert_eq!(store.memory_usage_bytes(), before);
}

#[test]
fn too_small_a_budget_is_an_error_that_says_so() {
    let runtime = Runtime::new(EmbeddedStore::builder().max_memory_bytes(1000).build(), engine());
    let error = runtime.open(&tiny("bert")).unwrap().stage("encoder").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert!(error.to_string().contains("budget of 1000 bytes") && error.to_string().contains("model.onnx"), "{error}");
}

#[test]
fn long_text_is_truncated_with_a_notice() {
    let runtime = Runtime::new(EmbeddedStore::builder().build(), engine());
    let model = runtime.open(&tiny("bert")).unwrap();
    let inputs = Inputs::default().with_text("harbour ".repeat(200));
    let report = run_user(&model, &user("a", "sentence-embedding"), &inputs, &runtime.store().holder("a")).unwrap();
    assert_eq!(report.notices.len(), 1);
}

#[test]
fn the_pool_loads_once_and_bounds_what_runs() {
    let runtime = Runtime::new(EmbeddedStore::builder().build(), engine());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny");
    let pool = ResourcePool::new(Arc::clone(&runtime), folder, 1).unwrap();
    let preferences = HardwarePreferences { priority_list: vec!["cuda".into(), "cpu".into()] };
    let first = pool.get_model("text_embedding", "bert", &preferences).unwrap();
    let second = pool.get_model("bert", "bert", &preferences).unwrap();
    assert!(Arc::ptr_eq(first.model(), second.model()));
    assert_eq!(first.device().skipped[0].0, "cuda");
    let inputs = Inputs::default().with_text("The town.");
    std::thread::scope(|scope| {
        for model in [&first, &second, &first] {
            scope.spawn(|| model.run(&user("a", "sentence-embedding"), &inputs).unwrap());
        }
    });
    assert_eq!(pool.get_model("vision", "bert", &preferences).err().unwrap().field(), Some("model_type"));
    assert_eq!(pool.get_model("text", "../bert", &preferences).err().unwrap().field(), Some("model_name"));
    let data: Vec<u8> = (0..12).collect();
    let share = |data: &[u8], storage: &str| {
        pool.share_tensor_between_models(data, cotensor_core::DType::F32, &[3], "x", "bert", &["t5", "bart"], storage)
    };
    let leases = share(&data, "cpu").unwrap();
    assert_eq!(leases.iter().map(|lease| lease.holder().to_string()).collect::<Vec<_>>(), ["bert", "t5", "bart"]);
    assert!(leases.iter().all(|lease| lease.bytes().unwrap() == data));
    assert_eq!(share(&data[1..], "cpu").unwrap_err().field(), Some("tensor_data"));
    assert_eq!(share(&data, "webgpu").unwrap_err().kind(), ErrorKind::Unsupported);
    drop(leases);
    assert!(runtime.store().get("x", &runtime.store().holder("t5")).is_err(), "freed with its last lease");
}
