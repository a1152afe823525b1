//! Mappings whose address others in this process keep.

use super::mmap::Mapping;
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// For those who know the address of a segment's bytes: as long as one of them keeps this, the address stays mapped, whatever
/// becomes of the segment. It is dropped or published while they look on, or publishing it fails.
#[derive(Clone, Default)]
pub(crate) struct AddressPin(Arc<Mutex<Option<Mapping>>>);

impl AddressPin {
    /// What to give to those who know it.
    pub(crate) fn handle(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.0) as Arc<dyn Any + Send + Sync>
    }

    /// Leaves the mapping to them; it goes at once where there are none.
    pub(crate) fn retire(&self, map: Mapping) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(map);
    }
}

/// A mapping that is left to those who know its address when it is dropped.
pub(crate) struct AliasedMapping {
    map: Option<Mapping>,
    address: AddressPin,
}

impl AliasedMapping {
    pub(crate) fn new(map: Mapping, address: &AddressPin) -> Self {
        Self { map: Some(map), address: address.clone() }
    }

    /// The bytes. Those who know the address must not write them meanwhile.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.map.as_ref().map_or(&[], Mapping::bytes)
    }
}

impl Drop for AliasedMapping {
    fn drop(&mut self) {
        if let Some(map) = self.map.take() {
            self.address.retire(map);
        }
    }
}
