use crate::inner::Inner;
use crate::shared::window;
use cotensor_core::{Layout, Result};
use cotensor_store::{Lease, Store};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// Where the bytes of a view are, for programs that keep the address.
pub enum Exposed {
    /// The producer may still write them: nobody else does, or looks at them in another way than this, while it does.
    Writable {
        /// The view's first byte. Good for as long as the view, and `keep`, are kept; from publishing on, what is written
        /// there nobody else sees.
        start: NonNull<u8>,
        /// What keeps the address even when publishing fails.
        keep: Option<Arc<dyn Any + Send + Sync>>,
    },
    /// Immutable: a lease of the whole tensor.
    Published(Lease),
}

/// A window on a [`SharedTensor`](super::SharedTensor). It holds the tensor as a model does, under the name
/// `view NAME`, until it is dropped.
pub struct SharedTensorView {
    name: String,
    parent: Arc<Inner>,
    number: u64,
    layout: Layout,
}

impl SharedTensorView {
    pub(crate) fn open(parent: &Arc<Inner>, name: &str, layout: Layout) -> Result<Self> {
        let number = parent.open_view(name)?;
        Ok(Self { name: name.to_owned(), parent: Arc::clone(parent), number, layout })
    }

    /// Its name.
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

    /// How its elements lie in the tensor's memory.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Reads the bytes from the first element to the end of the last where they lie, gaps included. See
    /// [`SharedTensor::read`](super::SharedTensor::read) for what `read` must not do.
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

    /// The bytes for a program that keeps the address, such as another language's arrays.
    ///
    /// # Errors
    /// `Unsupported` before publishing, unless the tensor was made for that
    /// ([`SharedTensor::exposing`](super::SharedTensor::exposing),
    /// [`TensorSharingManager::exposing`](super::TensorSharingManager::exposing)), and on a device.
    pub fn expose(&self) -> Result<Exposed> {
        self.parent.expose(self.number, &self.layout)
    }

    /// A window on the window.
    ///
    /// # Errors
    /// As [`SharedTensor::create_view`](super::SharedTensor::create_view).
    pub fn create_view(&self, name: &str, offset: &[usize], size: &[usize]) -> Result<SharedTensorView> {
        Self::open(&self.parent, name, window(&self.layout, offset, size)?)
    }
}

impl Drop for SharedTensorView {
    fn drop(&mut self) {
        // Only a failing seal could make this an error, and then the memory goes all the same.
        drop(self.parent.close_view(self.number));
    }
}

impl fmt::Debug for SharedTensorView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedTensorView({} of {} {:?})", self.name, self.parent_name(), self.shape())
    }
}
