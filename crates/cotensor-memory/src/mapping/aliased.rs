//! Mappings whose address other code in this process keeps: two mappings of one file, of which one outlives its
//! segment.

use super::mmap::{Access, Mapping, OnFork};
use cotensor_core::Result;
use cotensor_core::sync::lock;
use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

/// Keeps an address mapped while other code may use it, for example an array of another language. The segment may be
/// dropped or published meanwhile, or publishing may fail.
#[derive(Clone, Default)]
struct AddressPin(Arc<Mutex<Option<Mapping>>>);

impl AddressPin {
    /// A handle for code that keeps the address. The address stays mapped while a handle exists.
    fn handle(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.0) as Arc<dyn Any + Send + Sync>
    }

    /// Hands the mapping over to the handles. It is unmapped with the last one, at once when there is none.
    fn retire(&self, map: Mapping) {
        lock(&self.0).replace(map);
    }
}

/// The mapping at a pinned address. Dropping it hands the mapping over to the handles.
pub(crate) struct AliasedMapping {
    /// `None` after a failure to remap it.
    map: Option<Mapping>,
    pin: AddressPin,
}

impl AliasedMapping {
    /// Pins the address of a writable mapping. Forked children inherit it, because they inherit the code that keeps it.
    pub(crate) fn new(map: Mapping) -> Result<Self> {
        map.set_on_fork(OnFork::Inherit)?;
        Ok(Self { map: Some(map), pin: AddressPin::default() })
    }

    /// A handle for code that keeps the address. The address stays mapped while a handle exists.
    pub(crate) fn handle(&self) -> Arc<dyn Any + Send + Sync> {
        self.pin.handle()
    }

    /// Makes the mapping private ([`Mapping::remap_private`]): later writes at the address are the writer's alone.
    pub(crate) fn remap_copy_on_write(mut self, fd: BorrowedFd<'_>, len: usize) -> Result<Self> {
        if let Some(map) = self.map.take() {
            self.map = Some(map.remap_private(fd, len, Access::CopyOnWrite)?);
        }
        Ok(self)
    }

    pub(crate) fn mapping(&self) -> Option<&Mapping> {
        self.map.as_ref()
    }

    pub(crate) fn mapping_mut(&mut self) -> Option<&mut Mapping> {
        self.map.as_mut()
    }
}

impl Drop for AliasedMapping {
    fn drop(&mut self) {
        if let Some(map) = self.map.take() {
            self.pin.retire(map);
        }
    }
}
