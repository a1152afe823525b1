//! The functions of the driver, and the structures that they read.

use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
pub(super) struct AllocationProperties {
    kind: c_int,
    handle_kinds: c_int,
    location: Location,
    windows_attributes: usize,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub(super) struct AccessDescription {
    location: Location,
    flags: c_int,
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(super) const DESCRIPTOR: c_int = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
pub(super) const MINIMUM: c_int = 0;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`, an `int`.
pub(super) const DEVICE_ORDINAL: c_int = 9;
/// `CU_STREAM_NON_BLOCKING`: work on the default stream does not wait for it, nor it for that.
pub(super) const NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: a call that does not concern a captured stream does not end the capture.
pub(super) const RELAXED: c_int = 2;

/// `CU_EVENT_BLOCKING_SYNC` and `CU_EVENT_DISABLE_TIMING`: a thread that waits for the event sleeps, and nothing is measured.
pub(super) const EVENT_FLAGS: c_uint = 1 | 2;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
pub(super) const NOT_CAPTURED: c_int = 0;

/// What a device may do with a mapping: `CUmemAccess_flags`.
#[derive(Clone, Copy)]
pub(super) enum Access {
    Read = 1,
    ReadWrite = 3,
}

impl AllocationProperties {
    /// Memory of a device that is exported as a descriptor.
    pub(super) fn of(ordinal: c_int) -> Self {
        let location = Location { kind: ON_DEVICE, id: ordinal };
        Self { kind: PINNED, handle_kinds: DESCRIPTOR, location, windows_attributes: 0, flags: [0; 8] }
    }

    /// Whether the memory is on this device.
    pub(super) fn is_on(&self, ordinal: c_int) -> bool {
        self.location == Location { kind: ON_DEVICE, id: ordinal }
    }
}

impl AccessDescription {
    pub(super) fn of(ordinal: c_int, access: Access) -> Self {
        Self { location: Location { kind: ON_DEVICE, id: ordinal }, flags: access as c_int }
    }
}

/// `cuCtxGetId`: a number that no other context of the process has, also not one that has the handle of a former one.
pub(super) type ContextId = unsafe extern "C" fn(usize, *mut c_ulonglong) -> u32;

/// Finds [`ContextId`], which drivers for CUDA 12 and later have.
pub(super) fn context_id(library: &Library) -> Option<ContextId> {
    // SAFETY: the type is that of the function in `cuda.h`. The driver is never unloaded.
    unsafe { library.get::<ContextId>("cuCtxGetId") }.ok().map(|found| *found)
}

/// The vendor of a driver. AMD's has the same functions under other names, and has not been tried with Cotensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vendor {
    Nvidia,
    Amd,
}

impl Vendor {
    /// The name of the interface.
    pub(super) fn interface(self) -> &'static str {
        match self {
            Self::Nvidia => "CUDA",
            Self::Amd => "HIP",
        }
    }

    /// The first version that has all needed functions, as the driver reports it. Before 7.1, HIP's import of a descriptor takes a pointer to
    /// it, where CUDA's takes the number itself.
    pub(super) fn version_min(self) -> c_int {
        match self {
            Self::Nvidia => 11_040,
            Self::Amd => 70_100_000,
        }
    }

    /// A version as the driver reports it, such as `13.0`.
    pub(super) fn version_text(self, version: c_int) -> String {
        let (major, minor) = match self {
            Self::Nvidia => (1000, 10),
            Self::Amd => (10_000_000, 100_000),
        };
        format!("{}.{}", version / major, version % major / minor)
    }
}

macro_rules! functions {
    ($($field:ident $nvidia:literal $amd:literal ($($kind:ty),*);)*) => {
        /// The functions. Each returns a `CUresult` as a number: an enum of Rust would be undefined behaviour for a value that a
        /// later driver adds.
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($kind),*) -> u32,)*
        }

        impl Functions {
            /// Finds the functions in a library.
            ///
            /// # Errors
            /// The name of the first function that is missing.
            pub(super) fn find(library: &Library, vendor: Vendor) -> Result<Self, &'static str> {
                Ok(Self {
                    $($field: {
                        let name = match vendor {
                            Vendor::Nvidia => $nvidia,
                            Vendor::Amd => $amd,
                        };
                        // SAFETY: the type is that of the function in `cuda.h`. The driver is never unloaded.
                        let found = unsafe { library.get::<unsafe extern "C" fn($($kind),*) -> u32>(name) };
                        *found.map_err(|_| name)?
                    },)*
                })
            }
        }

        #[cfg(test)]
        const NAMES: &[[&str; 2]] = &[$([$nvidia, $amd]),*];
    };
}

// Handles of contexts, streams and events are pointers that only the driver reads. `usize` has their size, and can be sent to other threads.
functions! {
    init "cuInit" "hipInit" (c_uint);
    version "cuDriverGetVersion" "hipDriverGetVersion" (*mut c_int);
    error_name "cuGetErrorName" "hipDrvGetErrorName" (u32, *mut *const c_char);
    error_text "cuGetErrorString" "hipDrvGetErrorString" (u32, *mut *const c_char);
    device_count "cuDeviceGetCount" "hipGetDeviceCount" (*mut c_int);
    device "cuDeviceGet" "hipDeviceGet" (*mut c_int, c_int);
    device_name "cuDeviceGetName" "hipDeviceGetName" (*mut c_char, c_int, c_int);
    device_uuid "cuDeviceGetUuid_v2" "hipDeviceGetUuid" (*mut [u8; 16], c_int);
    device_bytes "cuDeviceTotalMem_v2" "hipDeviceTotalMem" (*mut usize, c_int);
    retain_context "cuDevicePrimaryCtxRetain" "hipDevicePrimaryCtxRetain" (*mut usize, c_int);
    release_context "cuDevicePrimaryCtxRelease_v2" "hipDevicePrimaryCtxRelease" (c_int);
    push_context "cuCtxPushCurrent_v2" "hipCtxPushCurrent" (usize);
    pop_context "cuCtxPopCurrent_v2" "hipCtxPopCurrent" (*mut usize);
    synchronize "cuCtxSynchronize" "hipCtxSynchronize" ();
    exchange_capture_mode "cuThreadExchangeStreamCaptureMode" "hipThreadExchangeStreamCaptureMode" (*mut c_int);
    granularity "cuMemGetAllocationGranularity" "hipMemGetAllocationGranularity"
        (*mut usize, *const AllocationProperties, c_int);
    create "cuMemCreate" "hipMemCreate" (*mut c_ulonglong, usize, *const AllocationProperties, c_ulonglong);
    release "cuMemRelease" "hipMemRelease" (c_ulonglong);
    export "cuMemExportToShareableHandle" "hipMemExportToShareableHandle"
        (*mut c_int, c_ulonglong, c_int, c_ulonglong);
    import "cuMemImportFromShareableHandle" "hipMemImportFromShareableHandle" (*mut c_ulonglong, usize, c_int);
    properties "cuMemGetAllocationPropertiesFromHandle" "hipMemGetAllocationPropertiesFromHandle"
        (*mut AllocationProperties, c_ulonglong);
    reserve "cuMemAddressReserve" "hipMemAddressReserve"
        (*mut c_ulonglong, usize, usize, c_ulonglong, c_ulonglong);
    free "cuMemAddressFree" "hipMemAddressFree" (c_ulonglong, usize);
    map "cuMemMap" "hipMemMap" (c_ulonglong, usize, usize, c_ulonglong, c_ulonglong);
    unmap "cuMemUnmap" "hipMemUnmap" (c_ulonglong, usize);
    set_access "cuMemSetAccess" "hipMemSetAccess" (c_ulonglong, usize, *const AccessDescription, usize);
    memory "cuMemGetInfo_v2" "hipMemGetInfo" (*mut usize, *mut usize);
    fill "cuMemsetD8Async" "hipMemsetD8Async" (c_ulonglong, u8, usize, usize);
    copy_to_device "cuMemcpyHtoDAsync_v2" "hipMemcpyHtoDAsync" (c_ulonglong, *const c_void, usize, usize);
    copy_to_host "cuMemcpyDtoHAsync_v2" "hipMemcpyDtoHAsync" (*mut c_void, c_ulonglong, usize, usize);
    copy_on_device "cuMemcpyDtoDAsync_v2" "hipMemcpyDtoDAsync" (c_ulonglong, c_ulonglong, usize, usize);
    pointer_attribute "cuPointerGetAttribute" "hipPointerGetAttribute" (*mut c_void, c_int, c_ulonglong);
    create_stream "cuStreamCreate" "hipStreamCreateWithFlags" (*mut usize, c_uint);
    destroy_stream "cuStreamDestroy_v2" "hipStreamDestroy" (usize);
    synchronize_stream "cuStreamSynchronize" "hipStreamSynchronize" (usize);
    capture_status "cuStreamIsCapturing" "hipStreamIsCapturing" (usize, *mut c_int);
    create_event "cuEventCreate" "hipEventCreateWithFlags" (*mut usize, c_uint);
    destroy_event "cuEventDestroy_v2" "hipEventDestroy" (usize);
    record_event "cuEventRecord" "hipEventRecord" (usize, usize);
    synchronize_event "cuEventSynchronize" "hipEventSynchronize" (usize);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn structures_have_the_sizes_of_the_driver() {
        assert_eq!(
            [size_of::<Location>(), size_of::<AllocationProperties>(), size_of::<AccessDescription>()],
            [8, 32, 12]
        );
    }

    #[test]
    fn each_vendor_has_a_name_for_each_function() {
        for (column, prefix) in ["cu", "hip"].into_iter().enumerate() {
            let names: BTreeSet<&str> = NAMES.iter().map(|names| names[column]).collect();
            assert_eq!(names.len(), NAMES.len(), "a name occurs twice");
            assert!(names.iter().all(|name| name.starts_with(prefix)), "{names:?}");
        }
    }
}
