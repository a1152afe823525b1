use super::compute::compute_once;
use super::outputs::{Computation, Made, publish_each, values};
use crate::engine::{Engine, LoadedGraph, Output, OutputAllocator, OwnMemory};
use crate::graph::key::{Execution, StageIdentity};
use crate::graph::open_graph;
use crate::quantized::CodedSums;
use crate::tensor::Value;
use cotensor_core::sync::lock;
use cotensor_core::{ContentHash, Error, Kind, Result, Space};
use cotensor_pipeline::StagePorts;
use cotensor_store::{Claim, Holder, Key, Store, Ticket};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A loaded graph. A shared stage has a store for its results.
pub struct Stage {
    /// The role in its model: `encoder`, `head.classifier`.
    pub role: String,
    /// The kind of its outputs.
    pub kind: Kind,
    /// The graph's file, for error messages.
    path: PathBuf,
    graph: Arc<dyn LoadedGraph>,
    sharing: Option<Sharing>,
    runs_on: RunsOn,
    /// The stage whose result this one reads, and the name of the input.
    before: Option<(Arc<Stage>, String)>,
    load_time: Duration,
    /// When it is to be loaded again: a better engine had no room for packed codes.
    due: Mutex<Option<Instant>>,
}

/// The engine of a stage, and why it is not a better one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunsOn {
    /// Name and version, such as `ort 1.32.0`.
    pub engine: String,
    /// For each better engine that does not run the stage: its name and the reason.
    pub reasons: Vec<String>,
    /// Why the engine is slower than it could be.
    pub notice: Option<String>,
}

impl RunsOn {
    pub(crate) fn new(engine: &dyn Engine, graph: &dyn LoadedGraph, reasons: &[String]) -> Self {
        let engine = [engine.name(), engine.version(), graph.variant()].join(" ");
        Self { engine: engine.trim_end().to_owned(), reasons: reasons.to_vec(), notice: None }
    }
}

/// The store of a shared stage, and what identifies its results.
#[derive(Clone)]
pub(crate) struct Sharing {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) space: Space,
    /// Name and version of the engine. Two engines may round differently.
    pub(crate) engine: (&'static str, &'static str),
    /// Hash and size in bytes of every weight.
    pub(crate) weights: Vec<(ContentHash, usize)>,
    /// Of its matrices of codes.
    pub(crate) codes: Option<CodedSums>,
    /// As [`Stage::joins_rows`], for this graph alone.
    pub(crate) joins_rows: Option<String>,
}

/// What a call has to do for a result; see [`Stage::claim_each`].
pub(crate) enum Claimed {
    /// Nothing: these are its outputs.
    Ready(Vec<Value>),
    /// Compute it. Without a ticket, it stays private.
    Compute(Option<Ticket>),
    /// Ask for it alone: another caller computes it, or the store refused.
    Elsewhere,
}

/// The result of running a stage.
pub struct StageRun {
    /// The requested outputs, in that order.
    pub outputs: Vec<Value>,
    /// Whether this call ran the graph. Otherwise the store had the result, or another call computed it.
    pub computed: bool,
    /// Wall time of the call.
    pub time: Duration,
    /// The run of the stage before, if this call asked for its result.
    pub before: Option<Box<StageRun>>,
}

impl StageRun {
    /// The names of the tensors that this call put into the store.
    pub(crate) fn made(&self) -> Vec<String> {
        let leases = self.outputs.iter().filter(|_| self.computed).filter_map(Value::lease);
        leases.map(|lease| lease.name().to_owned()).collect()
    }
}

impl Stage {
    pub(crate) fn new(
        role: &str,
        kind: Kind,
        path: &Path,
        graph: Arc<dyn LoadedGraph>,
        sharing: Option<Sharing>,
        runs_on: RunsOn,
        load_time: Duration,
    ) -> Self {
        let (role, path) = (role.to_owned(), path.to_path_buf());
        Self { role, kind, path, graph, sharing, runs_on, before: None, load_time, due: Mutex::new(None) }
    }

    /// The graph's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The engine that runs the stage.
    pub fn runs_on(&self) -> &RunsOn {
        &self.runs_on
    }

    /// This stage as the continuation of `before`, whose result is the input `input`. Callers give the inputs of both.
    pub(crate) fn continuing(&self, before: Arc<Stage>, input: &str) -> Self {
        Self {
            role: self.role.clone(),
            kind: self.kind,
            path: self.path.clone(),
            graph: Arc::clone(&self.graph),
            sharing: self.sharing.clone(),
            runs_on: self.runs_on.clone(),
            load_time: before.load_time + self.load_time,
            before: Some((before, input.to_owned())),
            due: Mutex::new(*lock(&self.due)),
        }
    }

    /// Has the stage, and the one that it continues, loaded again at the next use after this time.
    pub(crate) fn set_due(&self, due: Instant) {
        *lock(&self.due) = Some(due);
        if let Some((before, _)) = self.before() {
            before.set_due(due);
        }
    }

    /// Whether the stage, or the one that it continues, is to be loaded again.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let is_past = lock(&self.due).is_some_and(|due| due <= now);
        is_past || self.before().is_some_and(|(stage, _)| stage.is_due(now))
    }

    /// An operator by which a row of a batch depends on the other rows, so that each has to run alone. Reads the file of a
    /// private copy.
    ///
    /// # Errors
    /// As [`open_graph`].
    pub fn joins_rows(&self) -> Result<Option<String>> {
        if let Some(found) = self.before().map(|(stage, _)| stage.joins_rows()).transpose()?.flatten() {
            return Ok(Some(found));
        }
        match &self.sharing {
            Some(sharing) => Ok(sharing.joins_rows.clone()),
            None => Ok(open_graph(&self.path)?.joins_rows()),
        }
    }

    /// The stage that this one continues, and the name of the input that reads its result.
    pub fn before(&self) -> Option<(&Arc<Stage>, &str)> {
        self.before.as_ref().map(|(stage, input)| (stage, input.as_str()))
    }

    /// The space of the outputs; `None` for a private copy.
    pub fn space(&self) -> Option<Space> {
        self.sharing.as_ref().map(|sharing| sharing.space)
    }

    /// Content hash and size in bytes of each weight; empty for a private copy.
    pub fn weights(&self) -> &[(ContentHash, usize)] {
        self.sharing.as_ref().map_or(&[], |sharing| &sharing.weights)
    }

    /// The bytes of its weights in the store.
    pub fn weight_bytes(&self) -> u64 {
        self.weights().iter().map(|(_, bytes)| *bytes as u64).sum()
    }

    /// The sums over its matrices of codes, and those of the stage that it continues. `None` without one, and for a private copy.
    pub(crate) fn codes(&self) -> Option<CodedSums> {
        let before = self.before().and_then(|(stage, _)| stage.codes());
        CodedSums::of_both(before, self.sharing.as_ref().and_then(|sharing| sharing.codes))
    }

    /// The time that loading took.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// The loaded graph, for decoding loops that keep state between steps.
    pub fn graph(&self) -> &Arc<dyn LoadedGraph> {
        &self.graph
    }

    /// The inputs and outputs of the graph.
    pub fn ports(&self) -> StagePorts<'_> {
        StagePorts { role: &self.role, inputs: self.graph.inputs(), outputs: self.graph.outputs() }
    }

    /// Whether the graph has an output of this name.
    pub fn has_output(&self, name: &str) -> bool {
        self.ports().has_output(name)
    }

    /// The key of the result for these inputs; `None` for a private copy.
    pub fn key(&self, inputs: &[(&str, &Value)], outputs: &[&str]) -> Option<Key> {
        let identity = self.identity()?;
        let before = self.before.as_ref().and_then(|(stage, _)| stage.identity()).map(|before| before.execution);
        let inputs: Vec<_> = inputs.iter().map(|(name, value)| (*name, value.identity())).collect();
        Some(Key(identity.key(before, &inputs, outputs)))
    }

    fn identity(&self) -> Option<StageIdentity<'_>> {
        let Sharing { space, engine: (engine, version), .. } = self.sharing.as_ref()?;
        let (precision, variant) = (self.graph.precision(), self.graph.variant());
        Some(StageIdentity { space: *space, execution: Execution { engine, version, precision, variant } })
    }

    /// Runs the graph on `inputs`, unless the store has the result. Concurrent calls with equal inputs compute it once.
    /// A continuation first gets the result of the stage before, unless `inputs` has it.
    ///
    /// # Errors
    /// As [`LoadedGraph::run`] and [`ComputationStore::claim`](cotensor_store::ComputationStore::claim); `OverBudget`
    /// when the outputs do not fit the store.
    pub fn run(&self, inputs: &[(&str, &Value)], outputs: &[&str], holder: &Holder) -> Result<StageRun> {
        let start = Instant::now();
        let labels: Vec<String> = outputs.iter().map(|output| format!("{}.{output}", self.role)).collect();
        let mut before = None;
        let compute = |allocator: &dyn OutputAllocator| {
            let mut given = inputs.to_vec();
            if let Some((stage, input)) =
                self.before().filter(|(_, input)| inputs.iter().all(|(name, _)| name != input))
            {
                let run = before.insert(Box::new(stage.run(&stage.known(inputs), &[input], holder)?));
                let made = run.outputs.first();
                given.push((
                    input,
                    made.ok_or_else(|| Error::not_found(format!("the store lost the result {input}")).in_field(input))?,
                ));
                given = self.known(&given);
            }
            let tensors = given.iter().map(|(name, value)| Ok((*name, value.tensor()?))).collect::<Result<Vec<_>>>()?;
            self.graph.run(&tensors, outputs, allocator)
        };
        let run = self.compute(self.key(inputs, outputs), &labels, holder, start, compute)?;
        Ok(StageRun { before, ..run })
    }

    /// The inputs that the graph has.
    fn known<'v>(&self, inputs: &[(&'v str, &'v Value)]) -> Vec<(&'v str, &'v Value)> {
        let known = |name: &str| self.graph.inputs().iter().any(|port| port.name == name);
        inputs.iter().copied().filter(|(name, _)| known(name)).collect()
    }

    /// Computes a result that takes several runs, such as a decoding loop, once per `extra` and engine. A private copy
    /// always computes.
    ///
    /// # Errors
    /// The errors of `compute`, or as [`ComputationStore::claim`](cotensor_store::ComputationStore::claim).
    pub fn run_once(
        &self,
        label: &str,
        extra: &[ContentHash],
        holder: &Holder,
        compute: impl FnOnce(&dyn OutputAllocator) -> Result<Vec<Output>>,
    ) -> Result<StageRun> {
        let start = Instant::now();
        self.compute(self.key_once(label, extra), &[label.to_owned()], holder, start, compute)
    }

    /// The claims of several results of [`run_once`](Self::run_once), by what identifies each besides the stage: in one round trip to the
    /// store, and without a wait for other callers.
    pub(crate) fn claim_each(
        &self,
        label: &str,
        extras: &[impl AsRef<[ContentHash]>],
        holder: &Holder,
    ) -> Vec<Claimed> {
        let keys: Option<Vec<Key>> = extras.iter().map(|extra| self.key_once(label, extra.as_ref())).collect();
        let Some((Sharing { store, .. }, keys)) = self.sharing.as_ref().zip(keys) else {
            return extras.iter().map(|_| Claimed::Compute(None)).collect();
        };
        if store.config().refuses(self.kind, 0).is_some() {
            return extras.iter().map(|_| Claimed::Elsewhere).collect();
        }
        let claims = store.claim_each(&keys, holder).into_iter().map(|claim| match claim {
            Ok(Claim::Ready(leases)) => Claimed::Ready(values(leases)),
            Ok(Claim::Compute(ticket)) => Claimed::Compute(Some(ticket)),
            Err(_) => Claimed::Elsewhere,
        });
        claims.collect()
    }

    /// Publishes what a call computed for its claims, in one round trip to the store.
    ///
    /// # Errors
    /// As [`run_once`](Self::run_once).
    pub(crate) fn publish_each(&self, label: &str, holder: &Holder, made: Vec<Made>) -> Result<()> {
        // Only a shared stage has tickets.
        let (Some(Sharing { store, space, .. }), Some(first)) = (&self.sharing, made.first()) else { return Ok(()) };
        let (key, labels) = (first.ticket.key(), [label.to_owned()]);
        let computation =
            Computation { store: &**store, key, space: Some(*space), kind: self.kind, labels: &labels, holder };
        publish_each(&computation, made)
    }

    fn key_once(&self, label: &str, extra: &[ContentHash]) -> Option<Key> {
        Some(Key(self.identity()?.key_once(label, extra)))
    }

    /// Computes once per key; a private copy has no key and always computes.
    fn compute(
        &self,
        key: Option<Key>,
        labels: &[String],
        holder: &Holder,
        start: Instant,
        compute: impl FnOnce(&dyn OutputAllocator) -> Result<Vec<Output>>,
    ) -> Result<StageRun> {
        let compute = |allocator: &dyn OutputAllocator| compute(allocator).map_err(|error| error.in_file(&self.path));
        let (outputs, computed) = match (&self.sharing, key) {
            (Some(Sharing { store, space, .. }), Some(key)) => {
                let (store, space) = (&**store, Some(*space));
                compute_once(&Computation { store, key, space, kind: self.kind, labels, holder }, compute)?
            }
            _ => {
                let outputs = compute(&OwnMemory::default())?;
                let values = outputs.into_iter().map(|output| output.into_array().map(Value::from));
                (values.collect::<Result<_>>()?, true)
            }
        };
        Ok(StageRun { outputs, computed, time: start.elapsed(), before: None })
    }
}
