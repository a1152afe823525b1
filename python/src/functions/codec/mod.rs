//! Python values as values that cross processes, and back.

#[allow(clippy::module_inception, reason = "one file for each type")]
pub(super) mod codec;
mod decode;
mod encode;
pub(super) mod managed_object;
pub(super) mod markers;
pub(super) mod path;
pub(super) mod remote_object;
pub(super) mod tensor_format;
