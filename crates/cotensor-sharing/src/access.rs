//! A shared tensor's bytes, and what is to be said of it.

use crate::inner::{Inner, Residence};
use crate::state::{Content, State};
use crate::view::Exposed;
use cotensor_core::{Error, ErrorKind, Layout, Result};
use cotensor_store::{Clock, TensorId, TensorInfo};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

impl Inner {
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

    /// Reads the bytes of `layout`: through the view's lease where its number is given, else through any.
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
        let lease = lease.ok_or_else(|| Error::not_found(format!("nobody holds {}", self.spec.name)))?.try_clone()?;
        // What `read` does with this tensor must not meet its own lock.
        drop(state);
        part(lease.bytes().ok_or_else(unaddressable)?)
    }

    /// Where the bytes of `layout` are for a view, for programs that keep the address.
    pub(crate) fn expose(&self, view: u64, layout: &Layout) -> Result<Exposed> {
        let mut state = self.write();
        let State { content, views, .. } = &mut *state;
        match content {
            Content::Writable { reservation, .. } => {
                let keep = reservation.pin_address();
                if keep.is_none() && self.residence != Residence::Private {
                    let message = format!("{} was not made for programs that keep its address", self.spec.name);
                    return Err(Error::unsupported(message));
                }
                let bytes = reservation.bytes_mut().ok_or_else(unaddressable)?;
                let bytes = bytes.get_mut(layout.byte_range()).unwrap_or_default();
                Ok(Exposed::Writable { start: NonNull::from(bytes).cast(), keep })
            }
            Content::Published { .. } => {
                let lease = views.get(&view).and_then(|view| view.lease.as_ref());
                let lease = lease.ok_or_else(|| Error::not_found(format!("nobody holds {}", self.spec.name)))?;
                Ok(Exposed::Published(lease.try_clone()?))
            }
            Content::Freed => Err(self.freed()),
        }
    }

    /// Whether neither a model nor a view holds it.
    pub(crate) fn is_idle(&self) -> bool {
        self.read().is_idle()
    }

    /// Whether it could still be acquired: its memory is there.
    pub(crate) fn is_live(&self) -> bool {
        let state = self.read();
        match &state.content {
            Content::Writable { .. } => true,
            Content::Published { id, .. } => !state.is_idle() || self.store.has(*id),
            Content::Freed => false,
        }
    }

    /// Which version it was published as, once it was.
    pub(crate) fn published(&self) -> Option<TensorId> {
        match self.read().content {
            Content::Published { id, .. } => Some(id),
            Content::Writable { .. } | Content::Freed => None,
        }
    }

    /// What is to be said of it while its store does not list it: until it is published, or as long as it is private.
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
        })
    }
}

fn unaddressable() -> Error {
    Error::unsupported("the host cannot address this device")
}
