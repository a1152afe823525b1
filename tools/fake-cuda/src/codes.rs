//! The results of the driver's functions (`CUresult`).

/// The result of a function inside of this library.
pub(crate) type Outcome<T = ()> = Result<T, u32>;

/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) const INVALID_VALUE: u32 = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: u32 = 2;
/// `CUDA_ERROR_NOT_INITIALIZED`.
pub const NOT_INITIALIZED: u32 = 3;
/// `CUDA_ERROR_NO_DEVICE`.
pub const NO_DEVICE: u32 = 100;
/// `CUDA_ERROR_INVALID_DEVICE`.
pub(crate) const INVALID_DEVICE: u32 = 101;
/// `CUDA_ERROR_INVALID_CONTEXT`.
pub(crate) const INVALID_CONTEXT: u32 = 201;
/// `CUDA_ERROR_INVALID_HANDLE`.
pub(crate) const INVALID_HANDLE: u32 = 400;
/// `CUDA_ERROR_ILLEGAL_ADDRESS`.
pub const ILLEGAL_ADDRESS: u32 = 700;
/// `CUDA_ERROR_NOT_SUPPORTED`.
pub const NOT_SUPPORTED: u32 = 801;
/// `CUDA_ERROR_ILLEGAL_STATE`.
pub(crate) const ILLEGAL_STATE: u32 = 401;
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
pub const CAPTURE_UNSUPPORTED: u32 = 900;
/// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`.
pub const CAPTURE_INVALIDATED: u32 = 901;
/// `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED`: another stream has begun the capture.
pub(crate) const CAPTURE_UNMATCHED: u32 = 903;
/// `CUDA_ERROR_STREAM_CAPTURE_UNJOINED`: a stream of the capture is left that the first one does not wait for.
pub const CAPTURE_UNJOINED: u32 = 904;
/// `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
pub(crate) const CONTEXT_IS_DESTROYED: u32 = 709;
/// `CUDA_ERROR_UNKNOWN`.
pub const UNKNOWN: u32 = 999;

/// The name of a result and its text, as C strings.
pub(crate) fn describe(code: u32) -> Option<(&'static std::ffi::CStr, &'static std::ffi::CStr)> {
    Some(match code {
        0 => (c"CUDA_SUCCESS", c"no error"),
        INVALID_VALUE => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        OUT_OF_MEMORY => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        NOT_INITIALIZED => (c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
        NO_DEVICE => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
        INVALID_DEVICE => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        INVALID_CONTEXT => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        INVALID_HANDLE => (c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
        ILLEGAL_ADDRESS => (c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
        NOT_SUPPORTED => (c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
        ILLEGAL_STATE => (c"CUDA_ERROR_ILLEGAL_STATE", c"the operation cannot be performed in the present state"),
        CAPTURE_UNSUPPORTED => {
            (c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing")
        }
        CAPTURE_INVALIDATED => {
            (c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", c"operation failed due to a previous error during capture")
        }
        CAPTURE_UNMATCHED => (c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", c"capture was not initiated in this stream"),
        CAPTURE_UNJOINED => (c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", c"capturing stream has unjoined work"),
        CONTEXT_IS_DESTROYED => (c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed"),
        UNKNOWN => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
        _ => return None,
    })
}
