//! Copies of models with weights of few bits, which the programs of a machine make once.

use super::folder::{ModelFiles, write_quantized};
use super::options::QuantizeOptions;
use super::watch::Progress;
use crate::pipeline::Samples;
use cotensor_core::{ContentHash, DerivedFiles, Error, ErrorKind, FileStamp, Hasher, Hold, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// How often a copy is made that is removed before it is held.
const ATTEMPTS: usize = 3;
/// Changes with the content of copies.
const DOMAIN: &str = "cotensor quantized copy v3";

/// The folder of a copy of the model in `folder`, as [`quantize_folder`](super::quantize_folder) writes it. It lies in `files` under a key
/// of the model's files, the options and the samples: the first program of a machine that asks for it makes it, others wait.
/// The copy has the name `name`, and stays as long as the result's second part.
///
/// # Errors
/// As [`quantize_folder`](super::quantize_folder) and [`DerivedFiles::make_files`]; `Conflict` for a folder that changes meanwhile.
pub fn quantized_copy(
    files: &dyn DerivedFiles,
    folder: &Path,
    name: &str,
    options: &QuantizeOptions,
    samples: Option<&Samples>,
    progress: &mut Progress<'_>,
) -> Result<(PathBuf, Hold)> {
    // A name on the hub has the name of a user before it.
    let name = name.rsplit('/').next().unwrap_or(name);
    let model = ModelFiles::open(folder)?;
    let stamps = model.stamps()?;
    let key = key(&model, &stamps, name, options, samples)?;
    let mut fill = |made: &Path| {
        let copy = made.join(name);
        fs::create_dir(&copy).map_err(super::files::io("writing", &copy))?;
        write_quantized(&model, &copy, options, samples, progress)?;
        model.check_unchanged(&stamps)
    };
    for _ in 0..ATTEMPTS {
        let made = match files.find_files(&key) {
            Some(made) => made,
            None => files.make_files(&key, &mut fill)?,
        };
        if let Some(hold) = files.hold_files(&key) {
            return Ok((made.join(name), hold));
        }
    }
    Err(Error::new(ErrorKind::Conflict, "another program removes the copy of few bits as soon as it is made")
        .in_file(folder))
}

fn key(
    model: &ModelFiles,
    stamps: &[FileStamp],
    name: &str,
    options: &QuantizeOptions,
    samples: Option<&Samples>,
) -> Result<ContentHash> {
    let mut hasher = Hasher::new(DOMAIN);
    hasher.field(name.as_bytes());
    model.add_to(stamps, &mut hasher);
    options.add_to(&mut hasher);
    hasher.number(u64::from(samples.is_some()));
    if let Some(samples) = samples {
        samples.add_to(&mut hasher)?;
    }
    Ok(hasher.finish())
}
