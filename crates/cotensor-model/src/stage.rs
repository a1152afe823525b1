//! A stage: one graph with named inputs and outputs, run only when its result is not there yet.

use crate::array::Array;
use crate::engine::LoadedGraph;
use crate::value::{Value, array_bytes};
use cotensor_core::{ContentHash, ErrorKind, Hasher, Kind, Result, Space};
use cotensor_store::{Claim, CopyReason, Holder, Key, Reservation, Retention, Store, TensorSpec};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A loaded graph and, when it is shared, where its results are kept.
pub struct Stage {
    /// What it does in its model: `encoder`, `head.classifier`.
    pub role: String,
    /// What its outputs mean.
    pub kind: Kind,
    /// The graph's file, for errors.
    path: PathBuf,
    graph: Arc<dyn LoadedGraph>,
    sharing: Option<Sharing>,
    load_time: Duration,
}

/// What sharing a stage takes.
pub(crate) struct Sharing {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) space: Space,
    /// Name and version of the engine: two engines may round differently.
    pub(crate) engine: (&'static str, &'static str),
    /// Hash and bytes of every weight.
    pub(crate) weights: Vec<(ContentHash, usize)>,
}

/// What a run of a stage gave.
pub struct StageRun {
    /// The outputs asked for, in that order.
    pub outputs: Vec<Value>,
    /// Whether this call ran the graph; otherwise the result was there, or another call made it.
    pub computed: bool,
    /// Wall time of the call.
    pub time: Duration,
}

impl Stage {
    pub(crate) fn new(
        role: &str,
        kind: Kind,
        path: &Path,
        graph: Arc<dyn LoadedGraph>,
        sharing: Option<Sharing>,
        load_time: Duration,
    ) -> Self {
        Self { role: role.to_owned(), kind, path: path.to_path_buf(), graph, sharing, load_time }
    }

    /// The space of its outputs; `None` for a private copy, which shares nothing.
    pub fn space(&self) -> Option<Space> {
        self.sharing.as_ref().map(|sharing| sharing.space)
    }

    /// Content hash and bytes of each of its weights; empty for a private copy.
    pub fn weights(&self) -> &[(ContentHash, usize)] {
        self.sharing.as_ref().map_or(&[], |sharing| &sharing.weights)
    }

    /// How long it took to open.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// The loaded graph, for loops that keep state of their own between steps.
    pub fn graph(&self) -> &Arc<dyn LoadedGraph> {
        &self.graph
    }

    /// The key of this stage's result for these inputs; `None` for a private copy.
    pub fn key(&self, inputs: &[(&str, &Value)], outputs: &[&str]) -> Option<Key> {
        let sharing = self.sharing.as_ref()?;
        let mut hasher = sharing.key_hasher("cotensor stage v1");
        let mut inputs = inputs.to_vec();
        inputs.sort_by_key(|(name, _)| *name);
        hasher.number(inputs.len() as u64);
        for (name, value) in inputs {
            hasher.field(name.as_bytes()).field(value.identity().as_bytes());
        }
        for output in outputs {
            hasher.field(output.as_bytes());
        }
        Some(Key(hasher.finish()))
    }

    /// Runs the graph on `inputs` unless its result is already in the store. Concurrent calls with the same
    /// inputs compute it once.
    ///
    /// # Errors
    /// As [`LoadedGraph::run`] and [`Store::claim`]; `OverBudget` when the outputs do not fit the store.
    pub fn run(&self, inputs: &[(&str, &Value)], outputs: &[&str], holder: &Holder) -> Result<StageRun> {
        let start = Instant::now();
        let compute = || {
            let views: Vec<_> = inputs.iter().map(|(name, value)| Ok((*name, value.view()?))).collect::<Result<_>>()?;
            self.graph.run(&views, outputs).map_err(|error| error.in_file(&self.path))
        };
        let (outputs, computed) = match (&self.sharing, self.key(inputs, outputs)) {
            (Some(sharing), Some(key)) => {
                let labels: Vec<String> = outputs.iter().map(|output| format!("{}.{output}", self.role)).collect();
                compute_once(&*sharing.store, key, Some(sharing.space), self.kind, &labels, holder, compute)?
            }
            _ => (compute()?.into_iter().map(Value::from).collect(), true),
        };
        Ok(StageRun { outputs, computed, time: start.elapsed() })
    }

    /// Computes something that is made of this stage (a whole decoding loop) once per `extra` and engine.
    /// A private copy always computes.
    ///
    /// # Errors
    /// What `compute` returns, or as [`Store::claim`].
    pub fn run_once(
        &self,
        label: &str,
        extra: &[ContentHash],
        holder: &Holder,
        compute: impl FnOnce() -> Result<Vec<Array>>,
    ) -> Result<StageRun> {
        let start = Instant::now();
        let compute = || compute().map_err(|error| error.in_file(&self.path));
        let (outputs, computed) = match &self.sharing {
            Some(sharing) => {
                let mut hasher = sharing.key_hasher(label);
                for part in extra {
                    hasher.field(part.as_bytes());
                }
                let key = Key(hasher.finish());
                let labels = [label.to_owned()];
                compute_once(&*sharing.store, key, Some(sharing.space), self.kind, &labels, holder, compute)?
            }
            None => (compute()?.into_iter().map(Value::from).collect(), true),
        };
        Ok(StageRun { outputs, computed, time: start.elapsed() })
    }
}

impl Sharing {
    fn key_hasher(&self, domain: &str) -> Hasher {
        let mut hasher = Hasher::new(domain);
        hasher.field(self.space.0.as_bytes()).field(self.engine.0.as_bytes()).field(self.engine.1.as_bytes());
        hasher.field(b"float32");
        hasher
    }
}

/// Claims `key`; computes and publishes the arrays when nobody has. A result that may not be shared
/// (configuration) is kept privately, and the next caller computes its own.
pub(crate) fn compute_once(
    store: &dyn Store,
    key: Key,
    space: Option<Space>,
    kind: Kind,
    labels: &[String],
    holder: &Holder,
    compute: impl FnOnce() -> Result<Vec<Array>>,
) -> Result<(Vec<Value>, bool)> {
    let ticket = match store.claim(&key, holder)? {
        Claim::Ready(leases) => return Ok((leases.into_iter().map(Value::from).collect(), false)),
        Claim::Compute(ticket) => ticket,
    };
    let start = Instant::now();
    let arrays = compute()?;
    let recompute = start.elapsed();
    let spec = |index: usize, array: &Array| TensorSpec {
        name: format!("{}/{}", labels.get(index).map_or("output", String::as_str), key.0.short()),
        dtype: array.dtype(),
        shape: array.shape().to_vec(),
        kind,
        space,
        producer: holder.name().to_owned(),
        retention: Retention::Cached { recompute },
        provenance: Some(Hasher::new("cotensor output v1").field(key.0.as_bytes()).number(index as u64).finish()),
    };
    let fill = |mut reservation: Reservation, array: &Array| -> Result<Reservation> {
        let bytes = array_bytes(array);
        reservation.write(bytes)?;
        store.record_copy(CopyReason::EngineOutput, bytes.len());
        Ok(reservation)
    };
    let shared: Result<Vec<Reservation>> = arrays
        .iter()
        .enumerate()
        .map(|(index, array)| fill(store.reserve(spec(index, array), holder)?, array))
        .collect();
    match shared {
        Ok(reservations) => Ok((ticket.publish(reservations)?.into_iter().map(Value::from).collect(), true)),
        Err(error) if error.kind() == ErrorKind::Refused => {
            ticket.decline();
            Ok((arrays.into_iter().map(Value::from).collect(), true))
        }
        Err(error) => Err(error),
    }
}
