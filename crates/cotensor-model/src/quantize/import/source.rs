//! Files of quantized weights.

use super::checkpoint::Checkpoint;
use super::gguf::GgufFile;
use super::onnx::OnnxFile;
use super::parameter::Parameter;
use cotensor_core::{Error, Result};
use cotensor_quant::RepackedMatrix;
use std::ffi::OsStr;
use std::path::Path;

/// Where the matrices are.
enum Place {
    Gguf(GgufFile),
    Onnx(Box<OnnxFile>),
    Checkpoint(Checkpoint),
}

/// The matrices of codes of a file or a folder.
pub(super) struct Source {
    place: Place,
    pub(super) parameters: Vec<Parameter>,
}

impl Source {
    /// Opens a `.gguf` or `.onnx` file, or a checkpoint of GPTQ or AWQ: a folder or a `.safetensors` file. `is_kept` has names of tensors and parameters
    /// that are passed by.
    ///
    /// # Errors
    /// As [`GgufFile::open`], [`OnnxFile::open`] and [`Checkpoint::open`]; `Unsupported` for a file without a matrix of codes.
    pub(super) fn open(path: &Path, is_kept: &dyn Fn(&str) -> bool) -> Result<Self> {
        let (place, parameters) = match path.extension().and_then(OsStr::to_str) {
            Some("gguf") if !path.is_dir() => {
                let (file, parameters) = GgufFile::open(path, is_kept)?;
                (Place::Gguf(file), parameters)
            }
            Some("onnx") if !path.is_dir() => {
                let (file, parameters) = OnnxFile::open(path, is_kept)?;
                (Place::Onnx(Box::new(file)), parameters)
            }
            _ => {
                let (checkpoint, parameters) = Checkpoint::open(path, is_kept)?;
                (Place::Checkpoint(checkpoint), parameters)
            }
        };
        if parameters.is_empty() {
            return Err(Error::unsupported("no matrix of codes").in_file(path));
        }
        Ok(Self { place, parameters })
    }

    /// # Errors
    /// `Conflict` for files that changed since they were opened, `Io`.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        match &self.place {
            Place::Gguf(file) => file.check_unchanged(),
            Place::Onnx(file) => file.check_unchanged(),
            Place::Checkpoint(checkpoint) => checkpoint.check_unchanged(),
        }
    }

    /// The codes of a parameter.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported`, with the tensor and what is wrong with it, `Io`.
    pub(super) fn matrix(&self, parameter: usize) -> Result<RepackedMatrix> {
        match &self.place {
            Place::Gguf(file) => file.matrix(parameter),
            Place::Onnx(file) => file.matrix(parameter),
            Place::Checkpoint(checkpoint) => checkpoint.matrix(parameter),
        }
    }
}
