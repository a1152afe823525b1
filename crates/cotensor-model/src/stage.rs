//! A stage: one graph with named inputs and outputs, run only when its result is not there yet.

use crate::array::Array;
use crate::engine::LoadedGraph;
use crate::value::{Value, array_bytes};
use cotensor_core::{ContentHash, DType, ErrorKind, Hasher, Kind, Result, Space};
use cotensor_store::{Claim, CopyReason, Holder, Key, Lease, Reservation, Retention, Store, TensorSpec};
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
        let mut hasher = sharing.key_hasher("cotensor stage v1", self.graph.precision());
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
    /// As [`LoadedGraph::run`] and [`ComputationStore::claim`]; `OverBudget` when the outputs do not fit the store.
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
    /// What `compute` returns, or as [`ComputationStore::claim`].
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
                let mut hasher = sharing.key_hasher(label, self.graph.precision());
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
    fn key_hasher(&self, domain: &str, precision: DType) -> Hasher {
        let mut hasher = Hasher::new(domain);
        hasher.field(self.space.0.as_bytes()).field(self.engine.0.as_bytes()).field(self.engine.1.as_bytes());
        hasher.field(precision.name().as_bytes());
        hasher
    }
}

/// Claims `key`; computes and publishes the arrays when nobody has. Results that may not be shared (configuration) are
/// the caller's own: private in the store, so that the budget knows of them. Where that is known beforehand nobody
/// waits for another's result, which would never come.
pub(crate) fn compute_once(
    store: &dyn Store,
    key: Key,
    space: Option<Space>,
    kind: Kind,
    labels: &[String],
    holder: &Holder,
    compute: impl FnOnce() -> Result<Vec<Array>>,
) -> Result<(Vec<Value>, bool)> {
    let ticket = if store.config().refuses(kind, 0).is_some() {
        None
    } else {
        match store.claim(&key, holder)? {
            Claim::Ready(leases) => return Ok((values(leases), false)),
            Claim::Compute(ticket) => Some(ticket),
        }
    };
    // What belongs to no space is an input on its way to an encoder.
    let reason = if space.is_some() { CopyReason::EngineOutput } else { CopyReason::Preprocessed };
    let start = Instant::now();
    let arrays = compute()?;
    let recompute = start.elapsed();
    let spec = |(index, array): (usize, &Array)| TensorSpec {
        device: cotensor_core::Device::Cpu,
        name: format!("{}/{}", labels.get(index).map_or("output", String::as_str), key.0.short()),
        dtype: array.dtype(),
        shape: array.shape().to_vec(),
        kind,
        space,
        producer: holder.name().to_owned(),
        retention: Retention::Cached { recompute },
        provenance: Some(Hasher::new("cotensor output v1").field(key.0.as_bytes()).number(index as u64).finish()),
    };
    let specs: Vec<TensorSpec> = arrays.iter().enumerate().map(spec).collect();
    // All are asked for, so that every refusal is counted; one refused output keeps the whole result private.
    let reserved: Vec<Result<Reservation>> = specs.iter().map(|spec| store.reserve(spec.clone(), holder)).collect();
    let refused = |reserved: &Result<Reservation>| matches!(reserved, Err(e) if e.kind() == ErrorKind::Refused);
    match ticket {
        Some(ticket) if !arrays.is_empty() && !reserved.iter().any(refused) => {
            let leases = ticket.publish(filled(reserved, &arrays, reason)?)?;
            Ok((values(leases), true))
        }
        ticket => {
            // Who waits goes on at once, and what was reserved makes room.
            drop((ticket, reserved));
            let reserved = specs.into_iter().map(|spec| store.reserve_private(spec, holder));
            let leases: Result<_> = filled(reserved, &arrays, reason)?.into_iter().map(Reservation::publish).collect();
            Ok((values(leases?), true))
        }
    }
}

fn values(leases: Vec<Lease>) -> Vec<Value> {
    leases.into_iter().map(Value::from).collect()
}

/// The reservations with the arrays' elements copied in.
fn filled(
    reserved: impl IntoIterator<Item = Result<Reservation>>,
    arrays: &[Array],
    reason: CopyReason,
) -> Result<Vec<Reservation>> {
    let fill = |(reserved, array): (Result<Reservation>, &Array)| {
        let mut reservation = reserved?;
        reservation.write(array_bytes(array), reason)?;
        Ok(reservation)
    };
    reserved.into_iter().zip(arrays).map(fill).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_store::{EmbeddedStore, SharingConfig};
    use cotensor_store::{StoreReports, TensorStore};
    use std::sync::Barrier;

    fn once(store: &EmbeddedStore, compute: impl FnOnce() -> Result<Vec<Array>>) -> Result<(Vec<Value>, bool)> {
        let labels = ["a".to_owned(), "b".to_owned()];
        compute_once(store, Key(ContentHash::of(b"k")), None, Kind::Other, &labels, &store.holder("m"), compute)
    }

    fn arrays() -> Result<Vec<Array>> {
        Ok(vec![Array::f32([10], vec![1.5; 10])?, Array::i32([1], vec![7])?])
    }

    fn store(config: SharingConfig, max_memory_bytes: u64) -> Arc<EmbeddedStore> {
        EmbeddedStore::builder().config(config).max_memory_bytes(max_memory_bytes).build()
    }

    #[test]
    fn refused_results_are_charged_counted_and_freed() {
        let disabled = SharingConfig { enable_shared_tensors: false, ..SharingConfig::default() };
        let large = SharingConfig { max_shared_tensor_size_bytes: Some(20), ..SharingConfig::default() };
        for (config, refused) in [(disabled, 2), (large, 1)] {
            let tight = store(config.clone(), 43);
            assert_eq!(once(&tight, arrays).err().unwrap().kind(), ErrorKind::OverBudget);
            let store = store(config, 44);
            let (values, computed) = once(&store, arrays).unwrap();
            assert!(computed && values[0].as_f32().unwrap() == [1.5; 10] && values[1].as_i32().unwrap() == [7]);
            let stats = store.stats();
            assert_eq!((stats.memory_usage_bytes, stats.total_tensors), (44, 0));
            assert_eq!(stats.refused.values().sum::<u64>(), refused);
            drop(values);
            assert_eq!(store.stats().memory_usage_bytes, 0);
        }
    }

    #[test]
    fn nobody_waits_for_a_result_that_is_not_shared() {
        let config = SharingConfig { enable_shared_tensors: false, ..SharingConfig::default() };
        let store = store(config, u64::MAX);
        // Passes only when both compute at the same time.
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    once(&store, || {
                        both.wait();
                        arrays()
                    })
                    .unwrap()
                });
            }
        });
    }

    #[test]
    fn engine_and_precision_are_part_of_the_key() {
        let key = |engine, precision| {
            let space = Space(ContentHash::of(b"space"));
            let store = store(SharingConfig::default(), u64::MAX);
            let sharing = Sharing { store, space, engine, weights: Vec::new() };
            sharing.key_hasher("stage", precision).finish()
        };
        let rten = key(("rten", "1"), DType::F32);
        assert_eq!(rten, key(("rten", "1"), DType::F32));
        for other in
            [key(("rten", "1"), DType::F16), key(("rten", "2"), DType::F32), key(("onnxruntime", "1"), DType::F32)]
        {
            assert_ne!(rten, other);
        }
    }

    #[test]
    fn a_computation_without_results_is_no_claim() {
        let store = store(SharingConfig::default(), u64::MAX);
        for _ in 0..2 {
            let (values, computed) = once(&store, || Ok(Vec::new())).unwrap();
            assert!(values.is_empty() && computed);
        }
        assert!(once(&store, arrays).unwrap().1 && !once(&store, arrays).unwrap().1);
    }
}
