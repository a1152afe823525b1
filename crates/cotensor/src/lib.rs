//! One copy of every tensor per machine.
//!
//! This crate re-exports the library's other crates and connects them: [`LocalOptions`] creates a [`Runtime`] over a
//! store in this process, or over the store of a daemon.

pub use cotensor_client as client;
pub use cotensor_core as core;
pub use cotensor_formats as formats;
pub use cotensor_functions as functions;
pub use cotensor_hub as hub;
pub use cotensor_memory as memory;
pub use cotensor_model as model;
pub use cotensor_quant as quant;
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
pub use cotensor_model::pool::{
    HardwarePreferences, PooledModel, Quantizing, ResourcePool, UltraLowPrecision, UltraLowPrecisionOptions,
};
pub use cotensor_model::tensor::TensorRef;
pub use cotensor_sharing::{Registration, SharedTensor, SharedTensorView, TensorSharingManager};
pub use cotensor_store::{
    BlobStore, ComputationStore, Lease, LocalStore, MemoryControl, SharingConfig, Store, StoreReports, TensorStore,
    TensorView,
};

use cotensor_core::DerivedFiles;
use cotensor_memory::PackCache;
use cotensor_model::engine::EngineOptions;
use std::path::PathBuf;
use std::sync::Arc;

/// Options of a [`Runtime`].
#[derive(Clone, Debug, Default)]
pub struct LocalOptions {
    /// The folder that keeps weights for other processes and later runs, as they are and in the layout of an engine's
    /// kernels; `None` keeps them in the store only.
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
    /// A runtime over a store in this process.
    ///
    /// # Errors
    /// `Io` or `Invalid` when the cache folder cannot be used; as [`model::engine::Engines::open`].
    pub fn runtime(&self) -> Result<Arc<Runtime>> {
        let cache = self.open_cache()?;
        let mut builder = LocalStore::builder().config(self.sharing.clone());
        if let Some(bytes) = self.max_memory_bytes {
            builder = builder.max_memory_bytes(bytes);
        }
        if let Some(cache) = &cache {
            builder = builder.cache(Arc::clone(cache) as Arc<_>);
        }
        self.runtime_with(builder.build(), cache)
    }

    /// A runtime over `store`, such as a [client of the daemon](client::ClientStore). Weights and results are in `store`,
    /// which has a budget and a sharing configuration of its own. The cache folder keeps weights in the layout of an
    /// engine's kernels, which all processes map.
    ///
    /// # Errors
    /// As [`runtime`](Self::runtime).
    pub fn runtime_over(&self, store: Arc<dyn Store>) -> Result<Arc<Runtime>> {
        self.runtime_with(store, self.open_cache()?)
    }

    fn open_cache(&self) -> Result<Option<Arc<PackCache>>> {
        self.cache.as_deref().map(PackCache::open).transpose().map(|cache| cache.map(Arc::new))
    }

    fn runtime_with(&self, store: Arc<dyn Store>, cache: Option<Arc<PackCache>>) -> Result<Arc<Runtime>> {
        let derived = cache.map(|cache| cache as Arc<dyn DerivedFiles>);
        Runtime::with_engine(store, self.engine.as_deref(), EngineOptions { threads: self.threads, derived })
    }
}

/// The examples of docs/reference/rust.md compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/rust.md")]
struct Readme;
