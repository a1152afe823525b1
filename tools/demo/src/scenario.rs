//! The scenarios, and the model folders they run on.

use crate::assets::{self, Skeleton};
use crate::seeded::write_weights;
use crate::ways::remove_stale;
use cotensor::core::{ContentHash, Error, Hasher, Result};
use cotensor::model::pipeline::{Inputs, Pipeline};
use std::io::Read;
use std::path::{Path, PathBuf};

/// How the folders of models that are being made begin.
const MAKING_PREFIX: &str = ".making-";

/// One scenario: users, their model and their input.
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// The model's name: a skeleton, or a folder below the user's own `--models`.
    pub model: &'static str,
    pipeline: &'static str,
    input: Medium,
}

#[derive(Clone, Copy)]
enum Medium {
    Text,
    Image,
    Audio,
}

/// Every scenario, in the order of the report.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "clip",
        model: "clip-vit-b16",
        pipeline: include_str!("../pipelines/clip.toml"),
        input: Medium::Image,
    },
    Scenario {
        name: "bert",
        model: "bert-base",
        pipeline: include_str!("../pipelines/bert.toml"),
        input: Medium::Text,
    },
    Scenario {
        name: "whisper",
        model: "whisper-base",
        pipeline: include_str!("../pipelines/whisper.toml"),
        input: Medium::Audio,
    },
];

impl Scenario {
    /// The scenario of that name.
    ///
    /// # Errors
    /// `NotFound` naming those that exist.
    pub fn named(name: &str) -> Result<&'static Scenario> {
        SCENARIOS.iter().find(|scenario| scenario.name == name).ok_or_else(|| {
            let known: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
            Error::invalid(format!("unknown scenario {name:?}; known: {}", known.join(", "))).in_field("--scenario")
        })
    }

    /// The pipeline.
    ///
    /// # Errors
    /// None for the scenarios that ship; a parse error would be a defect.
    pub fn pipeline(&self) -> Result<Pipeline> {
        Pipeline::parse(self.pipeline)
    }

    /// The shipped input, written below `folder` where a file is needed.
    ///
    /// # Errors
    /// `Io` when it cannot be written.
    pub fn inputs(&self, folder: &Path) -> Result<Inputs> {
        match self.input {
            Medium::Text => Ok(Inputs::default().with_text(assets::TEXT.trim())),
            Medium::Image => Inputs::default().with_image(&shipped(folder, "photo.png", assets::PHOTO)?),
            Medium::Audio => Inputs::default().with_audio(&shipped(folder, "speech.wav", assets::SPEECH)?),
        }
    }
}

fn shipped(folder: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf> {
    let path = folder.join(name);
    let current = std::fs::read(&path).is_ok_and(|old| old == bytes);
    if !current {
        write_whole(&path, bytes)?;
    }
    Ok(path)
}

/// Writes a file so that nobody ever sees half of it.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let io = |error: std::io::Error| Error::io("cannot write", &error).in_file(path);
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(io)?;
    std::io::Write::write_all(&mut file, bytes).map_err(io)?;
    file.persist(path).map_err(|error| io(error.error))?;
    Ok(())
}

/// The folder of the seeded model `name` below `root`, made at first use. `done` is told bytes so far and in
/// total, after every tensor and from several threads; it stops the making by returning false.
///
/// # Errors
/// `NotFound` for a model without a skeleton, `Io` when it cannot be written (nothing half-made is left).
pub fn materialize(name: &str, root: &Path, done: &(dyn Fn(u64, u64) -> bool + Sync)) -> Result<PathBuf> {
    let skeleton = assets::skeleton(name).ok_or_else(|| Error::not_found(format!("no skeleton for {name:?}")))?;
    let folder = root.join(format!("{name}-{}", version(skeleton).short())).join(name);
    if folder.join("config.json").is_file() {
        return Ok(folder);
    }
    let parent = folder.parent().unwrap_or(root);
    let io = |error: std::io::Error| Error::io("cannot make the seeded model", &error).in_file(parent);
    std::fs::create_dir_all(root).map_err(io)?;
    remove_stale(root, MAKING_PREFIX)?;
    let making = tempfile::Builder::new().prefix(MAKING_PREFIX).tempdir_in(root).map_err(io)?;
    let target = making.path().join(name);
    std::fs::create_dir_all(target.join("onnx")).map_err(io)?;
    for (file, bytes) in skeleton.files {
        let bytes = unpacked(file, bytes)?;
        match *file {
            "seed.json.gz" => write_weights(&bytes, &target.join("onnx"), done)?,
            file => std::fs::write(target.join(file.trim_end_matches(".gz")), bytes).map_err(io)?,
        }
    }
    match std::fs::rename(making.path(), parent) {
        Ok(()) => drop(making.keep()),
        // Another process was faster: its folder is as good.
        Err(_) if folder.join("config.json").is_file() => {}
        Err(error) => return Err(io(error)),
    }
    Ok(folder)
}

fn unpacked(file: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    if !file.ends_with(".gz") {
        return Ok(bytes.to_vec());
    }
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(bytes)
        .read_to_end(&mut plain)
        .map_err(|error| Error::corrupt(format!("damaged skeleton: {error}")).in_field(file))?;
    Ok(plain)
}

fn version(skeleton: &Skeleton) -> ContentHash {
    let mut hasher = Hasher::new("cotensor skeleton v1");
    for (file, bytes) in skeleton.files {
        hasher.field(file.as_bytes()).field(bytes);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_making_that_is_stopped_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let error = materialize("bert-base", root.path(), &|_, _| false).unwrap_err();
        assert!(error.to_string().contains("stopped"), "{error}");
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
