//! Files of quantized weights.

use super::checkpoint::Checkpoint;
use super::gguf::GgufFile;
use crate::graph::Matrix;
use cotensor_core::{Error, Result};
use cotensor_quant::RepackedMatrix;
use std::ffi::OsStr;
use std::path::Path;

/// A matrix of codes in a file.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    /// The name of the parameter, without `.weight`.
    pub(super) stem: String,
    /// The tensor of the file.
    pub(super) source: String,
    /// How the file stores it, such as `Q4_K` or `gptq`.
    pub(super) format: String,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Parameter {
    pub(super) fn name(&self) -> String {
        name_of(&self.stem)
    }

    pub(super) fn has_shape_of(&self, matrix: &Matrix) -> bool {
        [self.rows, self.columns] == [matrix.rows, matrix.columns]
    }
}

/// The name of a parameter.
pub(super) fn name_of(stem: &str) -> String {
    format!("{stem}.weight")
}

/// Where the matrices are.
enum Place {
    Gguf(GgufFile),
    Checkpoint(Checkpoint),
}

/// The matrices of codes of a file or a folder.
pub(super) struct Source {
    place: Place,
    pub(super) parameters: Vec<Parameter>,
}

impl Source {
    /// Opens a `.gguf` file, or a checkpoint of GPTQ or AWQ: a folder or a `.safetensors` file. `is_kept` has names of tensors and parameters
    /// that are passed by.
    ///
    /// # Errors
    /// As [`GgufFile::open`] and [`Checkpoint::open`]; `Unsupported` for a file without a matrix of codes.
    pub(super) fn open(path: &Path, is_kept: &dyn Fn(&str) -> bool) -> Result<Self> {
        let (place, parameters) = match path.extension().and_then(OsStr::to_str) {
            Some("gguf") if !path.is_dir() => {
                let (file, parameters) = GgufFile::open(path, is_kept)?;
                (Place::Gguf(file), parameters)
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

    /// The codes of a parameter.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported`, with the tensor and what is wrong with it, `Io`.
    pub(super) fn matrix(&self, parameter: usize) -> Result<RepackedMatrix> {
        match &self.place {
            Place::Gguf(file) => file.matrix(parameter),
            Place::Checkpoint(checkpoint) => checkpoint.matrix(parameter),
        }
    }
}

/// An error of a part of a tensor, with the tensor as the field.
pub(super) fn of_tensor(tensor: &str, error: &Error) -> Error {
    let message = match error.field() {
        Some(part) => format!("{part}: {}", error.message()),
        None => error.message().to_owned(),
    };
    Error::new(error.kind(), message).in_field(tensor)
}
