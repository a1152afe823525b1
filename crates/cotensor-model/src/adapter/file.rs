//! Adapters in `.safetensors` files.

use super::stored::Adapter;
use cotensor_core::{Error, Result};
use cotensor_formats::{Format, TensorReader, write};
use cotensor_store::{CopyReason, LocalStore, TensorSpec, TensorStore};
use std::fs::{File, Permissions};
use std::io::BufReader;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The most bytes of a tensor in the file of an adapter.
const TENSOR_BYTES_MAX: usize = 1 << 30;

/// Writes an adapter to a `.safetensors` file. The file is complete or unchanged.
///
/// # Errors
/// `Io` when the file cannot be written.
pub fn save_adapter(adapter: &Adapter, path: &Path) -> Result<()> {
    let store = LocalStore::builder().build();
    let holder = store.holder("save");
    let mut leases = Vec::new();
    for (name, dtype, shape, bytes) in adapter.members()? {
        let mut reservation = store.reserve(TensorSpec::new(name, dtype, &shape), &holder)?;
        reservation.write(&bytes, CopyReason::Put)?;
        leases.push((name, reservation.publish()?));
    }
    let tensors: Vec<_> = leases.iter().map(|(name, lease)| (*name, lease)).collect();
    let io = |error: std::io::Error| Error::io("cannot write", &error).in_file(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The process's mask applies, as to any new file.
    let mut file =
        tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder).map_err(io)?;
    write(&mut file, Format::Safetensors, &tensors).map_err(|error| error.in_file(path))?;
    file.persist(path).map_err(|error| io(error.error))?;
    Ok(())
}

/// Reads an adapter from a `.safetensors` file.
///
/// # Errors
/// `NotFound`, `Io`, or `Corrupt` for a file that is not an adapter.
pub fn load_adapter(path: &Path) -> Result<Adapter> {
    let read = || {
        let file = File::open(path).map_err(|error| Error::io("cannot open", &error))?;
        let mut reader = TensorReader::open(BufReader::new(file), Format::Safetensors, None)?;
        let mut tensors = Vec::new();
        for (index, entry) in reader.entries().to_vec().into_iter().enumerate() {
            let size = entry.size_bytes()?;
            if size > TENSOR_BYTES_MAX {
                return Err(Error::corrupt(format!("{size} bytes are too many")).in_field(entry.name));
            }
            let mut bytes = vec![0; size];
            reader.read(index, &mut bytes)?;
            tensors.push((entry, bytes));
        }
        Adapter::from_members(|name| {
            let found = tensors.iter().find(|(entry, _)| entry.name == name);
            let (entry, bytes) =
                found.ok_or_else(|| Error::corrupt("no adapter: this tensor is missing").in_field(name))?;
            Ok((entry.dtype, entry.shape.clone(), bytes.as_slice().into()))
        })
    };
    read().map_err(|error: Error| error.in_file(path))
}
