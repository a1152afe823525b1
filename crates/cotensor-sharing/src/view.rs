//! `SharedTensorView`: a window on a shared tensor, which holds the tensor.

use crate::lifecycle::TensorCell;
use crate::memory::ViewMemory;
use crate::spec::window;
use cotensor_core::{Layout, Result};
use cotensor_store::Store;
use std::fmt;
use std::sync::Arc;

/// A view of a part of a [`SharedTensor`](super::SharedTensor). It holds the tensor under the name `view NAME` until it
/// is dropped.
pub struct SharedTensorView {
    name: String,
    parent: Arc<TensorCell>,
    number: u64,
    layout: Layout,
}

impl SharedTensorView {
    pub(crate) fn open(parent: &Arc<TensorCell>, name: &str, layout: Layout) -> Result<Self> {
        let number = parent.open_view(name)?;
        Ok(Self { name: name.to_owned(), parent: Arc::clone(parent), number, layout })
    }

    /// The view's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tensor's name.
    pub fn parent_name(&self) -> &str {
        &self.parent.spec.name
    }

    /// Dimensions, in elements.
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// The layout of the view's elements in the tensor's memory.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Reads the bytes from the first element to the end of the last in place, gaps included. See
    /// [`SharedTensor::read`](super::SharedTensor::read) for the restrictions on `read`.
    ///
    /// # Errors
    /// `Unsupported` on a device.
    pub fn read<T>(&self, read: impl FnOnce(&[u8]) -> T) -> Result<T> {
        self.parent.read_with(Some(self.number), &self.layout, read)
    }

    /// The tensor's store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.parent.store
    }

    /// The view's memory, for a program that keeps the address, such as an array of another language.
    ///
    /// # Errors
    /// `Unsupported` on a device, and before publishing unless the tensor was created with aliased memory
    /// ([`SharedTensor::aliased`](super::SharedTensor::aliased),
    /// [`TensorSharingManager::with_aliased_memory`](super::TensorSharingManager::with_aliased_memory)).
    pub fn memory(&self) -> Result<ViewMemory> {
        self.parent.view_memory(self.number, &self.layout)
    }

    /// A view of a part of this view.
    ///
    /// # Errors
    /// As [`SharedTensor::create_view`](super::SharedTensor::create_view).
    pub fn create_view(&self, name: &str, offset: &[usize], size: &[usize]) -> Result<SharedTensorView> {
        Self::open(&self.parent, name, window(&self.layout, offset, size)?)
    }
}

impl Drop for SharedTensorView {
    fn drop(&mut self) {
        // Sealing can fail; the memory is freed then.
        let _ = self.parent.close_view(self.number);
    }
}

impl fmt::Debug for SharedTensorView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedTensorView({} of {} {:?})", self.name, self.parent_name(), self.shape())
    }
}
