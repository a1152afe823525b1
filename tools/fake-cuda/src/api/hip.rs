//! The functions under the names of AMD's driver (HIP): those that Cotensor calls. Each calls the function above with NVIDIA's name.
//!
//! Pointers have no types here: a function passes them on. No behaviour of AMD's driver is imitated.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

type Pointer = *mut c_void;

macro_rules! hip {
    ($($hip:ident $cuda:ident ($($argument:ident: $kind:ty),*);)*) => {
        unsafe extern "C" {
            $(fn $cuda($($argument: $kind),*) -> u32;)*
        }

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $hip($($argument: $kind),*) -> u32 {
                // SAFETY: the caller promises it (see the module `api`). The function has these parameters.
                unsafe { $cuda($($argument),*) }
            }
        )*
    };
}

hip! {
    hipInit cuInit(flags: c_uint);
    hipDriverGetVersion cuDriverGetVersion(version: Pointer);
    hipDrvGetErrorName cuGetErrorName(code: u32, text: Pointer);
    hipDrvGetErrorString cuGetErrorString(code: u32, text: Pointer);
    hipGetDeviceCount cuDeviceGetCount(count: Pointer);
    hipDeviceGet cuDeviceGet(device: Pointer, ordinal: c_int);
    hipDeviceGetName cuDeviceGetName(name: Pointer, len: c_int, device: c_int);
    hipDeviceGetUuid cuDeviceGetUuid_v2(uuid: Pointer, device: c_int);
    hipDeviceTotalMem cuDeviceTotalMem_v2(bytes: Pointer, device: c_int);
    hipDevicePrimaryCtxRetain cuDevicePrimaryCtxRetain(context: Pointer, device: c_int);
    hipDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2(device: c_int);
    hipCtxPushCurrent cuCtxPushCurrent_v2(context: u64);
    hipCtxPopCurrent cuCtxPopCurrent_v2(context: Pointer);
    hipCtxSynchronize cuCtxSynchronize();
    hipThreadExchangeStreamCaptureMode cuThreadExchangeStreamCaptureMode(mode: Pointer);
    hipMemGetAllocationGranularity cuMemGetAllocationGranularity(bytes: Pointer, properties: Pointer, option: c_int);
    hipMemCreate cuMemCreate(handle: Pointer, bytes: usize, properties: Pointer, flags: c_ulonglong);
    hipMemRelease cuMemRelease(handle: c_ulonglong);
    hipMemExportToShareableHandle cuMemExportToShareableHandle(fd: Pointer, handle: c_ulonglong, kind: c_int, flags: c_ulonglong);
    hipMemImportFromShareableHandle cuMemImportFromShareableHandle(handle: Pointer, fd: Pointer, kind: c_int);
    hipMemGetAllocationPropertiesFromHandle cuMemGetAllocationPropertiesFromHandle(properties: Pointer, handle: c_ulonglong);
    hipMemAddressReserve cuMemAddressReserve(address: Pointer, bytes: usize, alignment: usize, wanted: c_ulonglong, flags: c_ulonglong);
    hipMemAddressFree cuMemAddressFree(address: c_ulonglong, bytes: usize);
    hipMemMap cuMemMap(address: c_ulonglong, bytes: usize, offset: usize, handle: c_ulonglong, flags: c_ulonglong);
    hipMemUnmap cuMemUnmap(address: c_ulonglong, bytes: usize);
    hipMemSetAccess cuMemSetAccess(address: c_ulonglong, bytes: usize, descriptions: Pointer, count: usize);
    hipMemGetInfo cuMemGetInfo_v2(free: Pointer, total: Pointer);
    hipMemsetD8Async cuMemsetD8Async(address: c_ulonglong, value: u8, bytes: usize, stream: u64);
    hipMemcpyHtoDAsync cuMemcpyHtoDAsync_v2(address: c_ulonglong, source: Pointer, bytes: usize, stream: u64);
    hipMemcpyDtoHAsync cuMemcpyDtoHAsync_v2(target: Pointer, address: c_ulonglong, bytes: usize, stream: u64);
    hipMemcpyDtoDAsync cuMemcpyDtoDAsync_v2(address: c_ulonglong, source: c_ulonglong, bytes: usize, stream: u64);
    hipPointerGetAttribute cuPointerGetAttribute(value: Pointer, attribute: c_int, address: c_ulonglong);
    hipStreamCreateWithFlags cuStreamCreate(stream: Pointer, flags: c_uint);
    hipStreamDestroy cuStreamDestroy_v2(stream: u64);
    hipStreamSynchronize cuStreamSynchronize(stream: u64);
    hipStreamIsCapturing cuStreamIsCapturing(stream: u64, status: Pointer);
    hipEventCreateWithFlags cuEventCreate(event: Pointer, flags: c_uint);
    hipEventDestroy cuEventDestroy_v2(event: u64);
    hipEventRecord cuEventRecord(event: u64, stream: u64);
    hipEventSynchronize cuEventSynchronize(event: u64);
}
