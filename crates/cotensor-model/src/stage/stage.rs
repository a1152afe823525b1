use super::compute::compute_once;
use crate::engine::LoadedGraph;
use crate::tensor::{Array, Value};
use cotensor_core::{ContentHash, DType, Hasher, Kind, Result, Space};
use cotensor_store::{Holder, Key, Store};
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
    /// As [`LoadedGraph::run`] and [`ComputationStore::claim`](cotensor_store::ComputationStore::claim); `OverBudget` when the outputs do not fit the store.
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
    /// What `compute` returns, or as [`ComputationStore::claim`](cotensor_store::ComputationStore::claim).
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

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_store::EmbeddedStore;

    #[test]
    fn engine_and_precision_are_part_of_the_key() {
        let key = |engine, precision| {
            let space = Space(ContentHash::of(b"space"));
            let store = EmbeddedStore::builder().build();
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
}
