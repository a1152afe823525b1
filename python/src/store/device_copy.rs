//! Tensors for another device than the one that they were published on.

use super::tensor::Tensor;
use crate::export::device::cuda_memory;
use crate::export::private_pages::PrivatePages;
use crate::held_lease::HeldLease;
use crate::release::after_releases;
use cotensor::{Error, Lease, Store};
use cotensor_core::{Device, Layout};
use cotensor_sharing::ResidentCopy;
use cotensor_store::Holder;
use std::sync::Arc;
use std::time::Duration;

/// How long a program waits for another one that makes the same copy.
const COPY_WAIT: Duration = Duration::from_secs(60);

/// A leased tensor for programs of `device`: its memory, if they can read it, else the copy there that all programs share. The caller is
/// detached from Python.
///
/// # Errors
/// `Unsupported` for a tensor of a device that the host is to use, for a device that this process does not have, and for a copy of a group;
/// as [`ResidentCopy::lease`].
pub(super) fn shown_on(
    lease: Lease,
    store: &Arc<dyn Store>,
    holder: &Holder,
    device: Option<Device>,
) -> Result<Tensor, Error> {
    let Some(device) = device.filter(|device| *device != lease.device()) else {
        return Ok(Tensor::new(lease, Arc::clone(store)));
    };
    let Some(memory) = cuda_memory(device)? else {
        let message = format!("it is on {}: copy it to the host by tensor.copy_to(array) or detach()", lease.device());
        return Err(Error::unsupported(message).in_field(lease.name()));
    };
    if !lease.device().is_host() && memory.peer_address(lease.segment())?.is_some() {
        return Ok(Tensor::whole(HeldLease::for_peer(lease, Arc::clone(store), device)));
    }
    let layout = lease.layout();
    if lease.members().is_some() {
        let message = format!("{device} needs a copy, and groups are not copied between devices");
        return Err(Error::unsupported(message).in_field(lease.name()));
    }
    let bytes = 0..layout.byte_range().len();
    let copy = ResidentCopy { source: &lease, bytes, device, identity: memory.uuid() };
    let made = after_releases(copy.spec(holder), |_| copy.lease(&**store, holder, COPY_WAIT))?;
    let elements = Layout::strided(layout.dtype(), layout.shape(), layout.strides(), 0)?;
    let held = HeldLease::new(made.lease, Arc::clone(store));
    Ok(Tensor::part(PrivatePages::new(held), elements))
}
