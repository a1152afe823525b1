//! Views of leased tensors.

use crate::leases::lease::{copied, spanned, typed};
use crate::types::member_layout;
use crate::{Holder, Lease, Members};
use cotensor_core::{Error, Layout, Result, Slice};
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

    /// A view of the same elements for another holder of the same store.
    ///
    /// # Errors
    /// As [`Lease::lease_for`].
    pub fn lease_for(&self, holder: &Holder) -> Result<TensorView> {
        Ok(TensorView { layout: self.layout.clone(), parent: Arc::new(self.parent.lease_for(holder)?) })
    }

    /// The bytes from the first element to the end of the last, gaps included; `None` where the host cannot
    /// address them.
    pub fn bytes(&self) -> Option<&[u8]> {
        spanned(&self.parent.record, &self.layout)
    }

    /// A copy of the bytes that the window spans. The copy is counted.
    ///
    /// # Errors
    /// As [`Lease::copy_to_host`].
    pub fn copy_to_host(&self) -> Result<Vec<u8>> {
        copied(&self.parent.record, &self.layout)
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

    /// The members of a group; `None` for a plain tensor.
    pub fn members(&self) -> Option<&Members> {
        self.record.members().filter(|_| self.reinterpreted.is_none()).map(Arc::as_ref)
    }

    /// How the elements of a group's member lie in the segment.
    ///
    /// # Errors
    /// `NotFound` for another name, and for a plain tensor; `Corrupt` when the member reaches beyond the tensor.
    pub fn member_layout(&self, member: &str) -> Result<Layout> {
        let whole = self.layout().byte_range();
        let layout = member_layout(self.members(), member, whole.start);
        let layout = layout.map_err(|error| error.in_field(self.name()))?;
        // Another process may have described the tensor.
        if layout.byte_range().end > whole.end {
            return Err(Error::corrupt(format!("the member {member:?} reaches beyond the group")).in_field(self.name()));
        }
        Ok(layout)
    }

    /// A view of a group's member. No byte is copied; the view keeps the group leased.
    ///
    /// # Errors
    /// As [`member_layout`](Lease::member_layout).
    pub fn member(&self, name: &str) -> Result<TensorView> {
        Ok(TensorView { layout: self.member_layout(name)?, parent: Arc::new(self.try_clone()?) })
    }
}
