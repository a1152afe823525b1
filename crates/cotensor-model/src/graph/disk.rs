//! A graph's file and its external data on a disk, inside the model's folder.

use cotensor_core::{Error, Result};
use cotensor_graph::{Graph, GraphFiles, check_location, outside_folder};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Opens an ONNX file. Finds external data but does not read it.
///
/// # Errors
/// `NotFound` without the file or its external data, `Corrupt` for another format or an inconsistent file,
/// `Unsupported` for unsupported parts of ONNX, `Invalid` for external data outside the folder. Errors name the
/// file and the initializer, if any.
pub fn open_graph(path: &Path) -> Result<Graph> {
    let open = || {
        // Checked before the file is opened: opening a pipe would wait for its writer.
        if !path.metadata().map_err(|error| Error::io("opening", &error))?.is_file() {
            return Err(Error::invalid("not a regular file"));
        }
        let file = File::open(path).map_err(|error| Error::io("opening", &error))?;
        read_graph(BufReader::new(file), path)
    };
    open().map_err(|error| error.in_file(path))
}

/// Reads an ONNX file from `reader`. `path` is its path; external data is relative to it.
///
/// # Errors
/// As [`open_graph`].
pub fn read_graph(reader: impl Read + Seek, path: &Path) -> Result<Graph> {
    Graph::read(reader, path, &mut Folder { model: path, files: HashMap::new() })
}

/// The folder of one model file.
struct Folder<'a> {
    model: &'a Path,
    /// Resolved path and length in bytes of each file, by the name in the graph.
    files: HashMap<String, (PathBuf, u64)>,
}

impl GraphFiles for Folder<'_> {
    /// The model file itself, symbolic links resolved.
    fn own(&self) -> Result<PathBuf> {
        self.model.canonicalize().map_err(|error| Error::io("resolving", &error))
    }

    fn external(&mut self, location: &str) -> Result<(PathBuf, u64)> {
        if let Some(known) = self.files.get(location) {
            return Ok(known.clone());
        }
        check_location(location)?;
        let folder = match self.model.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let missing = |error| Error::io(format!("external data {location:?}"), &error);
        let file = folder.join(location).canonicalize().map_err(missing)?;
        // Caches link the graph and its data into one folder of blobs, so the folder of the linked graph is allowed, too.
        // The hub's cache also has blobs that several models share.
        let real = self.own()?;
        let real_folder = real.parent().unwrap_or(Path::new("/")).to_path_buf();
        let folder = folder.canonicalize().map_err(missing)?;
        let blobs = cotensor_hub::blob_folders(&folder);
        if ![folder, real_folder].iter().chain(&blobs).any(|allowed| file.starts_with(allowed)) {
            return Err(outside_folder(location));
        }
        let metadata = file.metadata().map_err(missing)?;
        if !metadata.is_file() {
            return Err(Error::invalid(format!("external data {location:?} is not a regular file")));
        }
        let known = (file, metadata.len());
        self.files.insert(location.to_owned(), known.clone());
        Ok(known)
    }

    fn read(&self, file: &Path, offset: u64, target: &mut [u8]) -> Result<()> {
        let read = File::open(file).and_then(|file| file.read_exact_at(target, offset));
        read.map_err(|error| Error::io("reading", &error).in_file(file))
    }
}
