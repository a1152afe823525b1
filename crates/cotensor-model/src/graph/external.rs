//! External data: finds the file and the range of bytes, and checks that the file is inside the model's folder.

use super::wire::{DataField, Span};
use cotensor_core::{Error, Result};
use rten_onnx::onnx::StringStringEntryProto;
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

/// The folder of one model file.
pub(super) struct Folder<'a> {
    model: &'a Path,
    /// Resolved path and length in bytes of each file, by the name in the graph.
    files: HashMap<String, (PathBuf, u64)>,
}

impl<'a> Folder<'a> {
    pub(super) fn of(model: &'a Path) -> Self {
        Self { model, files: HashMap::new() }
    }

    /// The model file itself, symbolic links resolved.
    pub(super) fn model(&self) -> Result<PathBuf> {
        self.model.canonicalize().map_err(|error| Error::io("resolving", &error))
    }

    /// The file and the range of an initializer of `size` bytes. A missing offset is zero; a missing length is `size`.
    pub(super) fn external(&mut self, entries: &[StringStringEntryProto], size: u64) -> Result<(PathBuf, Span)> {
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
        let (file, file_bytes) = self.resolve(location)?;
        let offset = number("offset")?.unwrap_or(0);
        let length = number("length")?.unwrap_or(size);
        if offset.checked_add(length).is_none_or(|end| end > file_bytes) {
            let range = format!("{length} bytes at {offset}");
            return Err(Error::corrupt(format!(
                "external data {location:?} has {file_bytes} bytes, needed are {range}"
            )));
        }
        Ok((file, Span { field: DataField::Raw, offset, length }))
    }

    fn resolve(&mut self, location: &str) -> Result<(PathBuf, u64)> {
        if let Some(known) = self.files.get(location) {
            return Ok(known.clone());
        }
        let escapes = || Error::invalid(format!("external data {location:?} is not inside the model's folder"));
        let relative = Path::new(location);
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if location.is_empty() || !relative.components().all(is_plain) {
            return Err(escapes());
        }
        let folder = match self.model.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let missing = |error| Error::io(format!("external data {location:?}"), &error);
        let file = folder.join(relative).canonicalize().map_err(missing)?;
        // Caches link the graph and its data into one folder of blobs, so the folder of the linked graph is allowed, too.
        // The hub's cache also has blobs that several models share.
        let real = self.model()?;
        let real_folder = real.parent().unwrap_or(Path::new("/")).to_path_buf();
        let folder = folder.canonicalize().map_err(missing)?;
        let blobs = cotensor_hub::blob_folders(&folder);
        if ![folder, real_folder].iter().chain(&blobs).any(|allowed| file.starts_with(allowed)) {
            return Err(escapes());
        }
        let metadata = file.metadata().map_err(missing)?;
        if !metadata.is_file() {
            return Err(Error::invalid(format!("external data {location:?} is not a regular file")));
        }
        let known = (file, metadata.len());
        self.files.insert(location.to_owned(), known.clone());
        Ok(known)
    }
}
