//! A folder of a model with quantized graphs.

use super::graph::quantize_graph;
use super::options::QuantizeOptions;
use super::report::{MatrixReport, QuantizeReport, REPORT_FILE};
use crate::folder::canonical_folder;
use crate::preprocess::family::variants;
use cotensor_core::{Error, Result};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The most levels of folders that are read, and the most files.
const DEPTH_MAX: usize = 3;
const FILES_MAX: usize = 10_000;
/// The most bytes of a file that is copied. Larger ones hold weights in other formats.
const COPIED_BYTES_MAX: u64 = 64 << 20;
/// The ends of names of files with the weights of the whole model for other programs.
const OTHER_WEIGHTS: [&str; 8] = ["safetensors", "bin", "pt", "pth", "h5", "msgpack", "ot", "ckpt"];

/// Writes a copy of the model in `folder` with quantized graphs to the new folder `target`: the graphs of full precision, all files of
/// configuration, and [`REPORT_FILE`]. Nothing is left behind after an error. `progress` has the file of the graph, and what
/// [`quantize_graph`] reports.
///
/// # Errors
/// `Invalid` for a target that exists, for options that are not possible, and for a folder without a graph; `Unsupported` for one without a
/// matrix that can be quantized; as [`quantize_graph`]; `Io`.
pub fn quantize_folder(
    folder: &Path,
    target: &Path,
    options: &QuantizeOptions,
    progress: &mut dyn FnMut(&str, &MatrixReport, usize, usize),
) -> Result<QuantizeReport> {
    options.check()?;
    if target.symlink_metadata().is_ok() {
        return Err(Error::invalid("exists already; name a new folder").in_file(target));
    }
    let folder = canonical_folder(folder)?;
    let files = files_of(&folder)?;
    let graphs: Vec<&PathBuf> = files.iter().filter(|file| is_full_precision(file)).collect();
    if graphs.is_empty() {
        return Err(Error::invalid("no ONNX graph of full precision, such as onnx/model.onnx").in_file(folder));
    }
    let io = |action: &str, path: &Path| {
        let (action, path) = (action.to_owned(), path.to_path_buf());
        move |error: std::io::Error| Error::io(&action, &error).in_file(path)
    };
    let parent = target.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    // Removed when it is dropped.
    let work =
        tempfile::Builder::new().prefix(".cotensor-quantize-").tempdir_in(parent).map_err(io("writing", parent))?;
    let mut report = QuantizeReport::default();
    for file in &files {
        let (from, to) = (folder.join(file), work.path().join(file));
        let name = file.display().to_string();
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).map_err(io("writing", parent))?;
        }
        if graphs.contains(&file) {
            let mut found = quantize_graph(&from, &to, options, &mut |matrix, number, all| {
                progress(&name, matrix, number, all);
            })?;
            found.file = name;
            report.graphs.push(found);
        } else if is_copied(&folder, file, &files) {
            fs::copy(&from, &to).map_err(io("copying", &from))?;
        } else {
            report.left_out.push(name);
        }
    }
    if report.graphs.iter().all(|graph| graph.matrices.is_empty()) {
        let message = "no graph has a float32 matrix of a product or a table that can be quantized";
        return Err(Error::unsupported(message).in_file(folder));
    }
    let text = serde_json::to_string_pretty(&report).map_err(|error| Error::invalid(error.to_string()))?;
    let path = work.path().join(REPORT_FILE);
    fs::write(&path, text + "\n").map_err(io("writing", &path))?;
    make_readable(work.path()).and_then(|()| fs::rename(work.path(), target)).map_err(io("writing", target))?;
    // The folder has another name now.
    let _ = work.keep();
    Ok(report)
}

/// The regular files of a folder, relative to it, sorted. Hidden ones do not count.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![(PathBuf::new(), 0)];
    while let Some((inner, depth)) = folders.pop() {
        let path = folder.join(&inner);
        let io = |error: std::io::Error| Error::io("reading", &error).in_file(&path);
        for entry in fs::read_dir(&path).map_err(io)? {
            let name = entry.map_err(io)?.file_name();
            let inner = inner.join(&name);
            // Of the target of a link: caches consist of links.
            let Ok(kind) = folder.join(&inner).metadata() else { continue };
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
fn is_full_precision(file: &Path) -> bool {
    let (Some(stem), Some("onnx")) =
        (file.file_stem().and_then(OsStr::to_str), file.extension().and_then(OsStr::to_str))
    else {
        return false;
    };
    let others = variants().iter().skip(1).flat_map(|variant| &variant.suffixes);
    !others.filter(|suffix| !suffix.is_empty()).any(|suffix| stem.ends_with(suffix.as_str()))
}

/// Whether a file is none of weights.
fn is_copied(folder: &Path, file: &Path, files: &[PathBuf]) -> bool {
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

/// A temporary folder is closed to all others.
fn make_readable(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
}
