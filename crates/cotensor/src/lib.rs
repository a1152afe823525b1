//! One copy of every tensor per machine.
//!
//! This crate re-exports the library's other crates and connects them: [`LocalOptions`] creates a [`Runtime`] over a
//! store in this process, [`Runtime::over`] one over the store of a daemon.

pub use cotensor_client as client;
pub use cotensor_core as core;
pub use cotensor_formats as formats;
pub use cotensor_functions as functions;
pub use cotensor_hub as hub;
pub use cotensor_memory as memory;
pub use cotensor_model as model;
pub use cotensor_serving as serving;
pub use cotensor_sharing as sharing;
pub use cotensor_store as store;

pub use cotensor_core::{DType, Device, Error, ErrorKind, Kind, Layout, Result, Slice};
pub use cotensor_model::Runtime;
pub use cotensor_model::adapter::{Adapter, load_adapter, save_adapter};
pub use cotensor_model::pipeline::{
    Inputs, Pipeline, Samples, SharedEmbedding, StreamEvent, StreamSettings, StreamingProcessor, User, fit_adapter,
    inputs_of, run_user,
};
pub use cotensor_model::pool::{HardwarePreferences, PooledModel, ResourcePool};
pub use cotensor_sharing::{SharedTensor, SharedTensorView, TensorSharingManager};
pub use cotensor_store::{
    BlobStore, ComputationStore, EmbeddedStore, Lease, MemoryControl, SharingConfig, Store, StoreReports, TensorStore,
    TensorView,
};

use cotensor_core::DerivedFiles;
use cotensor_memory::PackCache;
use cotensor_model::engine::EngineOptions;
use std::path::PathBuf;
use std::sync::Arc;

/// Options of a [`Runtime`] over a store in this process.
#[derive(Clone, Debug, Default)]
pub struct LocalOptions {
    /// The folder that keeps weights for other processes and later runs; `None` keeps them in this process only.
    pub cache: Option<PathBuf>,
    /// The store's budget in bytes; `None` sets no limit.
    pub max_memory_bytes: Option<u64>,
    /// The engine's number of threads; `None` lets the engine choose.
    pub threads: Option<usize>,
    /// The name of the engine; `None` chooses the fastest one that supports a graph ([`model::engine::Engines::auto`]).
    pub engine: Option<String>,
    /// The kinds of tensors that may be shared.
    pub sharing: SharingConfig,
}

/// A manager of shared tensors over `store`, for example a runtime's. It infers a tensor's kind from the models'
/// families, so that [`SharingConfig::allowed_types`] applies to a name such as `bert_embedding` too.
pub fn tensor_sharing_manager(store: Arc<dyn Store>) -> TensorSharingManager {
    TensorSharingManager::with_store(store).with_model_kinds(model::family::kinds_by_name)
}

impl LocalOptions {
    /// A runtime over a store in this process. See [`Runtime::over`] for another store.
    ///
    /// # Errors
    /// `Io` or `Invalid` when the cache folder cannot be used; as [`model::engine::Engines::open`].
    pub fn runtime(&self) -> Result<Arc<Runtime>> {
        let mut builder = EmbeddedStore::builder().config(self.sharing.clone());
        if let Some(bytes) = self.max_memory_bytes {
            builder = builder.max_memory_bytes(bytes);
        }
        let mut engine = EngineOptions::from(self.threads);
        if let Some(folder) = &self.cache {
            let cache = Arc::new(PackCache::open(folder)?);
            engine.derived = Some(Arc::clone(&cache) as Arc<dyn DerivedFiles>);
            builder = builder.cache(cache);
        }
        Runtime::with_engine(builder.build(), self.engine.as_deref(), engine)
    }
}

/// The examples of docs/rust.md compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct Readme;
