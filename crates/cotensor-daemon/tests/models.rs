//! Models over the daemon's store: the stages that one process ran, another does not run again.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use cotensor_model::engine::RtenEngine;
use cotensor_model::pipeline::{Inputs, Pipeline, UserReport, run_user};
use cotensor_model::runtime::Runtime;
use cotensor_store::Store;
use std::path::Path;
use std::sync::Arc;
use support::Running;

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
fn one_client_computes_and_the_next_does_not() {
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
        let alone = run(cotensor_store::EmbeddedStore::builder().build(), family, task);
        assert_eq!(alone.outputs, found.outputs, "{family}: as in one process");
    }
}
