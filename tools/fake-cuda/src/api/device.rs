//! The driver and its devices.

use super::put;
use crate::codes::{INVALID_VALUE, describe};
use crate::machine::Machine;
use crate::process::{enter, initialize};
use std::ffi::{c_char, c_int, c_uint};

const NAME: &[u8] = b"Fake GPU\0";

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> u32 {
    if flags != 0 {
        return INVALID_VALUE;
    }
    initialize().err().unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> u32 {
    let Some(folder) = crate::fake::own_folder() else { return INVALID_VALUE };
    let number = c_int::try_from(Machine::at(&folder).settings().version).unwrap_or(c_int::MAX);
    // SAFETY: the caller promises it (see the module `api`).
    unsafe { put(version, number) }.err().unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> u32 {
    // SAFETY: the caller promises it (see the module `api`).
    enter("cuDeviceGetCount", |process| unsafe { put(count, process.devices() as c_int) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> u32 {
    enter("cuDeviceGet", |process| {
        process.device(ordinal)?;
        // SAFETY: the caller promises it (see the module `api`).
        unsafe { put(device, ordinal) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> u32 {
    enter("cuDeviceGetName", |process| {
        process.device(device)?;
        let room = usize::try_from(len).map_err(|_| INVALID_VALUE)?;
        if name.is_null() || room < NAME.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller promises `len` bytes, which are enough.
        unsafe { name.copy_from_nonoverlapping(NAME.as_ptr().cast(), NAME.len()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> u32 {
    enter("cuDeviceGetUuid_v2", |process| {
        let number = process.device(device)?.to_be_bytes();
        let mut value = *b"cotensor fake...";
        value[12..].copy_from_slice(&number);
        // SAFETY: the caller promises it (see the module `api`).
        unsafe { put(uuid, value) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> u32 {
    enter("cuDeviceTotalMem_v2", |process| {
        process.device(device)?;
        // SAFETY: the caller promises it (see the module `api`).
        unsafe { put(bytes, process.settings.memory_bytes as usize) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(code: u32, text: *mut *const c_char) -> u32 {
    // SAFETY: the caller promises it (see the module `api`).
    unsafe { put_text(text, describe(code).map(|(name, _)| name)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(code: u32, text: *mut *const c_char) -> u32 {
    // SAFETY: the caller promises it (see the module `api`).
    unsafe { put_text(text, describe(code).map(|(_, text)| text)) }
}

/// Writes a text, or null and an error for a result that is unknown.
///
/// # Safety
/// `out` is null or can be written.
unsafe fn put_text(out: *mut *const c_char, text: Option<&'static std::ffi::CStr>) -> u32 {
    let pointer = text.map_or(std::ptr::null(), std::ffi::CStr::as_ptr);
    // SAFETY: the caller promises it.
    match unsafe { put(out, pointer) } {
        Ok(()) if text.is_some() => 0,
        _ => INVALID_VALUE,
    }
}
