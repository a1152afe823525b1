//! The structs and constants of dlpack.h, versions 0 and 1, and the element types that both sides know.

use cotensor::{DType, Error};
use pyo3::prelude::*;
use std::ffi::{CStr, c_void};

/// `kDLCPU`.
pub(crate) const CPU: i32 = 1;
/// `kDLCUDA`.
pub(crate) const CUDA: i32 = 2;
/// `kDLROCM`: a device of AMD's driver.
pub(crate) const ROCM: i32 = 10;
/// `__dlpack_device__` of host memory.
pub(crate) const HOST: (i32, i32) = (CPU, 0);
/// `kDLCUDAHost` and `kDLROCMHost`: host memory that a device can access.
const CUDA_HOST: i32 = 3;
const ROCM_HOST: i32 = 11;
/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
pub(super) const READ_ONLY: u64 = 1;
/// `DLPACK_FLAG_BITMASK_IS_COPIED`.
pub(super) const COPIED: u64 = 2;
/// The newest version that this module reads and writes.
pub(super) const VERSION: Version = Version { major: 1, minor: 0 };

/// The capsule's name while it holds a `DLManagedTensor`.
pub(super) const NAME: &CStr = c"dltensor";
/// The capsule's name while it holds a `DLManagedTensorVersioned`.
pub(super) const NAME_VERSIONED: &CStr = c"dltensor_versioned";

/// `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Device {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

impl Device {
    /// As `__dlpack_device__` returns it.
    pub(crate) fn pair(self) -> (i32, i32) {
        (self.kind, self.id)
    }
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub(super) struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
pub(super) struct DlTensor {
    pub(super) data: *mut c_void,
    pub(super) device: Device,
    pub(super) rank: i32,
    pub(super) dtype: DataType,
    pub(super) shape: *mut i64,
    pub(super) strides: *mut i64,
    pub(super) byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
pub(super) struct Unversioned {
    pub(super) tensor: DlTensor,
    pub(super) context: *mut c_void,
    pub(super) deleter: Option<unsafe extern "C" fn(*mut Unversioned)>,
}

/// `DLPackVersion`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
pub(super) struct Versioned {
    pub(super) version: Version,
    pub(super) context: *mut c_void,
    pub(super) deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    pub(super) flags: u64,
    pub(super) tensor: DlTensor,
}

/// The device of an array: its kind and number.
pub(crate) fn device_of(array: &Bound<'_, PyAny>) -> PyResult<(i32, i32)> {
    array.call_method0("__dlpack_device__")?.extract()
}

/// Whether the host can read memory of this device kind.
pub(crate) fn is_host(kind: i32) -> bool {
    matches!(kind, CPU | CUDA_HOST | ROCM_HOST)
}

/// Element types and their `DLDataTypeCode`.
const TYPES: [(DType, u8); 17] = [
    (DType::Bool, 6),
    (DType::U8, 1),
    (DType::I8, 0),
    (DType::U16, 1),
    (DType::I16, 0),
    (DType::F16, 2),
    (DType::BF16, 4),
    (DType::U32, 1),
    (DType::I32, 0),
    (DType::F32, 2),
    (DType::U64, 1),
    (DType::I64, 0),
    (DType::F64, 2),
    (DType::F8E4M3FN, 10),
    (DType::F8E5M2, 12),
    (DType::C64, 5),
    (DType::C128, 5),
];

pub(super) fn data_type(dtype: DType) -> DataType {
    let code = TYPES.iter().find(|(known, _)| *known == dtype).map_or(3, |(_, code)| *code);
    DataType { code, bits: 8 * dtype.size_bytes() as u8, lanes: 1 }
}

/// The element type of an array.
pub(super) fn dtype_of(found: DataType) -> Result<DType, Error> {
    let known = TYPES.iter().map(|(dtype, _)| *dtype).find(|&dtype| data_type(dtype) == found);
    known.ok_or_else(|| {
        let DataType { code, bits, lanes } = found;
        let what = format!("elements of {bits} bits (DLPack type {code}, {lanes} lanes)");
        Error::unsupported(format!("{what} cannot be shared: view them as a supported dtype"))
    })
}
