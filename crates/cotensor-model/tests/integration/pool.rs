//! The resource pool: one loaded copy, a bounded number of concurrent calls, devices by preference, tensors by name.

use crate::support::onnx::TemporaryFiles;
use cotensor_core::{DType, DerivedFiles, Device, ErrorKind, Result};
use cotensor_hub::{Hub, Settings};
use cotensor_model::Runtime;
use cotensor_model::engine::{Capabilities, Engine, FileMode, LoadedGraph, Output, OutputAllocator, RtenEngine};
use cotensor_model::graph::{Graph, Port};
use cotensor_model::pipeline::{Inputs, Pipeline, User};
use cotensor_model::pool::{HardwarePreferences, PooledModel, Quantizing, ResourcePool, UltraLowPrecisionOptions};
use cotensor_model::tensor::TensorRef;
use cotensor_store::{CopyReason, Lease, LocalStore};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny")
}

fn pool(max_connections: usize) -> ResourcePool {
    // A name that is not a folder must not reach a hub.
    let hub = Hub::new(Settings { offline: true, ..Settings::from_env() });
    let runtime = Runtime::with_hub(LocalStore::builder().build(), Arc::new(RtenEngine::new(Some(1))), hub);
    ResourcePool::new(runtime, models(), max_connections).unwrap()
}

fn prefer(devices: &[&str]) -> HardwarePreferences {
    HardwarePreferences {
        priority_list: devices.iter().map(|device| (*device).to_owned()).collect(),
        ..HardwarePreferences::default()
    }
}

fn user(name: &str) -> User {
    let toml = format!("[[user]]\nname = '{name}'\nmodel = 'bert'\ntask = 'sentence-embedding'\n");
    Pipeline::parse(&toml).unwrap().users.remove(0)
}

#[test]
fn concurrent_requests_load_one_copy_of_a_model() {
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

#[test]
fn model_of_few_bits_is_made_once_and_checked_before() {
    let files = TemporaryFiles(tempfile::tempdir().unwrap());
    let mut steps = 0;
    let mut get = |model_type: &str, name: &str, precision: &str, copies: Option<&TemporaryFiles>| {
        let preferences =
            HardwarePreferences { precision: Some(precision.to_owned()), ..HardwarePreferences::default() };
        let copies = copies.map(|copies| copies as &dyn DerivedFiles);
        pool(1).get_model_with(
            model_type,
            name,
            &preferences,
            Quantizing { copies, progress: &mut |_, _, _| steps += 1 },
        )
    };
    let kind = |model: Result<PooledModel>| model.err().unwrap().kind();
    assert_eq!(kind(get("vision", "bert", "3", Some(&files))), ErrorKind::Invalid);
    assert_eq!(kind(get("text", "bert", "3", None)), ErrorKind::Unsupported);
    assert_eq!(std::fs::read_dir(files.0.path()).unwrap().count(), 0);
    let made = get("text", "bert", "3", Some(&files)).unwrap();
    let report = made.model().quantization().unwrap().unwrap();
    assert!((report.bits_per_weight() - 3.5).abs() < 1e-9 && made.model().name() == "bert");
    let options = UltraLowPrecisionOptions {
        precision_bits: 3,
        mixed_precision: false,
        enable_kv_cache: false,
        extended_context: false,
        calibration: None,
        folder: None,
    };
    let quantizing = Quantizing { copies: Some(&files), progress: &mut |_, _, _| panic!("it is made already") };
    let ready = pool(1).setup_ultra_low_precision("bert", "text", &options, quantizing).unwrap();
    assert_eq!((ready.folder.as_path(), ready.context_tokens), (made.model().folder(), Some(64)));
    assert!(ready.report.is_some() && ready.notices.is_empty());
    assert!(steps > 0);
}

/// An engine whose graphs wait before they run, until the test opens the gate.
#[derive(Clone, Default)]
struct Gated {
    gate: Arc<(Mutex<Gate>, Condvar)>,
}

#[derive(Default)]
struct Gate {
    open: bool,
    running: usize,
    most: usize,
}

struct GatedGraph {
    graph: Arc<dyn LoadedGraph>,
    engine: Gated,
}

impl Gated {
    fn wrap(&self, graph: Arc<dyn LoadedGraph>) -> Arc<dyn LoadedGraph> {
        Arc::new(GatedGraph { graph, engine: self.clone() })
    }

    /// Changes the gate and notifies every waiting thread.
    fn update<T>(&self, change: impl FnOnce(&mut Gate) -> T) -> T {
        let result = change(&mut self.gate.0.lock().unwrap());
        self.gate.1.notify_all();
        result
    }

    fn wait_until(&self, reached: impl Fn(&Gate) -> bool) {
        let gate = self.gate.0.lock().unwrap();
        let (_gate, wait) =
            self.gate.1.wait_timeout_while(gate, Duration::from_secs(60), |gate| !reached(gate)).unwrap();
        assert!(!wait.timed_out(), "the state was not reached within a minute");
    }
}

impl Engine for Gated {
    fn name(&self) -> &'static str {
        "gated"
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

impl LoadedGraph for GatedGraph {
    fn run(
        &self,
        inputs: &[(&str, TensorRef<'_>)],
        outputs: &[&str],
        allocator: &dyn OutputAllocator,
    ) -> Result<Vec<Output>> {
        self.engine.update(|gate| {
            gate.running += 1;
            gate.most = gate.most.max(gate.running);
        });
        self.engine.wait_until(|gate| gate.open);
        let outputs = self.graph.run(inputs, outputs, allocator);
        self.engine.update(|gate| gate.running -= 1);
        outputs
    }

    fn precision(&self) -> DType {
        self.graph.precision()
    }

    fn inputs(&self) -> &[Port] {
        self.graph.inputs()
    }

    fn outputs(&self) -> &[Port] {
        self.graph.outputs()
    }
}

/// A model of a pool that allows so many concurrent calls, and its engine.
fn gated(max_connections: usize) -> (Arc<Gated>, PooledModel) {
    let engine = Arc::new(Gated::default());
    let runtime = Runtime::new(LocalStore::builder().build(), Arc::clone(&engine) as Arc<dyn Engine>);
    let pool = ResourcePool::new(runtime, models(), max_connections).unwrap();
    let model = pool.get_model("bert", "bert", &HardwarePreferences::default()).unwrap();
    (engine, model)
}

#[test]
fn concurrent_calls_are_limited_to_the_number_of_connections() {
    let (engine, model) = gated(2);
    let text = |index: usize| Inputs::default().with_text(format!("harbour number {index}"));
    let computed: usize = std::thread::scope(|scope| {
        let call = |index: usize| {
            let (model, text) = (&model, &text);
            scope.spawn(move || {
                // Each call has a text of its own, so it runs the encoder.
                let report = model.run(&user(&format!("user {index}")), &text(index)).unwrap();
                usize::from(report.report.stages[0].computed)
            })
        };
        let calls: Vec<_> = (0..6).map(call).collect();
        // Two calls hold the connections, so no other call gets one.
        engine.wait_until(|gate| gate.running == 2);
        assert!(model.run_while(&user("third"), &text(6), &|| false).unwrap().is_none());
        engine.update(|gate| gate.open = true);
        calls.into_iter().map(|call| call.join().unwrap()).sum()
    });
    assert_eq!((computed, engine.update(|gate| gate.most)), (6, 2), "all six calls run, two at a time");
    // A failed call releases its connection: otherwise the last call would wait for ever.
    for _ in 0..3 {
        assert!(model.run(&user("nobody"), &Inputs::default()).is_err());
    }
    assert!(model.run(&user("next"), &text(7)).is_ok());
}

#[test]
fn waiting_call_ends_when_its_caller_gives_up() {
    let (engine, model) = gated(1);
    let text = |text: &str| Inputs::default().with_text(text);
    let checks = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| model.run(&user("one"), &text("long")).unwrap());
        engine.wait_until(|gate| gate.running == 1);
        let wanted = || checks.fetch_add(1, Ordering::SeqCst) < 1;
        assert!(model.run_while(&user("two"), &text("x"), &wanted).unwrap().is_none());
        assert_eq!(checks.load(Ordering::SeqCst), 2);
        engine.update(|gate| gate.open = true);
        running.join().unwrap();
    });
    assert!(model.run_while(&user("two"), &text("x"), &|| false).unwrap().is_some(), "a free connection needs no wait");
}

#[test]
fn output_tensors_are_leased_by_kind_and_can_be_shared() {
    let pool = pool(1);
    let model = pool.get_model("text_embedding", "bert", &HardwarePreferences::default()).unwrap();
    let result = model.run(&user("one"), &Inputs::default().with_text("the harbour wakes")).unwrap();
    let made = &result.output_tensors["text_embedding"];
    assert_eq!((made.shape()[0], made.shape()[2], made.dtype()), (1, 32, DType::F32));
    let leases = pool
        .share_tensor_between_models(TensorRef::of_lease(made).unwrap(), "passed on", "bert", &["t5"], "cpu")
        .unwrap();
    assert_eq!(leases[1].bytes().unwrap(), made.bytes().unwrap());
}

#[test]
fn memory_limit_of_a_sharing_manager_applies_to_the_whole_pool() {
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
fn unavailable_devices_are_skipped_with_the_reason() {
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
fn precision_chooses_the_variant_of_the_graphs() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("bert");
    for inner in ["onnx", "1_Pooling"] {
        std::fs::create_dir_all(copy.join(inner)).unwrap();
    }
    let copies =
        ["config.json", "tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json", "onnx/model.onnx_data"];
    for (from, to) in copies.map(|file| (file, file)).into_iter().chain([("onnx/model.onnx", "onnx/model_fp16.onnx")]) {
        std::fs::copy(models().join("bert").join(from), copy.join(to)).unwrap();
    }
    let runtime = Runtime::new(LocalStore::builder().build(), Arc::new(RtenEngine::new(Some(1))));
    let pool = ResourcePool::new(runtime, folder.path(), 1).unwrap();
    let run = |precision: Option<&str>| {
        let precision = precision.map(str::to_owned);
        let preferences = HardwarePreferences { precision, ..HardwarePreferences::default() };
        let model = pool.get_model("bert", "bert", &preferences)?;
        model.run(&user("one"), &Inputs::default().with_text("Sample text"))
    };
    let any = run(None).unwrap().report.answer;
    for half in ["fp16", "16"] {
        assert_eq!(run(Some(half)).unwrap().report.answer, any, "the only variant");
    }
    for (precision, variant) in [("32", "\"fp32\""), ("int8", "\"int8\""), ("q4", "\"q4\"")] {
        let error = run(Some(precision)).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("variant")), "{error}");
        assert!([variant, "onnx/model_fp16.onnx"].iter().all(|part| error.message().contains(part)), "{error}");
    }
    for bits in ["2", "4"] {
        let error = run(Some(bits)).unwrap_err();
        assert_eq!(
            (error.kind(), error.field()),
            (ErrorKind::Unsupported, Some("precision")),
            "without a cache: {error}"
        );
    }
}

#[test]
fn wrong_model_types_and_names_are_errors() {
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
fn shared_tensor_is_leased_to_its_consumers() {
    let pool = pool(1);
    let store = pool.runtime().store();
    let values: Vec<f32> = (0..24u16).map(f32::from).collect();
    let share = |shape: &[usize], name: &str, storage: &str| {
        pool.share_tensor_between_models(TensorRef::f32(shape, &values)?, name, "bert", &["t5", "llama"], storage)
    };
    let leases = share(&[2, 3, 4], "bert_embedding", "cpu").unwrap();
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
    let leases = share(&[24], "of_browsers", "webgpu").unwrap();
    assert!(leases.iter().all(|lease| lease.device() == Device::Cpu));
    drop(leases);

    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let tensor = |shape, bytes| TensorRef::of_bytes(DType::F32, shape, bytes);
    let of_file =
        pool.share_tensor_between_models(tensor(&[24], &bytes).unwrap(), "of_file", "bert", &[], "cpu").unwrap();
    assert_eq!(of_file[0].bytes().unwrap(), bytes);
    drop(of_file);
    for (shape, bytes, field) in [(&[2, 3, 4][..], &bytes[..95], "bytes"), (&[usize::MAX, 2], &bytes[..], "shape")] {
        let error = tensor(shape, bytes).err().unwrap();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some(field)), "{error}");
    }
    for (storage, kind) in [("cuda", ErrorKind::Unsupported), ("floppy", ErrorKind::Invalid)] {
        let error = share(&[24], "x", storage).unwrap_err();
        assert_eq!((error.kind(), error.field()), (kind, Some("storage_type")), "{error}");
    }
    assert_eq!(store.stats().memory_usage_bytes, 0);
}
