//! A folder of a model with quantized graphs.

use super::calibrate::Calibration;
use super::graph::quantize_graph;
use super::options::QuantizeOptions;
use super::report::{MatrixReport, QuantizeReport, REPORT_FILE};
use crate::folder::canonical_folder;
use crate::model::checkpoint_of_scale;
use crate::preprocess::checkpoint::FILE as CHECKPOINT;
use crate::preprocess::family::variants;
use cotensor_core::{Error, Result};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The most levels of folders that are read, and the most files.
const DEPTH_MAX: usize = 3;
const FILES_MAX: usize = 10_000;
/// The most weights in an error message.
const REASONS_MAX: usize = 5;
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
    calibration: Option<&Calibration>,
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
    check_parent(&folder, target)?;
    let io = |action: &str, path: &Path| {
        let (action, path) = (action.to_owned(), path.to_path_buf());
        move |error: std::io::Error| Error::io(&action, &error).in_file(path)
    };
    let work = Work(work_folder(target));
    fs::create_dir(&work.0).map_err(io("writing", target))?;
    let mut report = QuantizeReport::default();
    for file in &files {
        let (from, to) = (folder.join(file), work.0.join(file));
        let name = file.display().to_string();
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).map_err(io("writing", parent))?;
        }
        if graphs.contains(&file) {
            let mut found = quantize_graph(&from, &to, options, calibration, &mut |matrix, number, all| {
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
        let reasons = report
            .graphs
            .iter()
            .flat_map(|graph| &graph.kept)
            .filter_map(|kept| Some(format!("{}: {}", kept.name, kept.reason.as_ref()?)));
        let reasons: Vec<String> = reasons.take(REASONS_MAX).collect();
        let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
        let message = format!("no graph has a float32 matrix of a product or a table that can be quantized{reasons}");
        return Err(Error::unsupported(message).in_file(folder));
    }
    check_kept(options, &report)?;
    if let Some(scale) = checkpoint_of_scale(&folder)? {
        let path = work.0.join(CHECKPOINT);
        fs::write(&path, scale).map_err(io("writing", &path))?;
    }
    let text = serde_json::to_string_pretty(&report).map_err(|error| Error::invalid(error.to_string()))?;
    let path = work.0.join(REPORT_FILE);
    fs::write(&path, text + "\n").map_err(io("writing", &path))?;
    fs::rename(&work.0, target).map_err(io("writing", target))?;
    Ok(report)
}

/// The folder beside `target` in which this process writes until all is written.
pub fn work_folder(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.quantizing-{}", std::process::id()))
}

/// A folder that is removed, unless it has another name by then.
struct Work(PathBuf);

impl Drop for Work {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// # Errors
/// `NotFound` for a target whose parent does not exist, `Invalid` for one in the model's folder.
fn check_parent(folder: &Path, target: &Path) -> Result<()> {
    let parent = target.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    let parent = parent.canonicalize().map_err(|error| Error::io("opening", &error).in_file(parent))?;
    match parent.starts_with(folder) {
        true => Err(Error::invalid("lies in the folder of the model").in_file(target)),
        false => Ok(()),
    }
}

/// # Errors
/// `Invalid` for a text that no weight has in its name.
fn check_kept(options: &QuantizeOptions, report: &QuantizeReport) -> Result<()> {
    let kept = || report.graphs.iter().flat_map(|graph| &graph.kept);
    match options.keep.iter().find(|text| !kept().any(|kept| kept.name.contains(text.as_str()))) {
        Some(text) => Err(Error::invalid(format!("no weight has {text:?} in its name")).in_field("keep")),
        None => Ok(()),
    }
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
