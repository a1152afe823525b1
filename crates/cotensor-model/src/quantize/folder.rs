//! A folder of a model with quantized graphs.

use super::files::{files_of, io, is_copied, is_full_precision, make_parent, sync_files, sync_names};
use super::job::{Divided, Job};
use super::options::QuantizeOptions;
use super::watch::Progress;
use super::work::Work;
use crate::folder::{canonical_folder, changed};
use crate::model::checkpoint_of_scale;
use crate::pipeline::Samples;
use crate::preprocess::checkpoint::FILE as CHECKPOINT;
use crate::quantized::{QuantizeReport, REPORT_FILE};
use cotensor_core::{Error, FileStamp, Hasher, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The most weights in an error message.
const REASONS_MAX: usize = 5;

/// Writes a copy of the model in `folder` with quantized graphs to the new folder `target`: the graphs of full precision, all files of
/// configuration, and [`REPORT_FILE`]. Nothing is left behind after an error.
///
/// With samples, the model runs on four of five first: codes are chosen whose errors compensate each other for the inputs of each
/// product. On the fifth, outputs of all graphs are compared with those of full precision.
///
/// # Errors
/// `Invalid` for a target that exists or lies in the folder, for options that are not possible (fewer bits than the smallest forms of the model have among them), for a
/// folder without a graph, and for fewer than 16 different samples; `Unsupported` for a model without a matrix that can be quantized, and for one whose outputs have a larger error with every width; as
/// [`quantize_graph`](super::quantize_graph); the errors of running the model; `Conflict` for a folder that changes meanwhile; `Io`.
pub fn quantize_folder(
    folder: &Path,
    target: &Path,
    options: &QuantizeOptions,
    samples: Option<&Samples>,
    progress: &mut Progress<'_>,
) -> Result<QuantizeReport> {
    let new = NewFolder::create(folder, target)?;
    let report = write_quantized(&new.model, new.work.path(), options, samples, progress)?;
    new.give_name()?;
    Ok(report)
}

/// Writes a copy of a model with quantized graphs to the folder `target`, which exists.
///
/// # Errors
/// As [`quantize_folder`], for the options, the samples and the graphs.
pub(super) fn write_quantized(
    model: &ModelFiles,
    target: &Path,
    options: &QuantizeOptions,
    samples: Option<&Samples>,
    progress: &mut Progress<'_>,
) -> Result<QuantizeReport> {
    options.check()?;
    if (options.mixed_bits.is_some() || options.max_error.is_some()) && samples.is_none() {
        return Err(Error::invalid("mixed widths and errors of outputs need samples").in_field("calibration"));
    }
    let samples = samples.map(Divided::of).transpose()?;
    let mut report = QuantizeReport::default();
    let job = Job { folder: &model.folder, graphs: &model.graphs, options, samples: samples.as_ref() };
    job.run(target, &mut report, progress)?;
    check(&model.folder, options, &report)?;
    model.finish(target, &mut report)?;
    Ok(report)
}

/// The files of a model.
pub(super) struct ModelFiles {
    pub(super) folder: PathBuf,
    /// Its graphs of full precision, relative to it.
    pub(super) graphs: Vec<PathBuf>,
    /// All files.
    files: Vec<PathBuf>,
}

impl ModelFiles {
    /// # Errors
    /// `Invalid` for a folder without a graph; `Io`.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let folder = canonical_folder(folder)?;
        let files = files_of(&folder)?;
        let graphs: Vec<PathBuf> = files.iter().filter(|file| is_full_precision(file)).cloned().collect();
        if graphs.is_empty() {
            return Err(Error::invalid("no ONNX graph of full precision, such as onnx/model.onnx").in_file(folder));
        }
        Ok(Self { folder, graphs, files })
    }

    /// The times and sizes of all files.
    ///
    /// # Errors
    /// `Io` for a file that is gone.
    pub(super) fn stamps(&self) -> Result<Vec<FileStamp>> {
        let stamp = |file: &PathBuf| {
            let path = self.folder.join(file);
            path.metadata().map(|found| FileStamp::of(&found)).map_err(io("reading", &path))
        };
        self.files.iter().map(stamp).collect()
    }

    /// # Errors
    /// `Conflict` for files that changed since they had these times and sizes, `Io`.
    pub(super) fn check_unchanged(&self, stamps: &[FileStamp]) -> Result<()> {
        if self.stamps()? == stamps { Ok(()) } else { Err(changed(&self.folder)) }
    }

    /// Adds the folder, the files and their times to the key of a copy.
    pub(super) fn add_to(&self, stamps: &[FileStamp], hasher: &mut Hasher) {
        hasher.field(self.folder.as_os_str().as_encoded_bytes()).number(self.files.len() as u64);
        for (file, stamp) in self.files.iter().zip(stamps) {
            hasher.field(file.as_os_str().as_encoded_bytes()).field(stamp.to_string().as_bytes());
        }
    }

    /// Copies the other files to the folder `target`, and writes the report.
    ///
    /// # Errors
    /// `Io`.
    fn finish(&self, target: &Path, report: &mut QuantizeReport) -> Result<()> {
        let Self { folder, graphs, files } = self;
        for file in files.iter().filter(|file| !graphs.contains(file)) {
            if !is_copied(folder, file, files) {
                // Of the checkpoint, the scale of similarities is kept, if it has one.
                report.left_out.push(file.display().to_string());
                continue;
            }
            let (from, to) = (folder.join(file), target.join(file));
            make_parent(&to)?;
            fs::copy(&from, &to).map_err(io("copying", &from))?;
        }
        if let Some(scale) = checkpoint_of_scale(folder)? {
            write(&target.join(CHECKPOINT), &scale)?;
        }
        let text = serde_json::to_string_pretty(&report).map_err(|error| Error::invalid(error.to_string()))?;
        write(&target.join(REPORT_FILE), (text + "\n").as_bytes())
    }
}

/// A copy of a model that is being written.
pub(super) struct NewFolder {
    pub(super) model: ModelFiles,
    /// Those of the model's files before one is read.
    stamps: Vec<FileStamp>,
    target: PathBuf,
    work: Work,
}

impl NewFolder {
    /// # Errors
    /// `Invalid` for a target that exists or lies in the folder, and for a folder without a graph; `Io`.
    pub(super) fn create(folder: &Path, target: &Path) -> Result<Self> {
        if target.symlink_metadata().is_ok() {
            return Err(Error::invalid("exists already; name a new folder").in_file(target));
        }
        let model = ModelFiles::open(folder)?;
        check_parent(&model.folder, target)?;
        let stamps = model.stamps()?;
        let work = Work::create(target)?;
        Ok(Self { model, stamps, target: target.to_path_buf(), work })
    }

    /// The new file of a graph.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn target_of(&self, graph: &Path) -> Result<PathBuf> {
        let path = self.work.path().join(graph);
        make_parent(&path)?;
        Ok(path)
    }

    /// Copies the other files, writes the report, and gives the folder its name.
    ///
    /// # Errors
    /// `Conflict` for a folder that changed meanwhile, `Io`.
    pub(super) fn finish(self, report: &mut QuantizeReport) -> Result<()> {
        self.model.finish(self.work.path(), report)?;
        self.give_name()
    }

    fn give_name(self) -> Result<()> {
        // Matrices of two states of a file are those of no model.
        self.model.check_unchanged(&self.stamps)?;
        // A folder with its name is complete, also after a loss of power.
        sync_files(self.work.path())?;
        fs::rename(self.work.path(), &self.target).map_err(io("writing", &self.target))?;
        sync_names(parent_of(&self.target));
        Ok(())
    }
}

fn parent_of(target: &Path) -> &Path {
    target.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).map_err(io("writing", path))
}

/// # Errors
/// `NotFound` for a target whose parent does not exist, `Invalid` for one in the model's folder.
fn check_parent(folder: &Path, target: &Path) -> Result<()> {
    let parent = parent_of(target);
    let parent = parent.canonicalize().map_err(|error| Error::io("opening", &error).in_file(parent))?;
    if parent.starts_with(folder) {
        Err(Error::invalid("lies in the folder of the model").in_file(target))
    } else {
        Ok(())
    }
}

/// # Errors
/// `Unsupported` for a model without a matrix of codes, `Invalid` for a text to keep that no weight has in its name.
fn check(folder: &Path, options: &QuantizeOptions, report: &QuantizeReport) -> Result<()> {
    let kept = || report.graphs.iter().flat_map(|graph| &graph.kept);
    if report.graphs.iter().all(|graph| graph.matrices.is_empty()) {
        let reasons = kept().filter_map(|kept| Some(format!("{}: {}", kept.name, kept.reason.as_ref()?)));
        let reasons: Vec<String> = reasons.take(REASONS_MAX).collect();
        let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
        let message =
            format!("no graph has a float32 or float16 matrix of a product or a table that can be quantized{reasons}");
        return Err(Error::unsupported(message).in_file(folder));
    }
    match options.keep.iter().find(|text| !kept().any(|kept| kept.name.contains(text.as_str()))) {
        Some(text) => Err(Error::invalid(format!("no weight has {text:?} in its name")).in_field("keep")),
        None => Ok(()),
    }
}
