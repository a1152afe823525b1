//! Functions of the management library (`libnvidia-ml.so.1`), which tell what programs take. Results are numbers of `nvmlReturn_t`.
//!
//! They need no `cuInit`. The machine's memory is in use as its allocations say; which processes have it is a setting.

use super::put;
use crate::machine::Machine;
use std::ffi::{CStr, c_char, c_uint, c_ulonglong};

const INVALID_ARGUMENT: u32 = 2;
const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;
const UNKNOWN: u32 = 999;
/// Bytes that the driver keeps for itself.
const RESERVED_BYTES: u64 = 1 << 20;

/// `nvmlMemory_t`.
#[repr(C)]
struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
struct DetailedMemory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`.
#[repr(C)]
struct ProcessInfo {
    pid: c_uint,
    used_bytes: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// Runs `call`, the function `name`, unless the machine lets it fail. A handle is the number of the device and 1.
fn enter(name: &str, call: impl FnOnce(&Machine) -> Result<(), u32>) -> u32 {
    let Some(folder) = crate::fake::own_folder() else { return UNKNOWN };
    let machine = Machine::at(&folder);
    match machine.settings().failures.get(name) {
        Some(&code) => code,
        None => call(&machine).err().unwrap_or(0),
    }
}

fn device_of(machine: &Machine, handle: usize) -> Result<u32, u32> {
    let device = handle.checked_sub(1).and_then(|device| u32::try_from(device).ok());
    device.filter(|device| *device < machine.settings().devices).ok_or(INVALID_ARGUMENT)
}

fn used(machine: &Machine, device: u32) -> Result<u64, u32> {
    machine.used_bytes(device).map_err(|_| UNKNOWN)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> u32 {
    enter("nvmlInit_v2", |_| Ok(()))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> u32 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: u32) -> *const c_char {
    let text: &CStr = if code == UNKNOWN { c"Unknown Error" } else { c"Error" };
    text.as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> u32 {
    // SAFETY: the caller promises it (see the module `api`).
    enter("nvmlDeviceGetCount_v2", |machine| unsafe { put(count, machine.settings().devices) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, handle: *mut usize) -> u32 {
    enter("nvmlDeviceGetHandleByIndex_v2", |machine| {
        if index >= machine.settings().devices {
            return Err(NOT_FOUND);
        }
        // SAFETY: the caller promises it (see the module `api`).
        unsafe { put(handle, index as usize + 1) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(handle: usize, text: *mut c_char, len: c_uint) -> u32 {
    enter("nvmlDeviceGetUUID", |machine| {
        let uuid = format!("GPU-636f7465-6e73-6f72-2066-616b{:08x}\0", device_of(machine, handle)?);
        if text.is_null() || (len as usize) < uuid.len() {
            return Err(INSUFFICIENT_SIZE);
        }
        // SAFETY: the caller promises `len` bytes, which are enough.
        unsafe { text.copy_from_nonoverlapping(uuid.as_ptr().cast(), uuid.len()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo(handle: usize, memory: *mut Memory) -> u32 {
    enter("nvmlDeviceGetMemoryInfo", |machine| {
        let (total, used) = (machine.settings().memory_bytes, used(machine, device_of(machine, handle)?)?);
        let used = used + RESERVED_BYTES;
        // SAFETY: the caller promises it (see the module `api`).
        unsafe { put(memory, Memory { total, free: total.saturating_sub(used), used }) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(handle: usize, memory: *mut DetailedMemory) -> u32 {
    enter("nvmlDeviceGetMemoryInfo_v2", |machine| {
        // SAFETY: the caller promises it (see the module `api`).
        let version = unsafe { super::get(memory) }?.version;
        if version != size_of::<DetailedMemory>() as c_uint | 2 << 24 {
            return Err(INVALID_ARGUMENT);
        }
        let (total, used) = (machine.settings().memory_bytes, used(machine, device_of(machine, handle)?)?);
        let free = total.saturating_sub(used + RESERVED_BYTES);
        // SAFETY: as above.
        unsafe { put(memory, DetailedMemory { version, total, reserved: RESERVED_BYTES, free, used }) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: usize,
    count: *mut c_uint,
    processes: *mut ProcessInfo,
) -> u32 {
    enter("nvmlDeviceGetComputeRunningProcesses_v3", |machine| {
        let device = device_of(machine, handle)?;
        let settings = machine.settings();
        let listed: Vec<_> = settings.attributed.iter().filter(|((of, _), _)| *of == device).collect();
        // SAFETY: the caller promises it (see the module `api`).
        let room = *unsafe { super::get(count) }? as usize;
        // SAFETY: as above.
        unsafe { put(count, listed.len() as c_uint) }?;
        if room < listed.len() {
            return Err(INSUFFICIENT_SIZE);
        }
        for (index, ((_, pid), used_bytes)) in listed.into_iter().enumerate() {
            let info = ProcessInfo { pid: *pid, used_bytes: *used_bytes, gpu_instance: 0, compute_instance: 0 };
            // SAFETY: the caller promises `room` values.
            unsafe { put(processes.wrapping_add(index), info) }?;
        }
        Ok(())
    })
}
