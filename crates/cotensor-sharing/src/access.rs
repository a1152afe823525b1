//! Access to a shared tensor's bytes, and its report.

use crate::lifecycle::{Residence, TensorCell};
use crate::memory::ViewMemory;
use crate::state::{Content, TensorState};
use cotensor_core::{Error, ErrorKind, Layout, Result};
use cotensor_store::{Clock, TensorId, TensorInfo};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

impl TensorCell {
    /// Writes in place, before publishing.
    pub(crate) fn write_with(&self, write: impl FnOnce(&mut [u8])) -> Result<()> {
        match &mut self.write().content {
            Content::Writable { reservation, .. } => {
                write(reservation.bytes_mut().ok_or_else(unaddressable)?);
                Ok(())
            }
            Content::Published { .. } => {
                Err(Error::new(ErrorKind::Conflict, format!("{} is published: it is immutable", self.spec.name)))
            }
            Content::Freed => Err(self.freed()),
        }
    }

    /// Reads the bytes of `layout` through the lease of view `view`, or through any lease without `view`.
    pub(crate) fn read_with<T>(&self, view: Option<u64>, layout: &Layout, read: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let state = self.read();
        let part = |bytes: &[u8]| -> Result<T> {
            let part = bytes.get(layout.byte_range());
            Ok(read(part.ok_or_else(|| Error::invalid(format!("{} is smaller than its layout", self.spec.name)))?))
        };
        let lease = match &state.content {
            Content::Writable { reservation, .. } => return part(reservation.bytes().ok_or_else(unaddressable)?),
            Content::Published { .. } => match view.and_then(|number| state.views.get(&number)) {
                Some(view) => view.lease.as_ref(),
                None => state.any_lease(),
            },
            Content::Freed => return Err(self.freed()),
        };
        let lease = lease
            .ok_or_else(|| {
                Error::not_found(format!("no model and no view holds {}; acquire it first", self.spec.name))
            })?
            .try_clone()?;
        // Unlocked first: `read` may use this tensor.
        drop(state);
        part(lease.bytes().ok_or_else(unaddressable)?)
    }

    /// The memory of `layout` for view `view`, for programs that keep the address.
    pub(crate) fn view_memory(&self, view: u64, layout: &Layout) -> Result<ViewMemory> {
        let mut state = self.write();
        let TensorState { content, views, .. } = &mut *state;
        match content {
            Content::Writable { reservation, .. } => {
                let keep = reservation.pin_address();
                if keep.is_none() && self.residence != Residence::Private {
                    let message =
                        format!("{} has no aliased memory; create it with SharedTensor::aliased", self.spec.name);
                    return Err(Error::unsupported(message));
                }
                let bytes = reservation.bytes_mut().ok_or_else(unaddressable)?;
                let bytes = bytes.get_mut(layout.byte_range()).unwrap_or_default();
                Ok(ViewMemory::Writable { start: NonNull::from(bytes).cast(), keep })
            }
            Content::Published { .. } => {
                let lease = views.get(&view).and_then(|view| view.lease.as_ref());
                let lease = lease.ok_or_else(|| {
                    Error::not_found(format!("no model and no view holds {}; acquire it first", self.spec.name))
                })?;
                Ok(ViewMemory::Published(lease.try_clone()?))
            }
            Content::Freed => Err(self.freed()),
        }
    }

    /// Whether neither a model nor a view holds it.
    pub(crate) fn is_idle(&self) -> bool {
        self.read().is_idle()
    }

    /// Whether the tensor has memory, so that it can be acquired.
    pub(crate) fn is_live(&self) -> bool {
        let state = self.read();
        match &state.content {
            Content::Writable { .. } => true,
            Content::Published { id, .. } => !state.is_idle() || self.store.has(*id),
            Content::Freed => false,
        }
    }

    /// The published version, if any.
    pub(crate) fn published(&self) -> Option<TensorId> {
        match self.read().content {
            Content::Published { id, .. } => Some(id),
            Content::Writable { .. } | Content::Freed => None,
        }
    }

    /// The report on a tensor that its store does not list because it is unpublished or private.
    pub(crate) fn unlisted(&self) -> Option<TensorInfo> {
        let state = self.read();
        let Content::Writable { .. } = state.content else { return None };
        let mut holders = state.counts(&self.spec.producer);
        for (view, count) in state.view_holders() {
            *holders.entry(view).or_default() += count;
        }
        Some(TensorInfo {
            name: self.spec.name.clone(),
            version: 0,
            dtype: self.spec.dtype.to_string(),
            shape: self.spec.shape.clone(),
            bytes: self.layout.size_bytes() as u64,
            device: self.device.to_string(),
            memory: if self.residence == Residence::Private { "private" } else { "unpublished" }.to_owned(),
            kind: self.spec.kind.name().to_owned(),
            space: self.spec.space.map(|space| space.to_string()),
            producer: self.spec.producer.clone(),
            holders,
            age_seconds: self.clock.now().as_secs_f64(),
            hits: self.hits.load(Ordering::Relaxed),
            cached: false,
            member_count: 0,
        })
    }
}

fn unaddressable() -> Error {
    Error::unsupported("the tensor is in device memory, which the host cannot address")
}
