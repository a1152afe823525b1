//! The resource pool: one loaded copy however many ask, bounded calls, devices by preference, tensors by name.

use cotensor_core::{DType, Device, ErrorKind, Result};
use cotensor_model::Runtime;
use cotensor_model::engine::{Capabilities, Engine, FileMode, LoadedGraph, RtenEngine};
use cotensor_model::graph::Graph;
use cotensor_model::pipeline::{Inputs, Pipeline, User};
use cotensor_model::pool::{HardwarePreferences, PooledModel, ResourcePool};
use cotensor_model::tensor::{Array, ArrayView};
use cotensor_store::{CopyReason, EmbeddedStore, Lease};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny")
}

fn pool(max_connections: usize) -> ResourcePool {
    let runtime = Runtime::new(EmbeddedStore::builder().build(), Arc::new(RtenEngine::new(Some(1))));
    ResourcePool::new(runtime, models(), max_connections).unwrap()
}

fn prefer(devices: &[&str]) -> HardwarePreferences {
    HardwarePreferences { priority_list: devices.iter().map(|device| (*device).to_owned()).collect() }
}

fn user(name: &str) -> User {
    let toml = format!("[[user]]\nname = '{name}'\nmodel = 'bert'\ntask = 'sentence-embedding'\n");
    Pipeline::parse(&toml).unwrap().users.remove(0)
}

#[test]
fn one_copy_is_loaded_however_many_ask() {
    let pool = pool(2);
    let cpu = HardwarePreferences::default();
    let models: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = ["text_embedding", "text", "bert", "text"]
            .map(|model_type| scope.spawn(|| pool.get_model(model_type, "bert", &cpu).unwrap()))
            .into_iter()
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(models.iter().all(|model| Arc::ptr_eq(model.model(), models[0].model())));
    let stage = models[0].model().stage("encoder").unwrap();
    assert!(models.iter().all(|model| Arc::ptr_eq(&model.model().stage("encoder").unwrap(), &stage)));
}

/// An engine that counts how many of its graphs run at a time.
#[derive(Clone, Default)]
struct Counting {
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    /// Its graphs run no further while somebody has this.
    held: Arc<Mutex<()>>,
}

struct CountingGraph {
    graph: Arc<dyn LoadedGraph>,
    counting: Counting,
}

impl Counting {
    fn wrap(&self, graph: Arc<dyn LoadedGraph>) -> Arc<dyn LoadedGraph> {
        Arc::new(CountingGraph { graph, counting: self.clone() })
    }
}

impl Engine for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn version(&self) -> &'static str {
        "1"
    }

    fn capabilities(&self) -> Capabilities {
        RtenEngine::new(Some(1)).capabilities()
    }

    fn load(&self, graph: &Graph, weights: Vec<Lease>) -> Result<Arc<dyn LoadedGraph>> {
        RtenEngine::new(Some(1)).load(graph, weights).map(|graph| self.wrap(graph))
    }

    fn load_file(&self, path: &Path, mode: FileMode) -> Result<Arc<dyn LoadedGraph>> {
        RtenEngine::new(Some(1)).load_file(path, mode).map(|graph| self.wrap(graph))
    }
}

impl LoadedGraph for CountingGraph {
    fn run(&self, inputs: &[(&str, ArrayView<'_>)], outputs: &[&str]) -> Result<Vec<Array>> {
        let Counting { running, most, held } = &self.counting;
        most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        drop(held.lock());
        // Long enough for callers that nothing holds back to be seen together.
        std::thread::sleep(Duration::from_millis(20));
        let outputs = self.graph.run(inputs, outputs);
        running.fetch_sub(1, Ordering::SeqCst);
        outputs
    }

    fn precision(&self) -> DType {
        self.graph.precision()
    }

    fn inputs(&self) -> &[String] {
        self.graph.inputs()
    }

    fn input_dims(&self, name: &str) -> Option<&[Option<usize>]> {
        self.graph.input_dims(name)
    }

    fn outputs(&self) -> &[String] {
        self.graph.outputs()
    }
}

/// A model of a pool that allows so many calls at a time, and what counts them.
fn counted(max_connections: usize) -> (Arc<Counting>, PooledModel) {
    let engine = Arc::new(Counting::default());
    let runtime = Runtime::new(EmbeddedStore::builder().build(), Arc::clone(&engine) as Arc<dyn Engine>);
    let pool = ResourcePool::new(runtime, models(), max_connections).unwrap();
    let model = pool.get_model("bert", "bert", &HardwarePreferences::default()).unwrap();
    (engine, model)
}

#[test]
fn no_more_calls_run_at_a_time_than_there_are_connections() {
    let (engine, model) = counted(2);
    let computed: usize = std::thread::scope(|scope| {
        let call = |index: usize| {
            let model = &model;
            scope.spawn(move || {
                // A text of its own each: every call has to run the encoder.
                let inputs = Inputs::default().with_text(format!("harbour number {index}"));
                let report = model.run(&user(&format!("user {index}")), &inputs).unwrap();
                usize::from(report.report.stages[0].computed)
            })
        };
        let calls: Vec<_> = (0..6).map(call).collect();
        calls.into_iter().map(|call| call.join().unwrap()).sum()
    });
    assert_eq!(computed, 6, "all get served");
    let most = engine.most.load(Ordering::SeqCst);
    assert!((1..=2).contains(&most), "{most} at a time");
    // Failed calls give their connection back: otherwise the last would wait for ever.
    for _ in 0..3 {
        assert!(model.run(&user("nobody"), &Inputs::default()).is_err());
    }
    assert!(model.run(&user("next"), &Inputs::default().with_text("x")).is_ok());
}

#[test]
fn who_no_longer_wants_a_connection_does_not_wait_for_one() {
    let (engine, model) = counted(1);
    let text = |text: &str| Inputs::default().with_text(text);
    let held = engine.held.lock().unwrap();
    let asked = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| model.run(&user("one"), &text("long")).unwrap());
        while engine.running.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let wanted = || asked.fetch_add(1, Ordering::SeqCst) < 1;
        assert!(model.run_while(&user("two"), &text("x"), &wanted).unwrap().is_none());
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        drop(held);
        running.join().unwrap();
    });
    assert!(model.run_while(&user("two"), &text("x"), &|| false).unwrap().is_some(), "it is free, so nobody waits");
}

#[test]
fn output_tensors_are_leased_by_kind_and_can_be_passed_on() {
    let pool = pool(1);
    let model = pool.get_model("text_embedding", "bert", &HardwarePreferences::default()).unwrap();
    let result = model.run(&user("one"), &Inputs::default().with_text("the harbour wakes")).unwrap();
    let made = &result.output_tensors["text_embedding"];
    assert_eq!((made.shape()[0], made.shape()[2], made.dtype()), (1, 32, DType::F32));
    let leases = pool
        .share_tensor_between_models(
            made.bytes().unwrap(),
            made.dtype(),
            made.shape(),
            "passed on",
            "bert",
            &["t5"],
            "cpu",
        )
        .unwrap();
    assert_eq!(leases[1].bytes().unwrap(), made.bytes().unwrap());
}

#[test]
fn the_cap_of_a_sharing_manager_is_enforced_for_the_whole_pool() {
    let pool = pool(1);
    let model = pool.get_model("text", "bert", &HardwarePreferences::default()).unwrap();
    let loaded = model.model().stage("encoder").unwrap();
    let manager = pool.setup_tensor_sharing(1).unwrap();
    let used = pool.runtime().store().stats().memory_usage_bytes as usize;
    assert!(used > 0 && used < 1 << 20, "{used} bytes of weights");
    let register = |name: &str, bytes: usize| {
        manager.register_shared_tensor(name, &[bytes], "cpu", "bert-base-uncased", &["t5-small"], DType::U8)
    };
    assert_eq!(register("too much", (1 << 20) - used + 1).unwrap_err().kind(), ErrorKind::OverBudget);
    let tensor = register("fits", (1 << 20) - used).unwrap();
    assert_eq!(manager.get_stats().memory_usage_bytes, 1 << 20);
    tensor.release("bert-base-uncased").unwrap();
    drop((loaded, model));
    let freed = manager.optimize_memory_usage();
    assert_eq!(freed.current_memory_bytes, 0, "{freed:?}");
    // A lower cap evicts what it can and keeps what is leased.
    let kept = register("kept", 1 << 19).unwrap();
    pool.setup_tensor_sharing(0).unwrap();
    assert_eq!((kept.is_held_by("bert-base-uncased"), manager.get_stats().memory_usage_bytes), (true, 1 << 19));
}

#[test]
fn devices_that_are_not_here_are_passed_over_with_the_reason() {
    let pool = pool(1);
    let model = pool.get_model("vision", "vit", &prefer(&["cuda:0", "webgpu", "cpu"])).unwrap();
    assert_eq!(model.device().device, Device::Cpu);
    let skipped = &model.device().skipped;
    assert_eq!(skipped.iter().map(|(device, _)| device.as_str()).collect::<Vec<_>>(), ["cuda:0", "webgpu"]);
    assert!(skipped[0].1.contains("CPU only") && skipped[1].1.contains("browser"), "{skipped:?}");
    let error = pool.get_model("vision", "vit", &prefer(&["webnn"])).err().unwrap();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("priority_list")));
}

#[test]
fn wrong_types_and_names_are_errors() {
    let pool = pool(1);
    let refused = |model_type: &str, model_name: &str| {
        pool.get_model(model_type, model_name, &HardwarePreferences::default()).err().unwrap()
    };
    for model_type in ["vision", "vit", "audio_embedding", "", "gpt_neox"] {
        let error = refused(model_type, "bert");
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("model_type")), "{model_type:?}");
        assert!(error.message().contains("BERT"), "{error}");
    }
    let absolute = models().join("bert");
    for name in ["../tiny/bert", "bert/../vit", "..", "", ".", absolute.to_str().unwrap()] {
        let error = refused("bert", name);
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("model_name")), "{name:?}");
    }
    assert_eq!(refused("bert", "absent").kind(), ErrorKind::NotFound);
    let runtime = Arc::clone(pool.runtime());
    assert_eq!(ResourcePool::new(runtime, "models", 0).err().unwrap().field(), Some("max_connections"));
}

#[test]
fn a_tensor_is_leased_to_its_consumers() {
    let pool = pool(1);
    let store = pool.runtime().store();
    let values: Vec<u8> = (0..24u16).flat_map(|value| f32::from(value).to_ne_bytes()).collect();
    let share = |bytes: &[u8], shape: &[usize], name: &str, storage: &str| {
        pool.share_tensor_between_models(bytes, DType::F32, shape, name, "bert", &["t5", "llama"], storage)
    };
    let leases = share(&values, &[2, 3, 4], "bert_embedding", "cpu").unwrap();
    assert_eq!(leases.iter().map(|lease| lease.holder().to_string()).collect::<Vec<_>>(), ["bert", "t5", "llama"]);
    for lease in &leases {
        assert_eq!((lease.shape(), lease.producer()), (&[2, 3, 4][..], "bert"));
        assert_eq!(lease.bytes().unwrap().as_ptr(), leases[0].bytes().unwrap().as_ptr(), "one copy");
    }
    assert_eq!(leases[2].typed::<f32>().unwrap()[23], 23.0);
    assert_eq!(store.get("bert_embedding", &store.holder("late")).unwrap().id(), leases[0].id());
    let stats = store.stats();
    assert_eq!((stats.total_tensors, stats.memory_usage_bytes), (1, 96));
    let put = stats.copies.iter().find(|copies| copies.reason == CopyReason::Put.name()).unwrap();
    assert_eq!((put.count, put.bytes), (1, 96));
    drop(leases);
    assert_eq!(store.stats().memory_usage_bytes, 0, "freed with its last lease");

    for (bytes, shape, storage, kind, field) in [
        (&values[..95], &[2, 3, 4][..], "cpu", ErrorKind::Invalid, "tensor_data"),
        (&values[..], &[usize::MAX, 2], "cpu", ErrorKind::Invalid, "shape"),
        (&values[..], &[24], "webgpu", ErrorKind::Unsupported, "storage_type"),
        (&values[..], &[24], "floppy", ErrorKind::Invalid, "storage_type"),
    ] {
        let error = share(bytes, shape, "x", storage).unwrap_err();
        assert_eq!((error.kind(), error.field()), (kind, Some(field)), "{error}");
    }
    assert_eq!(store.stats().memory_usage_bytes, 0);
}
