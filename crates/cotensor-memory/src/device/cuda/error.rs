//! Errors of the driver's results.

use cotensor_core::{Error, ErrorKind};
use std::fmt;

pub(super) const INVALID_VALUE: u32 = 1;
pub(super) const OUT_OF_MEMORY: u32 = 2;
/// After `fork`: the parent has initialized the driver.
pub(super) const NOT_INITIALIZED: u32 = 3;
const DEINITIALIZED: u32 = 4;
/// The driver is older than the library that is in front of it, or a stub without a driver.
const INSUFFICIENT_DRIVER: [u32; 2] = [34, 35];
/// Another process has the device alone (compute mode "exclusive process").
const DEVICE_UNAVAILABLE: u32 = 46;
const NO_DEVICE: u32 = 100;
pub(super) const INVALID_DEVICE: u32 = 101;
pub(super) const CONTEXT_IS_DESTROYED: u32 = 709;
/// A call that a stream which is captured into a graph prohibits. The capture has ended with an error, except for 906: the default stream would
/// have to wait for a captured one.
const CAPTURES: std::ops::RangeInclusive<u32> = 900..=907;
const ECC_UNCORRECTABLE: u32 = 214;
pub(super) const NOT_SUPPORTED: u32 = 801;
/// Also what an import of a descriptor that is no handle returns.
pub(super) const UNKNOWN: u32 = 999;
/// Errors of hardware (220, 226), an illegal address, a time limit, a destroyed context, a failed assertion, memory of a tensor core that a
/// kernel has not given back (721).
const LOST: [u32; 7] = [220, 226, 700, 702, CONTEXT_IS_DESTROYED, 710, 721];
/// Hardware and launch failures.
const LOST_IN_KERNEL: std::ops::RangeInclusive<u32> = 714..=719;

/// The error of a call that returned `code`, which the driver describes by `text`.
pub(super) fn driver_error(what: impl fmt::Display, code: u32, text: &str) -> Error {
    let (kind, advice) = match code {
        OUT_OF_MEMORY => (ErrorKind::OverBudget, "release tensors, or end other programs that use the device"),
        NOT_INITIALIZED => (
            ErrorKind::Unsupported,
            "this process was forked after its parent had used CUDA, which CUDA does not support; start it by spawn",
        ),
        INVALID_DEVICE | NOT_SUPPORTED => (ErrorKind::Unsupported, "the device or its driver cannot do this"),
        DEVICE_UNAVAILABLE => (ErrorKind::Conflict, "another program may use the device alone: end it"),
        NO_DEVICE => (ErrorKind::NotFound, "CUDA_VISIBLE_DEVICES may hide all devices"),
        code if CAPTURES.contains(&code) => (
            ErrorKind::Conflict,
            "a stream of this process is captured into a CUDA graph: end the capture before, and capture again",
        ),
        code if INSUFFICIENT_DRIVER.contains(&code) => (ErrorKind::Unsupported, "install a newer driver"),
        code if is_lost(code) => (
            ErrorKind::Io,
            "this process can no longer use the device and must be started again; published tensors and other processes are \
             unharmed",
        ),
        _ => (ErrorKind::Io, ""),
    };
    let separator = if advice.is_empty() { "" } else { "; " };
    Error::new(kind, format!("{what}: {text}{separator}{advice}"))
}

/// Whether all later calls of the process have this result, too.
pub(super) fn is_lost(code: u32) -> bool {
    matches!(code, DEINITIALIZED | ECC_UNCORRECTABLE) || LOST.contains(&code) || LOST_IN_KERNEL.contains(&code)
}
