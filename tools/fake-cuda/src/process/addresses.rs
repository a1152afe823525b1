//! Addresses of device memory, which the host cannot use.

use crate::codes::{INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Outcome};
use crate::machine::{Allocation, GRANULARITY};
use std::collections::BTreeMap;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

/// What a device may do with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    None,
    Read,
    ReadWrite,
}

/// The reserved addresses of a process.
#[derive(Default)]
pub(crate) struct Addresses {
    /// By the first address.
    ranges: BTreeMap<u64, Range>,
}

struct Range {
    bytes: u64,
    mapping: Option<Mapping>,
}

struct Mapping {
    allocation: Arc<Allocation>,
    /// By the machine's index of the device.
    access: BTreeMap<u32, Access>,
}

impl Addresses {
    /// Reserves addresses.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Outcome<u64> {
        if !is_whole(bytes) {
            return Err(INVALID_VALUE);
        }
        let len = usize::try_from(bytes + GRANULARITY).map_err(|_| OUT_OF_MEMORY)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses replaces none. No code can read or write it.
        let start = unsafe { libc::mmap(null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(OUT_OF_MEMORY);
        }
        let start = start as u64;
        let address = start.next_multiple_of(GRANULARITY);
        let (before, after) = (address - start, start + GRANULARITY - address);
        unmap(start, before);
        unmap(address + bytes, after);
        self.ranges.insert(address, Range { bytes, mapping: None });
        Ok(address)
    }

    /// Gives addresses back.
    pub(crate) fn free(&mut self, address: u64, bytes: u64) -> Outcome {
        match self.ranges.get(&address) {
            Some(range) if range.bytes == bytes && range.mapping.is_none() => {}
            _ => return Err(INVALID_VALUE),
        }
        self.ranges.remove(&address);
        unmap(address, bytes);
        Ok(())
    }

    /// Maps an allocation to all addresses of a range. NVIDIA's driver also maps it to a part of a range.
    pub(crate) fn map(&mut self, address: u64, bytes: u64, allocation: &Arc<Allocation>) -> Outcome {
        let range = self.ranges.get_mut(&address).filter(|range| range.mapping.is_none()).ok_or(INVALID_VALUE)?;
        if !is_whole(bytes) || range.bytes != bytes {
            return Err(INVALID_VALUE);
        }
        if allocation.bytes != bytes {
            return Err(NOT_SUPPORTED);
        }
        range.mapping = Some(Mapping { allocation: Arc::clone(allocation), access: BTreeMap::new() });
        Ok(())
    }

    /// Unmaps an allocation. Work that is left in a stream will find no memory.
    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) -> Outcome {
        let range = self.ranges.get_mut(&address).filter(|range| range.bytes == bytes).ok_or(INVALID_VALUE)?;
        range.mapping.take().map(drop).ok_or(INVALID_VALUE)
    }

    /// Sets what a device may do with a mapping; `peers` tells whether devices can access the memory of others.
    pub(crate) fn set_access(&mut self, address: u64, bytes: u64, device: u32, access: Access, peers: bool) -> Outcome {
        let range = self.ranges.get_mut(&address).filter(|range| range.bytes == bytes).ok_or(INVALID_VALUE)?;
        let mapping = range.mapping.as_mut().ok_or(INVALID_VALUE)?;
        if mapping.allocation.device != device && !peers {
            return Err(NOT_SUPPORTED);
        }
        mapping.access.insert(device, access);
        Ok(())
    }

    /// The machine's index of the device whose memory is at an address.
    pub(crate) fn device(&self, address: u64) -> Option<u32> {
        let (start, range) = self.ranges.range(..=address).next_back()?;
        let mapping = range.mapping.as_ref().filter(|_| address - start < range.bytes)?;
        Some(mapping.allocation.device)
    }

    /// The memory at an address with `bytes` behind it, and the offset there, if a device has at least the access.
    pub(super) fn memory(&self, address: u64, bytes: u64, device: u32, least: Access) -> Option<(&Allocation, u64)> {
        let (start, range) = self.ranges.range(..=address).next_back()?;
        let offset = address - start;
        let mapping = range.mapping.as_ref()?;
        let access = mapping.access.get(&device).copied().unwrap_or(Access::None);
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= range.bytes);
        (inside && access >= least).then_some((&*mapping.allocation, offset))
    }
}

fn is_whole(bytes: u64) -> bool {
    bytes > 0 && bytes.is_multiple_of(GRANULARITY) && bytes <= i64::MAX as u64
}

/// Gives a part of a reserved range back to the kernel.
fn unmap(address: u64, bytes: u64) {
    if bytes > 0 {
        // SAFETY: the caller owns these addresses, which no code can read or write.
        unsafe { libc::munmap(without_provenance_mut(address as usize), bytes as usize) };
    }
}
