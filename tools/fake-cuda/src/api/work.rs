//! Contexts, streams and their work.

use super::{get, put};
use crate::codes::INVALID_VALUE;
use crate::process::{Work, enter, exchange_mode};
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_BLOCKING_SYNC` and `CU_EVENT_DISABLE_TIMING`.
const EVENT_FLAGS: c_uint = 1 | 2;

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int) -> u32 {
    // SAFETY: the caller promises it (see the module `api`).
    enter("cuDevicePrimaryCtxRetain", |process| unsafe { put(context, process.contexts.retain(device)?) })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> u32 {
    enter("cuDevicePrimaryCtxRelease_v2", |process| process.release_context(device))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxReset_v2(device: c_int) -> u32 {
    enter("cuDevicePrimaryCtxReset_v2", |process| process.reset_context(device))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetId(context: u64, id: *mut c_ulonglong) -> u32 {
    // SAFETY: the caller promises it (see the module `api`).
    enter("cuCtxGetId", |process| unsafe { put(id, process.contexts.id(context)?) })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: u64) -> u32 {
    enter("cuCtxPushCurrent_v2", |process| process.contexts.push(context))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut u64) -> u32 {
    // SAFETY: the caller promises it (see the module `api`).
    enter("cuCtxPopCurrent_v2", |process| unsafe { put(context, process.contexts.pop()?) })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> u32 {
    enter("cuCtxSynchronize", |process| process.synchronize_all())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut u64, flags: c_uint) -> u32 {
    enter("cuStreamCreate", |process| {
        if flags > NON_BLOCKING {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller promises it (see the module `api`).
        unsafe { put(stream, process.stream(flags != NON_BLOCKING)?) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: u64) -> u32 {
    enter("cuStreamSynchronize", |process| process.synchronize(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: u64) -> u32 {
    enter("cuStreamDestroy_v2", |process| process.destroy(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: u64, event: u64, flags: c_uint) -> u32 {
    enter(
        "cuStreamWaitEvent",
        |process| if flags == 0 { process.wait_event(stream, event) } else { Err(INVALID_VALUE) },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamIsCapturing(stream: u64, status: *mut c_int) -> u32 {
    // SAFETY: the caller promises it (see the module `api`).
    enter("cuStreamIsCapturing", |process| unsafe { put(status, process.capture_status(stream)?) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut u64, flags: c_uint) -> u32 {
    enter("cuEventCreate", |process| {
        if flags & !EVENT_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller promises it (see the module `api`).
        unsafe { put(event, process.event()?) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: u64, stream: u64) -> u32 {
    enter("cuEventRecord", |process| process.record_event(event, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: u64) -> u32 {
    enter("cuEventSynchronize", |process| process.synchronize_event(event))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: u64) -> u32 {
    enter("cuEventDestroy_v2", |process| process.destroy_event(event))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: u64, mode: c_int) -> u32 {
    enter("cuStreamBeginCapture_v2", |process| process.begin_capture(stream, mode))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamEndCapture(stream: u64, graph: *mut u64) -> u32 {
    // SAFETY: the caller promises it (see the module `api`).
    enter("cuStreamEndCapture", |process| unsafe { put(graph, process.end_capture(stream)?) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> u32 {
    enter("cuThreadExchangeStreamCaptureMode", |_| {
        // SAFETY: the caller promises it (see the module `api`).
        let former = exchange_mode(*unsafe { get(mode) }?)?;
        // SAFETY: as above.
        unsafe { put(mode, former) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(address: c_ulonglong, value: u8, bytes: usize, stream: u64) -> u32 {
    let work = Work::Fill { address, value, bytes: bytes as u64 };
    enter("cuMemsetD8Async", |process| process.submit(stream, work))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(address: c_ulonglong, source: *const c_void, bytes: usize, stream: u64) -> u32 {
    let work = Work::Write { address, source: source as usize, bytes: bytes as u64 };
    enter("cuMemcpyHtoDAsync_v2", |process| process.submit(stream, work))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(address: c_ulonglong, source: c_ulonglong, bytes: usize, stream: u64) -> u32 {
    let work = Work::Copy { address, source, bytes: bytes as u64 };
    enter("cuMemcpyDtoDAsync_v2", |process| process.submit(stream, work))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(target: *mut c_void, address: c_ulonglong, bytes: usize, stream: u64) -> u32 {
    let work = Work::Read { address, target: target as usize, bytes: bytes as u64 };
    enter("cuMemcpyDtoHAsync_v2", |process| process.submit(stream, work))
}
