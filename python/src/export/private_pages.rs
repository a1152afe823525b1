//! The private mappings of one `Tensor` object.

use super::tensor_mapping::TensorMapping;
use crate::held_lease::HeldLease;
use cotensor_core::Result;
use std::sync::{Arc, OnceLock};

/// A leased tensor and the private mappings that the arrays of one `Tensor` object and of its views share. numpy's
/// arrays, which are read-only for numpy itself, have one mapping. Arrays by DLPack, which torch writes in place, have
/// another.
pub(crate) struct PrivatePages {
    held: Arc<HeldLease>,
    numpy: OnceLock<Arc<TensorMapping>>,
    dlpack: OnceLock<Arc<TensorMapping>>,
}

impl PrivatePages {
    pub(crate) fn new(held: Arc<HeldLease>) -> Arc<Self> {
        Arc::new(Self { held, numpy: OnceLock::new(), dlpack: OnceLock::new() })
    }

    pub(crate) fn held(&self) -> &Arc<HeldLease> {
        &self.held
    }

    /// The mapping of the whole tensor for numpy's arrays. The first array makes it.
    pub(crate) fn numpy(&self) -> Result<&Arc<TensorMapping>> {
        self.mapped(&self.numpy)
    }

    /// The mapping of the whole tensor for arrays by DLPack. The first array makes it.
    pub(crate) fn dlpack(&self) -> Result<&Arc<TensorMapping>> {
        self.mapped(&self.dlpack)
    }

    fn mapped<'a>(&self, mapping: &'a OnceLock<Arc<TensorMapping>>) -> Result<&'a Arc<TensorMapping>> {
        if let Some(mapping) = mapping.get() {
            return Ok(mapping);
        }
        let made = TensorMapping::new(&self.held)?;
        Ok(mapping.get_or_init(|| made))
    }

    /// Bytes of the pages that arrays have written.
    pub(crate) fn private_bytes(&self) -> u64 {
        let mappings = [&self.numpy, &self.dlpack].into_iter().filter_map(OnceLock::get);
        mappings.map(|mapping| mapping.private_bytes()).sum()
    }
}
