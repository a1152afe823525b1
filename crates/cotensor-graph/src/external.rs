//! External data: the file and the range of bytes of an initializer.

use super::files::GraphFiles;
use super::wire::{DataField, Span};
use cotensor_core::{Error, Result};
use rten_onnx::onnx::StringStringEntryProto;
use std::path::PathBuf;

/// The file and the range of an initializer of `size` bytes. A missing offset is zero; a missing length is `size`.
///
/// # Errors
/// `Corrupt` for entries that are wrong or reach past the file, or as [`GraphFiles::external`].
pub(super) fn locate(
    files: &mut dyn GraphFiles,
    entries: &[StringStringEntryProto],
    size: u64,
) -> Result<(PathBuf, Span)> {
    let get = |key: &str| {
        entries.iter().find(|entry| entry.key.as_deref() == Some(key)).and_then(|entry| entry.value.as_deref())
    };
    let number = |key: &str| {
        let parse = |value: &str| {
            value.parse::<u64>().map_err(|_| Error::corrupt(format!("external data's {key} is {value:?}")))
        };
        get(key).map(parse).transpose()
    };
    let location = get("location").ok_or_else(|| Error::corrupt("external data without a location"))?;
    let (file, file_bytes) = files.external(location)?;
    let offset = number("offset")?.unwrap_or(0);
    let length = number("length")?.unwrap_or(size);
    if offset.checked_add(length).is_none_or(|end| end > file_bytes) {
        let range = format!("{length} bytes at {offset}");
        return Err(Error::corrupt(format!("external data {location:?} has {file_bytes} bytes, needed are {range}")));
    }
    Ok((file, Span { field: DataField::Raw, offset, length }))
}
