//! Writes published tensors to a file.

use crate::format::Format;
use crate::{npy, safetensors};
use cotensor_core::{Error, Result};
use cotensor_store::Lease;
use std::io::Write;

/// Writes tensors to `target`. Formats without names ignore the names.
///
/// # Errors
/// `Invalid` for several tensors in a format for one; `Unsupported` for a dtype that the format does not have or a
/// tensor that is not contiguous in host memory; `Io` when writing fails.
pub fn write(target: &mut impl Write, format: Format, tensors: &[(&str, &Lease)]) -> Result<()> {
    let mut tensors = tensors.to_vec();
    if format == Format::Safetensors {
        // Descending element size keeps every tensor aligned.
        tensors.sort_by(|(left, a), (right, b)| {
            b.dtype().size_bytes().cmp(&a.dtype().size_bytes()).then_with(|| left.cmp(right))
        });
        let described: Vec<_> = tensors.iter().map(|(name, lease)| (*name, lease.dtype(), lease.shape())).collect();
        safetensors::write_header(target, &described)?;
    } else {
        let [(_, lease)] = tensors[..] else {
            let message = format!("{} tensors; only .safetensors files hold more than one", tensors.len());
            return Err(Error::invalid(message).in_field("format"));
        };
        if format == Format::Npy {
            let header = npy::npy_header(lease.dtype(), lease.shape())?;
            target.write_all(&header).map_err(|error| Error::io("cannot write", &error))?;
        }
    }
    for (name, lease) in tensors {
        let whole = lease.layout().is_contiguous().then(|| lease.bytes()).flatten();
        let bytes =
            whole.ok_or_else(|| Error::unsupported("the tensor is not contiguous in host memory").in_field(name))?;
        target.write_all(bytes).map_err(|error| Error::io("cannot write", &error))?;
    }
    target.flush().map_err(|error| Error::io("cannot write", &error))
}
