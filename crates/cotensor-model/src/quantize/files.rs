//! The files of a model's folder.

use crate::preprocess::family::variants;
use crate::quantized::REPORT_FILE;
use cotensor_core::{Error, Result};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The most levels of folders that are read, and the most files.
const DEPTH_MAX: usize = 3;
const FILES_MAX: usize = 10_000;
/// The most bytes of a file that is copied. Larger ones hold weights in other formats.
const COPIED_BYTES_MAX: u64 = 64 << 20;
/// The ends of names of files with the weights of the whole model for other programs.
const OTHER_WEIGHTS: [&str; 8] = ["safetensors", "bin", "pt", "pth", "h5", "msgpack", "ot", "ckpt"];

/// The regular files of a folder, relative to it, sorted. Hidden ones do not count.
pub(super) fn files_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![(PathBuf::new(), 0)];
    while let Some((inner, depth)) = folders.pop() {
        let path = folder.join(&inner);
        let io = |error: std::io::Error| Error::io("reading", &error).in_file(&path);
        for entry in fs::read_dir(&path).map_err(io)? {
            let name = entry.map_err(io)?.file_name();
            let inner = inner.join(&name);
            // Caches consist of links to files. A link to a folder may lead anywhere.
            let path = folder.join(&inner);
            let is_link = path.symlink_metadata().is_ok_and(|found| found.is_symlink());
            let Ok(kind) = path.metadata() else { continue };
            if is_link && kind.is_dir() {
                continue;
            }
            if name.as_encoded_bytes().starts_with(b".") || inner.to_str().is_none() {
                continue;
            }
            if kind.is_dir() && depth < DEPTH_MAX {
                folders.push((inner, depth + 1));
            } else if kind.is_file() {
                found.push(inner);
            }
            if found.len() + folders.len() > FILES_MAX {
                return Err(Error::invalid(format!("more than {FILES_MAX} files")).in_file(folder));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Whether a file is a graph, and not in the precision of a variant.
pub(super) fn is_full_precision(file: &Path) -> bool {
    let (Some(stem), Some("onnx")) =
        (file.file_stem().and_then(OsStr::to_str), file.extension().and_then(OsStr::to_str))
    else {
        return false;
    };
    let others = variants().iter().skip(1).flat_map(|variant| &variant.suffixes);
    !others.filter(|suffix| !suffix.is_empty()).any(|suffix| stem.ends_with(suffix.as_str()))
}

/// Whether a file has no weights.
pub(super) fn is_copied(folder: &Path, file: &Path, files: &[PathBuf]) -> bool {
    let end = file.extension().and_then(OsStr::to_str).unwrap_or_default();
    // The modules of sentence-transformers have their weights in folders of their own.
    let is_top = file.parent() == Some(Path::new(""));
    let is_module = !is_top && end == "safetensors";
    let is_weights = end == "onnx" || (OTHER_WEIGHTS.contains(&end) && !is_module);
    let is_data = files.iter().filter(|graph| graph.extension().is_some_and(|end| end == "onnx")).any(|graph| {
        let rest = file.to_str().zip(graph.to_str()).and_then(|(file, graph)| file.strip_prefix(graph));
        rest.is_some_and(|rest| rest.starts_with(['_', '.']))
    });
    let size = folder.join(file).metadata().map_or(u64::MAX, |found| found.len());
    !is_weights && !is_data && size <= COPIED_BYTES_MAX && file != Path::new(REPORT_FILE)
}

/// The error of an action on a file.
pub(super) fn io(action: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Error + use<> {
    let (action, path) = (action.to_owned(), path.to_path_buf());
    move |error| Error::io(&action, &error).in_file(path)
}

/// Flushes all files of a folder to the disk.
///
/// # Errors
/// `Io` for a file. Not every file system flushes folders.
pub(super) fn sync_files(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(io("reading", folder))? {
        let path = entry.map_err(io("reading", folder))?.path();
        if path.is_dir() {
            sync_files(&path)?;
        } else {
            File::open(&path).and_then(|file| file.sync_all()).map_err(io("writing", &path))?;
        }
    }
    sync_names(folder);
    Ok(())
}

/// Flushes the names of files to the disk, if the file system does.
pub(super) fn sync_names(folder: &Path) {
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
}

/// Makes the folder of a file.
///
/// # Errors
/// `Io`.
pub(super) fn make_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(io("writing", parent))
}
