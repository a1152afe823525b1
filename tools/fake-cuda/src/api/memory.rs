//! Virtual memory management: allocations, addresses and mappings.

use super::{AccessDescription, AllocationProperties, DESCRIPTOR, LOCATION_DEVICE, Location, PINNED, get, put};
use crate::codes::{INVALID_VALUE, NOT_SUPPORTED, Outcome, UNKNOWN};
use crate::machine::{GRANULARITY, duplicate};
use crate::process::{Access, Process, enter};
use std::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::IntoRawFd;
use std::sync::Arc;

/// The machine's index of the device that properties name.
fn device_of(process: &Process, properties: &AllocationProperties) -> Outcome<u32> {
    let AllocationProperties { kind, handle_kinds, location, windows, flags } = properties;
    if *kind != PINNED || *handle_kinds != DESCRIPTOR || location.kind != LOCATION_DEVICE {
        return Err(INVALID_VALUE);
    }
    if *windows != 0 || *flags != [0; 8] {
        return Err(INVALID_VALUE);
    }
    process.device(location.id)
}

/// Enters a function that changes memory.
fn change(name: &str, call: impl FnOnce(&mut Process) -> Outcome) -> u32 {
    enter(name, |process| {
        process.captures.check_unsafe()?;
        call(process)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAllocationGranularity(
    bytes: *mut usize,
    properties: *const AllocationProperties,
    _option: c_int,
) -> u32 {
    enter("cuMemGetAllocationGranularity", |process| {
        // SAFETY: the caller promises it (see the module `api`).
        device_of(process, unsafe { get(properties) }?)?;
        // SAFETY: as above.
        unsafe { put(bytes, process.settings.granularity_bytes as usize) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemCreate(
    handle: *mut c_ulonglong,
    bytes: usize,
    properties: *const AllocationProperties,
    flags: c_ulonglong,
) -> u32 {
    change("cuMemCreate", |process| {
        // SAFETY: the caller promises it (see the module `api`).
        let device = device_of(process, unsafe { get(properties) }?)?;
        if bytes == 0 || !(bytes as u64).is_multiple_of(GRANULARITY) || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let allocation = process.machine.allocate(device, bytes as u64)?;
        // SAFETY: as above.
        unsafe { put(handle, process.add(allocation)?) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRelease(handle: c_ulonglong) -> u32 {
    change("cuMemRelease", |process| process.release(handle))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemExportToShareableHandle(
    shareable: *mut c_int,
    handle: c_ulonglong,
    kind: c_int,
    flags: c_ulonglong,
) -> u32 {
    change("cuMemExportToShareableHandle", |process| {
        if kind != DESCRIPTOR || flags != 0 || shareable.is_null() {
            return Err(INVALID_VALUE);
        }
        let descriptor = process.allocation(handle)?.export().map_err(|_| UNKNOWN)?;
        // SAFETY: the caller promises it (see the module `api`).
        unsafe { put(shareable, descriptor.into_raw_fd()) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut c_ulonglong,
    shareable: *mut c_void,
    kind: c_int,
) -> u32 {
    change("cuMemImportFromShareableHandle", |process| {
        if kind != DESCRIPTOR {
            return Err(INVALID_VALUE);
        }
        let number = c_int::try_from(shareable as usize).map_err(|_| UNKNOWN)?;
        let descriptor = duplicate(number).map_err(|_| UNKNOWN)?;
        let allocation = process.machine.open(descriptor).ok_or(UNKNOWN)?;
        // SAFETY: the caller promises it (see the module `api`).
        unsafe { put(handle, process.add(allocation)?) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(
    properties: *mut AllocationProperties,
    handle: c_ulonglong,
) -> u32 {
    enter("cuMemGetAllocationPropertiesFromHandle", |process| {
        let id = process.ordinal(process.allocation(handle)?.device)?;
        let location = Location { kind: LOCATION_DEVICE, id };
        let found =
            AllocationProperties { kind: PINNED, handle_kinds: DESCRIPTOR, location, windows: 0, flags: [0; 8] };
        // SAFETY: the caller promises it (see the module `api`).
        unsafe { put(properties, found) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAddressReserve(
    address: *mut c_ulonglong,
    bytes: usize,
    alignment: usize,
    wanted: c_ulonglong,
    flags: c_ulonglong,
) -> u32 {
    change("cuMemAddressReserve", |process| {
        if alignment != 0 || wanted != 0 || flags != 0 {
            return Err(NOT_SUPPORTED);
        }
        // SAFETY: the caller promises it (see the module `api`).
        unsafe { put(address, process.addresses.reserve(bytes as u64)?) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressFree(address: c_ulonglong, bytes: usize) -> u32 {
    change("cuMemAddressFree", |process| process.addresses.free(address, bytes as u64))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemMap(
    address: c_ulonglong,
    bytes: usize,
    offset: usize,
    handle: c_ulonglong,
    flags: c_ulonglong,
) -> u32 {
    change("cuMemMap", |process| {
        // The driver's documentation demands 0 for both.
        if offset != 0 || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let allocation = Arc::clone(process.allocation(handle)?);
        process.addresses.map(address, bytes as u64, &allocation)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemUnmap(address: c_ulonglong, bytes: usize) -> u32 {
    change("cuMemUnmap", |process| process.addresses.unmap(address, bytes as u64))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemSetAccess(
    address: c_ulonglong,
    bytes: usize,
    descriptions: *const AccessDescription,
    count: usize,
) -> u32 {
    change("cuMemSetAccess", |process| {
        for index in 0..count {
            // SAFETY: the caller promises `count` descriptions.
            let description = unsafe { get(descriptions.wrapping_add(index)) }?;
            let access = match description.flags {
                0 => Access::None,
                1 => Access::Read,
                3 => Access::ReadWrite,
                _ => return Err(INVALID_VALUE),
            };
            if description.location.kind != LOCATION_DEVICE {
                return Err(INVALID_VALUE);
            }
            let (device, peers) = (process.device(description.location.id)?, process.settings.peer_access);
            process.addresses.set_access(address, bytes as u64, device, access, peers)?;
        }
        Ok(())
    })
}

/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
const DEVICE_ORDINAL: c_int = 9;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttribute(value: *mut c_void, attribute: c_int, address: c_ulonglong) -> u32 {
    enter("cuPointerGetAttribute", |process| {
        process.contexts.current()?;
        if attribute != DEVICE_ORDINAL {
            return Err(NOT_SUPPORTED);
        }
        let device = process.addresses.device(address).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller promises it (see the module `api`).
        unsafe { put(value.cast(), process.ordinal(device)?) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32 {
    enter("cuMemGetInfo_v2", |process| {
        let device = process.device(process.contexts.current()?)?;
        let used = process.machine.used_bytes(device).map_err(|_| UNKNOWN)?;
        let all = process.settings.memory_bytes;
        // SAFETY: the caller promises it (see the module `api`).
        unsafe {
            put(free, all.saturating_sub(used) as usize)?;
            put(total, all as usize)
        }
    })
}
