//! Memory of this process as a DLPack capsule.

use super::abi::{
    COPIED, CPU, Device, DlTensor, NAME, NAME_VERSIONED, READ_ONLY, Unversioned, VERSION, Versioned, data_type,
};
use cotensor_core::Layout;
use pyo3::ffi;
use pyo3::prelude::*;
use std::any::Any;
use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

/// How a capsule describes its memory. Unversioned capsules have the device only.
#[derive(Clone, Copy)]
pub(crate) struct Flags {
    pub(crate) read_only: bool,
    pub(crate) copied: bool,
    pub(crate) device: Device,
}

impl Flags {
    /// Host memory that consumers may write.
    pub(crate) const HOST: Self = Self { read_only: false, copied: false, device: Device { kind: CPU, id: 0 } };
}

/// A capsule of the newest version that the consumer accepts. It holds `keep` until the consumer frees it.
/// `address` is the address of the first element; `layout`'s own offset does not count.
pub(crate) fn to_capsule(
    py: Python<'_>,
    address: NonNull<u8>,
    layout: &Layout,
    keep: Arc<dyn Any + Send + Sync>,
    flags: Flags,
    max_version: Option<(u32, u32)>,
) -> PyResult<Py<PyAny>> {
    let context = std::ptr::null_mut();
    if max_version.is_some_and(|(major, _)| major >= 1) {
        let device = flags.device;
        let flags = if flags.read_only { READ_ONLY } else { 0 } | if flags.copied { COPIED } else { 0 };
        let deleter = Some(delete_versioned as unsafe extern "C" fn(*mut Versioned));
        let export = leak(address, layout, device, keep, |tensor| Versioned {
            version: VERSION,
            context,
            deleter,
            flags,
            tensor,
        });
        // SAFETY: `leak` made it, and the destructor frees it unless a consumer took ownership.
        unsafe { capsule(py, export, NAME_VERSIONED, drop_versioned) }
    } else {
        let deleter = Some(delete as unsafe extern "C" fn(*mut Unversioned));
        let export = leak(address, layout, flags.device, keep, |tensor| Unversioned { tensor, context, deleter });
        // SAFETY: as above.
        unsafe { capsule(py, export, NAME, drop_unversioned) }
    }
}

/// The memory that a capsule points into. Its consumer frees it, from any thread, attached to Python or not.
struct Export<M> {
    managed: M,
    _shape: Vec<i64>,
    _strides: Vec<i64>,
    _keep: Arc<dyn Any + Send + Sync>,
}

/// Allocates an export, which stays until its deleter is called.
fn leak<M>(
    address: NonNull<u8>,
    layout: &Layout,
    device: Device,
    keep: Arc<dyn Any + Send + Sync>,
    managed: impl FnOnce(DlTensor) -> M,
) -> *mut Export<M> {
    let signed = |values: &[usize]| values.iter().map(|&value| value as i64).collect::<Vec<i64>>();
    let (mut shape, mut strides) = (signed(layout.shape()), signed(layout.strides()));
    let tensor = DlTensor {
        data: address.as_ptr().cast(),
        device,
        rank: shape.len() as i32,
        dtype: data_type(layout.dtype()),
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    };
    // Moving a vector does not move its elements.
    Box::into_raw(Box::new(Export { managed: managed(tensor), _shape: shape, _strides: strides, _keep: keep }))
}

unsafe extern "C" fn delete(managed: *mut Unversioned) {
    // SAFETY: the consumer or the capsule calls this once, with a pointer into an allocation of `leak`.
    unsafe { free::<Unversioned>(managed) }
}

unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: as above.
    unsafe { free::<Versioned>(managed) }
}

/// # Safety
/// `managed` is inside an `Export` that `leak` made and that was not freed.
unsafe fn free<M>(managed: *mut M) {
    let start = managed.wrapping_byte_sub(std::mem::offset_of!(Export<M>, managed));
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(start.cast::<Export<M>>()) });
}

/// # Safety
/// `destructor` frees `export`.
unsafe fn capsule<M>(
    py: Python<'_>,
    export: *mut Export<M>,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Py<PyAny>> {
    let managed = export.wrapping_byte_add(std::mem::offset_of!(Export<M>, managed));
    // SAFETY: the pointer is not null and the name is static; Python is attached.
    let object = unsafe { ffi::PyCapsule_New(managed.cast(), name.as_ptr(), Some(destructor)) };
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, object) }.map(Bound::unbind)
}

unsafe extern "C" fn drop_unversioned(object: *mut ffi::PyObject) {
    // SAFETY: a capsule of this module in its destructor; a consumer renames the capsule when it takes ownership.
    unsafe {
        if ffi::PyCapsule_IsValid(object, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(object, NAME.as_ptr()).cast());
        }
    }
}

unsafe extern "C" fn drop_versioned(object: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe {
        if ffi::PyCapsule_IsValid(object, NAME_VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(object, NAME_VERSIONED.as_ptr()).cast());
        }
    }
}
