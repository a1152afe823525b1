//! The scenarios and their model folders.

use crate::assets::{self, Skeleton};
use crate::engine::ONNXRUNTIME_SHARED;
use crate::seeded::write_weights;
use crate::temp_folder::remove_stale;
use cotensor::core::{ContentHash, Error, Hasher, Result};
use cotensor::model::pipeline::{Inputs, Medium, Pipeline};
use serde::Serialize;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Prefix of the folders of incomplete models.
const INCOMPLETE_PREFIX: &str = ".incomplete-";

/// The name of the scenario of several processes.
pub(crate) const PROCESSES: &str = "processes";

/// A scenario: users of one or several models, and their input.
pub struct Scenario {
    /// Name on the command line.
    pub name: &'static str,
    /// Names of the models: skeletons, or folders below `--models`.
    pub models: &'static [&'static str],
    /// Whether a demo without names runs it. The others need gigabytes of disk and minutes.
    pub by_default: bool,
    /// What the first library with this API claims, for a scenario of its examples.
    pub claim: Option<Claim>,
    /// The engine on which its graphs run, if not on all.
    pub(crate) engine: Option<&'static str>,
    /// Whether its models are so large that the first run and plain onnxruntime, which need further copies, are left out.
    pub(crate) is_large: bool,
    /// Whether several processes run its model, instead of several users in one process.
    pub(crate) in_processes: bool,
    pipeline: &'static str,
    input: Medium,
    /// The text, for input of this type.
    text: &'static str,
    /// The text beside an image.
    prompt: Option<&'static str>,
}

/// What most scenarios have.
const PLAIN: Scenario = Scenario {
    name: "",
    models: &[],
    by_default: false,
    claim: None,
    engine: None,
    is_large: false,
    in_processes: false,
    pipeline: "",
    input: Medium::Text,
    text: assets::TEXT,
    prompt: None,
};

/// Savings over the same models without sharing, in percent.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Claim {
    /// Of the memory.
    pub memory_percent: Option<f64>,
    /// Of the time.
    pub time_percent: Option<f64>,
}

/// All scenarios, in the order of the report.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "clip",
        by_default: true,
        models: &["clip-vit-b16"],
        pipeline: include_str!("../pipelines/clip.toml"),
        input: Medium::Image,
        ..PLAIN
    },
    Scenario {
        name: "bert",
        by_default: true,
        models: &["bert-base"],
        pipeline: include_str!("../pipelines/bert.toml"),
        input: Medium::Text,
        ..PLAIN
    },
    Scenario {
        name: "whisper",
        by_default: true,
        models: &["whisper-base"],
        pipeline: include_str!("../pipelines/whisper.toml"),
        input: Medium::Audio,
        ..PLAIN
    },
    Scenario {
        name: "vit-clip",
        by_default: true,
        models: &["vit-base", "clip-vit-b16"],
        claim: Some(Claim { memory_percent: Some(26.0), time_percent: Some(33.0) }),
        pipeline: include_str!("../pipelines/vit-clip.toml"),
        input: Medium::Image,
        ..PLAIN
    },
    Scenario {
        name: "bert-t5",
        models: &["bert-base", "t5-base"],
        claim: Some(Claim { memory_percent: Some(30.0), time_percent: Some(33.0) }),
        pipeline: include_str!("../pipelines/bert-t5.toml"),
        input: Medium::Text,
        text: assets::LONG_TEXT,
        ..PLAIN
    },
    Scenario {
        name: "whisper-clap",
        models: &["whisper-base", "clap-htsat"],
        claim: Some(Claim { memory_percent: Some(25.0), time_percent: Some(23.0) }),
        // CLAP's graph resizes cubically, and both sides map their weights.
        engine: Some(ONNXRUNTIME_SHARED),
        pipeline: include_str!("../pipelines/whisper-clap.toml"),
        input: Medium::Audio,
        ..PLAIN
    },
    Scenario {
        name: "bert-t5-bart",
        models: &["bert-base", "t5-base", "bart-base"],
        claim: Some(Claim { memory_percent: None, time_percent: Some(27.0) }),
        pipeline: include_str!("../pipelines/bert-t5-bart.toml"),
        input: Medium::Text,
        text: assets::LONG_TEXT,
        ..PLAIN
    },
    Scenario {
        name: "three-texts",
        models: &["bert-base", "roberta-base", "mpnet-base"],
        claim: Some(Claim { memory_percent: Some(33.0), time_percent: None }),
        pipeline: include_str!("../pipelines/three-texts.toml"),
        ..PLAIN
    },
    Scenario {
        name: "vit-clip-detr",
        models: &["vit-base", "clip-vit-b16", "detr-resnet-50"],
        claim: Some(Claim { memory_percent: Some(33.0), time_percent: Some(26.0) }),
        pipeline: include_str!("../pipelines/vit-clip-detr.toml"),
        input: Medium::Image,
        ..PLAIN
    },
    Scenario {
        name: "llava",
        models: &["clip-vit-l14-336", "llava-0.5b"],
        is_large: true,
        pipeline: include_str!("../pipelines/llava.toml"),
        input: Medium::Image,
        prompt: Some("USER: <image>\nWhat is this? ASSISTANT:"),
        ..PLAIN
    },
    Scenario {
        name: PROCESSES,
        by_default: true,
        models: &["bert-base"],
        in_processes: true,
        pipeline: include_str!("../pipelines/processes.toml"),
        ..PLAIN
    },
];

impl Scenario {
    /// Finds a scenario by name.
    ///
    /// # Errors
    /// `Invalid` with the known names.
    pub fn named(name: &str) -> Result<&'static Scenario> {
        SCENARIOS.iter().find(|scenario| scenario.name == name).ok_or_else(|| {
            let known: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
            Error::invalid(format!("unknown scenario {name:?}; known: {}", known.join(", "))).in_field("--scenario")
        })
    }

    /// The pipeline of the scenario.
    ///
    /// # Errors
    /// None for the built-in scenarios.
    pub fn pipeline(&self) -> Result<Pipeline> {
        Pipeline::parse(self.pipeline)
    }

    /// Whether a user reads the encoder of another model.
    pub(crate) fn has_adapters(&self) -> Result<bool> {
        Ok(self.pipeline()?.users.iter().any(|user| user.encoder.is_some()))
    }

    /// The type of the input.
    pub(crate) fn medium(&self) -> Medium {
        self.input
    }

    /// The embedded input. An image or a sound is written to a file below `folder`.
    ///
    /// # Errors
    /// `Io` when the file cannot be written.
    pub fn inputs(&self, folder: &Path) -> Result<Inputs> {
        match self.input {
            Medium::Text => Ok(Inputs::default().with_text(self.text.trim())),
            Medium::Image => {
                let inputs = Inputs::default().with_image(&asset_file(folder, "photo.png", assets::PHOTO)?)?;
                Ok(self.prompt.iter().fold(inputs, |inputs, prompt| inputs.with_text(*prompt)))
            }
            Medium::Audio => Inputs::default().with_audio(&asset_file(folder, "speech.wav", assets::SPEECH)?),
        }
    }
}

fn asset_file(folder: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf> {
    let path = folder.join(name);
    let current = std::fs::read(&path).is_ok_and(|old| old == bytes);
    if !current {
        write_atomically(&path, bytes)?;
    }
    Ok(path)
}

/// Writes a file atomically.
fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let io = |error: std::io::Error| Error::io("cannot write", &error).in_file(path);
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(io)?;
    std::io::Write::write_all(&mut file, bytes).map_err(io)?;
    file.persist(path).map_err(|error| io(error.error))?;
    Ok(())
}

/// Returns the folder of the seeded model `name` below `root`, and generates it if missing. `done` gets the bytes
/// written so far and in total, after every tensor and from several threads; it stops the generation by returning
/// false.
///
/// # Errors
/// `NotFound` for a model without a skeleton, `Io` when it cannot be written. An incomplete folder is removed.
pub fn materialize(name: &str, root: &Path, done: &(dyn Fn(u64, u64) -> bool + Sync)) -> Result<PathBuf> {
    let skeleton = assets::skeleton(name).ok_or_else(|| Error::not_found(format!("no skeleton for {name:?}")))?;
    let folder = root.join(format!("{name}-{}", version(skeleton).short())).join(name);
    if folder.join("config.json").is_file() {
        return Ok(folder);
    }
    let parent = folder.parent().unwrap_or(root);
    let io = |error: std::io::Error| Error::io("cannot generate the seeded model", &error).in_file(parent);
    std::fs::create_dir_all(root).map_err(io)?;
    remove_stale(root, INCOMPLETE_PREFIX)?;
    let incomplete = tempfile::Builder::new().prefix(INCOMPLETE_PREFIX).tempdir_in(root).map_err(io)?;
    let target = incomplete.path().join(name);
    std::fs::create_dir_all(target.join("onnx")).map_err(io)?;
    for (file, bytes) in skeleton.files {
        let bytes = unpacked(file, bytes)?;
        match *file {
            "seed.json.gz" => write_weights(&bytes, &target.join("onnx"), done)?,
            file => {
                let path = target.join(file.trim_end_matches(".gz"));
                std::fs::create_dir_all(path.parent().unwrap_or(&target)).map_err(io)?;
                std::fs::write(path, bytes).map_err(io)?;
            }
        }
    }
    match std::fs::rename(incomplete.path(), parent) {
        Ok(()) => drop(incomplete.keep()),
        // Another process has generated the same folder.
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
    fn stopped_generation_leaves_no_files() {
        let root = tempfile::tempdir().unwrap();
        let error = materialize("bert-base", root.path(), &|_, _| false).unwrap_err();
        assert!(error.to_string().contains("stopped"), "{error}");
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
