//! Loading graphs as stages, with weights and results in a store.

use crate::engine::{Candidate, Engines, MultipliedCodes, WITHOUT_CACHE};
use crate::graph::Graph;
use crate::graph::key::space_of;
use crate::quantized::GraphReport;
use crate::stage::{RunsOn, Sharing, Stage};
use crate::weights::{HashedWeights, StoredCodes};
use cotensor_core::sync::lock;
use cotensor_core::{ContentHash, Error, Kind, Result, Space};
use cotensor_store::Store;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// A store, an engine and the graphs that are loaded over them. Graphs with equal content are loaded once.
pub struct StageLoader {
    store: Arc<dyn Store>,
    engines: Engines,
    /// Loaded graphs by space: two folders with equal content load one graph.
    stages: Mutex<HashMap<(Space, String), Weak<Stage>>>,
    observer: OnceLock<LoadObserver>,
    memory: OnceLock<MemoryCheck>,
}

/// After this time, an engine without room for packed codes is tried again.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(600);

/// Answers an error when the process has fewer bytes left.
type MemoryCheck = fn(u64) -> Result<()>;

/// Called with the role and the model when a stage begins to load.
pub(super) type LoadObserver = Box<dyn Fn(&str, &str) + Send + Sync>;

/// Where a graph is from.
pub(crate) struct Origin<'a> {
    /// The producer of its weights: the model.
    pub(crate) producer: &'a str,
    /// What is known of its quantized weights.
    pub(crate) report: Option<&'a GraphReport>,
}

impl StageLoader {
    pub(super) fn new(store: Arc<dyn Store>, engines: Engines) -> Self {
        let (stages, observer, memory) = (Mutex::default(), OnceLock::new(), OnceLock::new());
        Self { store, engines, stages, observer, memory }
    }

    /// A loader with other engines over the same store, with the same check of memory.
    pub(super) fn with_engines(&self, engines: Engines) -> Self {
        Self { memory: self.memory.clone(), ..Self::new(Arc::clone(&self.store), engines) }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The engines, best first.
    pub fn engines(&self) -> &Engines {
        &self.engines
    }

    /// Sets the observer of loads. The first one stays.
    pub(super) fn observe(&self, observer: LoadObserver) {
        let _ = self.observer.set(observer);
    }

    /// Sets the check of memory. The first one stays.
    pub(super) fn limit_memory(&self, check: MemoryCheck) {
        let _ = self.memory.set(check);
    }

    /// # Errors
    /// That of the check of memory.
    pub(crate) fn check_memory(&self, bytes: u64) -> Result<()> {
        self.memory.get().map_or(Ok(()), |check| check(bytes))
    }

    /// Loads `graph` as a stage with shared weights. `preprocessing` has the fingerprints of the preprocessing of its
    /// inputs; the load time counts from `start`. The weights have the producer and the errors of `origin`.
    pub(crate) fn load_stage(
        &self,
        role: &str,
        kind: Kind,
        graph: Graph,
        preprocessing: &[ContentHash],
        origin: &Origin<'_>,
        start: Instant,
    ) -> Result<Arc<Stage>> {
        let Origin { producer, report } = origin;
        if let Some(observer) = self.observer.get() {
            observer(role, producer.trim_start_matches("model:"));
        }
        let codes = StoredCodes::of(&graph, *report);
        let mut lacks_room = false;
        self.engines.place(graph.has_codes(), |candidate| {
            let Candidate { engine, reasons, .. } = candidate;
            graph.check_repeatable()?;
            engine.check(&graph)?;
            // The next engine gets the graph of the file, if this one refuses it.
            let mut graph = graph.clone();
            engine.capabilities().fit(&mut graph);
            let weights = HashedWeights::of(&graph, &*self.store)?;
            let fingerprint = graph.fingerprint(weights.hashes());
            let space = space_of(fingerprint, preprocessing);
            let mut leases = None;
            let mut slow = None;
            loop {
                // The lock is held while the engine loads: a concurrent call waits for this copy and does not load its
                // own.
                let mut stages = lock(&self.stages);
                if let Some(stage) = stages.get(&(space, role.to_owned())).and_then(Weak::upgrade) {
                    if lacks_room {
                        stage.set_due(Instant::now() + RETRY_AFTER);
                    }
                    // Else this engine may have room by now for what another one runs.
                    if !stage.is_due(Instant::now()) {
                        return Ok(stage);
                    }
                }
                let loaded = match leases.take() {
                    Some(leases) => Some(engine.load(&graph, leases)?),
                    None => engine.load_derived(&graph, &weights, &fingerprint).unwrap_or_else(|error| {
                        lacks_room = true;
                        slow = Some(format!(
                            "it cannot keep packed codes of few bits, and expands them for each run: {error}"
                        ));
                        None
                    }),
                };
                let Some(loaded) = loaded else {
                    drop(stages);
                    slow = slow_reason(&candidate, &graph, slow.take())?;
                    leases = Some(weights.lease_described(&self.store.holder(producer), producer, &codes)?);
                    continue;
                };
                let sizes = graph.weights().iter().map(|weight| weight.size_bytes());
                let sharing = Sharing {
                    store: Arc::clone(&self.store),
                    space,
                    engine: (engine.name(), engine.version()),
                    weights: weights.hashes().iter().copied().zip(sizes).collect(),
                    codes: codes.sums(graph.weights()),
                    joins_rows: graph.joins_rows(),
                };
                let runs_on = RunsOn { notice: slow, ..RunsOn::new(&**engine, &*loaded, reasons) };
                let stage = Stage::new(role, kind, graph.path(), loaded, Some(sharing), runs_on, start.elapsed());
                if lacks_room {
                    stage.set_due(Instant::now() + RETRY_AFTER);
                }
                let stage = Arc::new(stage);
                stages.retain(|_, stage| stage.strong_count() > 0);
                stages.insert((space, role.to_owned()), Arc::downgrade(&stage));
                return Ok(stage);
            }
        })
    }

    /// The space of `graph` as a stage, without loading it.
    pub(crate) fn space(&self, graph: Graph, preprocessing: &[ContentHash]) -> Result<Space> {
        self.engines.place(graph.has_codes(), |Candidate { engine, .. }| {
            engine.check(&graph)?;
            let mut graph = graph.clone();
            engine.capabilities().fit(&mut graph);
            let weights = HashedWeights::of(&graph, &*self.store)?;
            Ok(space_of(graph.fingerprint(weights.hashes()), preprocessing))
        })
    }
}

/// Why an engine that loads a graph with weights of the store expands its codes for each run; `None` if it does not. `reason` is that
/// for which it has no derived files.
///
/// # Errors
/// `Unsupported` with the reason, if another engine follows that may not expand them.
fn slow_reason(candidate: &Candidate<'_>, graph: &Graph, reason: Option<String>) -> Result<Option<String>> {
    if candidate.engine.capabilities().multiplied_codes == MultipliedCodes::Stored || !graph.has_codes() {
        return Ok(None);
    }
    match reason {
        Some(reason) if !candidate.is_last => Err(Error::unsupported(reason)),
        reason => Ok(Some(reason.unwrap_or_else(|| WITHOUT_CACHE.to_owned()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Capabilities, Engine, FileMode, LoadedGraph, RtenEngine};
    use crate::graph::open_graph;
    use crate::model::{Model, StageSource};
    use cotensor_core::{DType, ErrorKind};
    use cotensor_store::{Lease, LocalStore};
    use rten_onnx::onnx::{
        AttributeProto, AttributeType, DataType, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
        ValueInfoProto,
    };
    use std::cell::RefCell;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// An engine that refuses all graphs, and keeps what it saw.
    struct Refusing {
        widens_floats: bool,
        error: ErrorKind,
        seen: Mutex<Vec<(DType, ContentHash)>>,
    }

    impl Refusing {
        fn new(widens_floats: bool, error: ErrorKind) -> Arc<Self> {
            Arc::new(Self { widens_floats, error, seen: Mutex::default() })
        }
    }

    impl Engine for Refusing {
        fn name(&self) -> &'static str {
            "refusing"
        }

        fn version(&self) -> &'static str {
            "1"
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities { widens_floats: self.widens_floats, ..RtenEngine::new(Some(1)).capabilities() }
        }

        fn load(&self, graph: &Graph, weights: Vec<Lease>) -> Result<Arc<dyn LoadedGraph>> {
            let hashes: Vec<ContentHash> =
                weights.iter().map(|lease| ContentHash::of(lease.bytes().unwrap_or_default())).collect();
            lock(&self.seen).push((graph.weights()[0].dtype, graph.fingerprint(&hashes)));
            Err(Error::new(self.error, "refused"))
        }

        fn load_file(&self, _: &Path, _: FileMode) -> Result<Arc<dyn LoadedGraph>> {
            Err(Error::new(self.error, "refused"))
        }
    }

    /// `y = x + w` with a `float16` weight.
    fn model() -> ModelProto {
        let name = |name: &str| Some(name.to_owned());
        let weight = TensorProto {
            name: name("w"),
            dims: vec![1024],
            data_type: Some(DataType::FLOAT16),
            raw_data: Some(RefCell::new((0..2048).map(|at| (at % 60) as u8).collect())),
            ..TensorProto::default()
        };
        let node = NodeProto {
            op_type: name("Add"),
            input: vec!["x".into(), "w".into()],
            output: vec!["y".into()],
            ..NodeProto::default()
        };
        let port = |port: &str| ValueInfoProto { name: name(port), r#type: None };
        let graph = GraphProto {
            node: vec![node],
            initializer: vec![weight],
            input: vec![port("x")],
            output: vec![port("y")],
            value_info: vec![],
        };
        let opset_import = vec![OperatorSetIdProto { domain: None, version: Some(18) }];
        ModelProto { ir_version: Some(8), opset_import, graph: Some(graph), ..ModelProto::default() }
    }

    /// A product by codes of 4 bits.
    fn coded_model() -> ModelProto {
        let name = |name: &str| Some(name.to_owned());
        let tensor = |label: &str, dims: &[i64], dtype, bytes: usize| TensorProto {
            name: name(label),
            dims: dims.to_vec(),
            data_type: Some(dtype),
            raw_data: Some(RefCell::new(vec![0; bytes])),
            ..TensorProto::default()
        };
        let number = |label: &str, value| AttributeProto {
            name: name(label),
            i: Some(value),
            r#type: Some(AttributeType::INT),
            ..AttributeProto::default()
        };
        let node = NodeProto {
            op_type: name("MatMulNBits"),
            domain: name("com.microsoft"),
            input: vec!["x".into(), "codes".into(), "scales".into()],
            output: vec!["y".into()],
            attribute: vec![number("K", 64), number("N", 64), number("bits", 4), number("block_size", 32)],
            ..NodeProto::default()
        };
        let weights =
            vec![tensor("codes", &[64, 2, 16], DataType::UINT8, 2048), tensor("scales", &[128], DataType::FLOAT, 512)];
        let mut model = model();
        model.graph = model.graph.map(|graph| GraphProto { node: vec![node], initializer: weights, ..graph });
        model.opset_import.push(OperatorSetIdProto { domain: name("com.microsoft"), version: Some(1) });
        model
    }

    /// rten, with or without room for the codes that it would pack.
    struct Full(RtenEngine, AtomicBool);

    impl Full {
        fn new() -> Arc<Self> {
            Arc::new(Self(RtenEngine::new(Some(1)), AtomicBool::new(false)))
        }
    }

    impl Engine for Full {
        fn name(&self) -> &'static str {
            "full"
        }

        fn version(&self) -> &'static str {
            "1"
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities { multiplied_codes: MultipliedCodes::Packed, ..self.0.capabilities() }
        }

        fn load(&self, graph: &Graph, weights: Vec<Lease>) -> Result<Arc<dyn LoadedGraph>> {
            self.0.load(graph, weights)
        }

        fn load_derived(
            &self,
            graph: &Graph,
            _: &HashedWeights<'_>,
            _: &ContentHash,
        ) -> Result<Option<Arc<dyn LoadedGraph>>> {
            if self.1.load(Ordering::Relaxed) {
                return self.0.load_private(graph.clone()).map(Some);
            }
            Err(Error::new(ErrorKind::Io, "no room"))
        }

        fn load_file(&self, path: &Path, mode: FileMode) -> Result<Arc<dyn LoadedGraph>> {
            self.0.load_file(path, mode)
        }
    }

    /// An engine without room for packed codes gives way to those that follow. The last one expands the codes.
    #[test]
    fn the_last_engine_loads_codes_without_derived_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, coded_model().write_buf().unwrap()).unwrap();
        let load = |engines: Vec<Arc<dyn Engine>>| {
            let loader = StageLoader::new(LocalStore::builder().build(), Engines::of(engines));
            let origin = Origin { producer: "model:test", report: None };
            let graph = open_graph(&path).unwrap();
            let stage = loader.load_stage("encoder", Kind::Other, graph, &[], &origin, Instant::now()).unwrap();
            stage.runs_on().clone()
        };
        let full = || Full::new() as Arc<dyn Engine>;
        let given_way = load(vec![full(), Arc::new(RtenEngine::new(Some(1)))]);
        assert!(given_way.engine.starts_with("rten") && given_way.notice.is_none(), "{given_way:?}");
        assert!(given_way.reasons[0].contains("no room"), "{given_way:?}");
        for before in [None, Some(Refusing::new(false, ErrorKind::Unsupported) as Arc<dyn Engine>)] {
            let last = load(before.into_iter().chain([full()]).collect());
            assert!(last.engine.starts_with("full"), "{last:?}");
            assert!(last.notice.as_ref().is_some_and(|notice| notice.contains("no room")), "{last:?}");
        }
    }

    /// A disk that was full has room again.
    #[test]
    fn an_engine_without_room_for_codes_is_tried_again() {
        let full = Full::new();
        let engines: Vec<Arc<dyn Engine>> = vec![full.clone(), Arc::new(RtenEngine::new(Some(1)))];
        let loader = Arc::new(StageLoader::new(LocalStore::builder().build(), Engines::of(engines)));
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/low-bit/bert");
        let model = Model::open(&folder, StageSource::Shared(loader)).unwrap();
        let load = || model.stage("encoder").unwrap();
        let first = load();
        assert!(first.runs_on().engine.starts_with("rten"), "{:?}", first.runs_on());
        first.set_due(Instant::now());
        assert!(Arc::ptr_eq(&load(), &first), "there is no room");
        full.1.store(true, Ordering::Relaxed);
        assert!(Arc::ptr_eq(&load(), &first) && !first.is_due(Instant::now()), "it was tried just before");
        first.set_due(Instant::now());
        let again = load();
        assert!(again.runs_on().engine.starts_with("full"), "{:?}", again.runs_on());
        assert!(Arc::ptr_eq(&load(), &again) && !again.is_due(Instant::now() + RETRY_AFTER));
    }

    /// What an engine gets does not depend on the engines that refused the graph before.
    #[test]
    fn an_engine_gets_the_graph_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, model().write_buf().unwrap()).unwrap();
        let seen = |before: Option<Arc<Refusing>>| {
            let last = Refusing::new(false, ErrorKind::Engine);
            let engines = before.into_iter().chain([last.clone()]).map(|engine| engine as Arc<dyn Engine>);
            let loader = StageLoader::new(LocalStore::builder().build(), Engines::of(engines.collect()));
            let origin = Origin { producer: "model:test", report: None };
            let graph = open_graph(&path).unwrap();
            let loaded = loader.load_stage("encoder", Kind::Other, graph, &[], &origin, Instant::now());
            assert_eq!(loaded.err().unwrap().kind(), ErrorKind::Engine);
            lock(&last.seen).clone()
        };
        let first = Refusing::new(true, ErrorKind::Unsupported);
        let alone = seen(None);
        assert_eq!(alone[0].0, DType::F16);
        assert_eq!(seen(Some(Arc::clone(&first))), alone);
        assert_eq!(lock(&first.seen)[0].0, DType::F32);
        assert_ne!(lock(&first.seen)[0].1, alone[0].1);
    }
}
