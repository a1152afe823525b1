//! Views of leased tensors.

use crate::Lease;
use crate::leases::lease::{spanned, typed};
use cotensor_core::{Layout, Result, Slice};
use std::sync::Arc;

/// A bounds-checked strided window on a leased tensor. It keeps the tensor leased.
#[derive(Clone, Debug)]
pub struct TensorView {
    pub(super) parent: Arc<Lease>,
    pub(super) layout: Layout,
}

impl TensorView {
    /// How the window's elements lie in the segment.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Dimensions, in elements.
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// The lease of the tensor.
    pub fn parent(&self) -> &Lease {
        &self.parent
    }

    /// A view of the view.
    ///
    /// # Errors
    /// `Invalid` when a slice is out of bounds.
    pub fn view(&self, slices: &[Slice]) -> Result<TensorView> {
        Ok(TensorView { layout: self.layout.view(slices)?, parent: Arc::clone(&self.parent) })
    }

    /// The bytes from the first element to the end of the last, gaps included; `None` where the host cannot
    /// address them.
    pub fn bytes(&self) -> Option<&[u8]> {
        spanned(&self.parent.record, &self.layout)
    }

    /// The elements as numbers, without a copy.
    ///
    /// # Errors
    /// As [`Lease::typed`].
    pub fn typed<T: bytemuck::AnyBitPattern>(&self) -> Result<&[T]> {
        typed(&self.parent.record, &self.layout)
    }
}

impl Lease {
    /// A view: one [`Slice`] for each dimension. No byte is copied; the view keeps the tensor leased.
    ///
    /// # Errors
    /// `Invalid` when a slice is out of bounds.
    pub fn view(&self, slices: &[Slice]) -> Result<TensorView> {
        Ok(TensorView { layout: self.layout().view(slices)?, parent: Arc::new(self.try_clone()?) })
    }
}
