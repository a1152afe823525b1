//! File formats, by name and by file extension.

use cotensor_core::{Error, Result};
use std::path::Path;
use std::str::FromStr;

/// A file format for tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// NumPy's `.npy`: one tensor with its dtype and shape.
    Npy,
    /// `.safetensors`: any number of named tensors.
    Safetensors,
    /// The elements only: row-major, little-endian.
    Raw,
}

impl Format {
    /// The format by the file name's extension.
    ///
    /// # Errors
    /// `Invalid` for an unknown extension.
    pub fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("npy") => Ok(Self::Npy),
            Some("safetensors") => Ok(Self::Safetensors),
            Some("bin" | "raw") => Ok(Self::Raw),
            _ => Err(Error::invalid("the name ends in none of .npy, .safetensors, .raw and .bin: name the format")
                .in_file(path)),
        }
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "npy" => Ok(Self::Npy),
            "safetensors" => Ok(Self::Safetensors),
            "raw" => Ok(Self::Raw),
            _ => Err(Error::invalid(format!("{name:?} is not a format; known are npy, safetensors, raw"))),
        }
    }
}
