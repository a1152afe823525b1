//! A model: a folder in the usual hub layout, opened stage by stage.

use crate::engine::{Engine, FileMode};
use crate::family::{Family, StageDef, family_of};
use crate::graph::Graph;
use crate::preprocess::{AudioProcessor, ImageProcessor, TextProcessor};
use crate::runtime::Runtime;
use crate::stage::Stage;
use cotensor_core::{ContentHash, Error, Kind, Result};
use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// The most bytes a model's JSON files may have.
const JSON_BYTES_MAX: u64 = 16 << 20;

/// The head of a model that is not named.
pub(crate) const OWN_HEAD: &str = "head";

/// Where a model's stages come from.
pub enum StageSource {
    /// Weights and results shared through a runtime's store.
    Shared(Arc<Runtime>),
    /// A copy of its own, loaded as a program without Cotensor would: the yardstick.
    Private(Arc<dyn Engine>, FileMode),
}

/// A model folder: its family, its preprocessing and its stages, each opened when first needed.
pub struct Model {
    folder: PathBuf,
    family: &'static Family,
    config: serde_json::Value,
    source: StageSource,
    stages: Mutex<HashMap<String, Arc<Stage>>>,
    text: OnceLock<TextProcessor>,
    image: OnceLock<ImageProcessor>,
    audio: OnceLock<AudioProcessor>,
}

impl Model {
    /// Opens a folder: reads config.json and finds the family. No graph is loaded yet.
    ///
    /// # Errors
    /// `NotFound` without a config.json, `Corrupt` when it is no JSON object, `Invalid` without a `model_type`,
    /// `Unsupported` for a family that is not known.
    pub fn open(folder: &Path, source: StageSource) -> Result<Self> {
        let path = folder.join("config.json");
        let config = read_json(&path)?;
        let model_type = config.get("model_type").and_then(serde_json::Value::as_str);
        let model_type =
            model_type.ok_or_else(|| Error::invalid("a string is required").in_file(&path).in_field("model_type"))?;
        let family = family_of(model_type).map_err(|error| error.in_file(&path).in_field("model_type"))?;
        Ok(Self {
            folder: folder.to_path_buf(),
            family,
            config,
            source,
            stages: Mutex::default(),
            text: OnceLock::new(),
            image: OnceLock::new(),
            audio: OnceLock::new(),
        })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder's name, for people.
    pub fn name(&self) -> String {
        self.folder
            .file_name()
            .map_or_else(|| self.folder.display().to_string(), |name| name.to_string_lossy().into_owned())
    }

    /// The family.
    pub fn family(&self) -> &'static Family {
        self.family
    }

    /// config.json.
    pub fn config(&self) -> &serde_json::Value {
        &self.config
    }

    /// Where its stages come from.
    pub fn source(&self) -> &StageSource {
        &self.source
    }

    /// The stage with this role, loaded when first asked for. Of a graph that is trunk and head in one, a shared stage
    /// is the trunk alone; a private copy stays whole, as its owner would run it.
    ///
    /// # Errors
    /// `Unsupported` for a role that the family lacks, `NotFound` without the graph, or as [`Engine::load`].
    pub fn stage(&self, role: &str) -> Result<Arc<Stage>> {
        let def = self.family.stage(role)?;
        self.loaded(role, || {
            let path = self.graph_file(def)?;
            let preprocessing = self.preprocessing_of(def)?;
            self.load(role, def.kind, &path, &preprocessing, |graph| match def.cut_output() {
                Some(output) if !has_output(&graph, output) => graph.trunk(output).ok_or_else(|| no_trunk(output)),
                _ => Ok(graph),
            })
        })
    }

    /// A head: `onnx/NAME.onnx` beside the model's own graphs.
    ///
    /// # Errors
    /// `Invalid` for a name that is not a plain file name, `NotFound` without the graph, or as [`Engine::load`].
    pub fn head(&self, name: &str) -> Result<Arc<Stage>> {
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
        if !plain || name.is_empty() || name.starts_with('.') {
            return Err(Error::invalid(format!("{name:?} is not a plain file name")).in_field("head"));
        }
        self.loaded(name, || {
            let path = self.head_file(name);
            if !path.is_file() {
                return Err(Error::not_found("no such head").in_file(&path).in_field("head"));
            }
            self.load(name, Kind::Other, &path, &[], Ok)
        })
    }

    /// The head that a user gets who names none: `onnx/head.onnx`, else what follows the trunk in the graph of stage
    /// `role`. `None` when that stage is a private copy that runs to its end.
    ///
    /// # Errors
    /// `NotFound` when there is neither, or as [`Engine::load`].
    pub fn own_head(&self, role: &str) -> Result<Option<Arc<Stage>>> {
        let def = self.family.stage(role)?;
        let Some(output) = def.cut_output().filter(|_| !self.head_file(OWN_HEAD).is_file()) else {
            return self.head(OWN_HEAD).map(Some);
        };
        if let StageSource::Private(..) = self.source {
            let whole = !self.stage(role)?.graph().outputs().iter().any(|known| known == output);
            return if whole { Ok(None) } else { self.head(OWN_HEAD).map(Some) };
        }
        let path = self.graph_file(def)?;
        let stage = self.loaded(OWN_HEAD, || {
            self.load(OWN_HEAD, Kind::Other, &path, &[], |graph| {
                if has_output(&graph, output) {
                    let expected = self.head_file(OWN_HEAD);
                    return Err(Error::not_found("no such head").in_file(&expected).in_field("head"));
                }
                graph.rest(output).ok_or_else(|| no_trunk(output))
            })
        })?;
        Ok(Some(stage))
    }

    fn graph_file(&self, def: &StageDef) -> Result<PathBuf> {
        let path = def.files.iter().map(|file| self.folder.join(file)).find(|path| path.is_file());
        path.ok_or_else(|| {
            let expected = def.files.join(" or ");
            Error::not_found(format!("the graph of stage {:?} is missing: {expected}", def.role)).in_file(&self.folder)
        })
    }

    fn head_file(&self, name: &str) -> PathBuf {
        self.folder.join("onnx").join(format!("{name}.onnx"))
    }

    fn loaded(&self, role: &str, load: impl FnOnce() -> Result<Arc<Stage>>) -> Result<Arc<Stage>> {
        let mut stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stage) = stages.get(role) {
            return Ok(Arc::clone(stage));
        }
        let stage = load()?;
        stages.insert(role.to_owned(), Arc::clone(&stage));
        Ok(stage)
    }

    /// Loads the part of the graph at `path` that `part` takes; a private copy is always whole.
    fn load(
        &self,
        role: &str,
        kind: Kind,
        path: &Path,
        preprocessing: &[ContentHash],
        part: impl FnOnce(Graph) -> Result<Graph>,
    ) -> Result<Arc<Stage>> {
        let load = || match &self.source {
            StageSource::Shared(runtime) => {
                let start = Instant::now();
                let graph = part(Graph::open(path)?)?;
                runtime.load_stage(role, kind, &graph, preprocessing, &format!("model:{}", self.name()), start)
            }
            StageSource::Private(engine, mode) => {
                let start = Instant::now();
                let graph = engine.load_file(path, *mode)?;
                Ok(Arc::new(Stage::new(role, kind, path, graph, None, start.elapsed())))
            }
        };
        load().map_err(|error| error.in_file(path))
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// As [`TextProcessor::open`].
    pub fn text(&self) -> Result<&TextProcessor> {
        opened(&self.text, || TextProcessor::open(&self.folder))
    }

    /// The image preprocessing.
    ///
    /// # Errors
    /// As [`ImageProcessor::open`].
    pub fn image(&self) -> Result<&ImageProcessor> {
        opened(&self.image, || ImageProcessor::open(&self.folder))
    }

    /// The audio preprocessing.
    ///
    /// # Errors
    /// As [`AudioProcessor::open`].
    pub fn audio(&self) -> Result<&AudioProcessor> {
        opened(&self.audio, || AudioProcessor::open(&self.folder))
    }

    /// Fingerprints of the preprocessing that feeds `def` directly: part of its space.
    fn preprocessing_of(&self, def: &StageDef) -> Result<Vec<ContentHash>> {
        let mut sources: Vec<&str> = def.inputs.values().filter_map(|source| source.split('.').next()).collect();
        sources.sort_unstable();
        sources.dedup();
        let mut fingerprints = Vec::new();
        for source in sources {
            match source {
                "text" => fingerprints.push(self.text()?.fingerprint()),
                "image" => fingerprints.push(self.image()?.fingerprint()),
                "audio" => fingerprints.push(self.audio()?.fingerprint()),
                _ => {}
            }
        }
        Ok(fingerprints)
    }

    /// The names of a head's labels: labels.json, else config.json's `id2label`, else `label N`.
    ///
    /// # Errors
    /// `Corrupt` for a labels.json that is no JSON.
    pub fn labels(&self, head: &str, count: usize) -> Result<Vec<String>> {
        let path = self.folder.join("labels.json");
        let of_head = if path.is_file() { read_json(&path)?.get(head).cloned() } else { None };
        let named = |index: usize| -> Option<String> {
            match &of_head {
                Some(labels) => labels.get(index)?.as_str().map(str::to_owned),
                None => self.config.get("id2label")?.get(index.to_string())?.as_str().map(str::to_owned),
            }
        };
        Ok((0..count).map(|index| named(index).unwrap_or_else(|| format!("label {index}"))).collect())
    }

    /// Another JSON file of the folder, if it is there.
    ///
    /// # Errors
    /// `Corrupt` when it is no JSON.
    pub fn json(&self, file: &str) -> Result<Option<serde_json::Value>> {
        let path = self.folder.join(file);
        if path.is_file() { read_json(&path).map(Some) } else { Ok(None) }
    }
}

fn has_output(graph: &Graph, name: &str) -> bool {
    graph.outputs().iter().any(|output| output.name == name)
}

fn no_trunk(output: &str) -> Error {
    let message = format!("the graph neither gives {output} nor has a last normalization at which it could be cut");
    Error::unsupported(message).in_field(output)
}

fn opened<T>(cell: &OnceLock<T>, open: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(value) = cell.get() {
        return Ok(value);
    }
    let value = open()?;
    Ok(cell.get_or_init(|| value))
}

/// The folder's canonical path.
pub(crate) fn canonical_folder(folder: &Path) -> Result<PathBuf> {
    let path =
        folder.canonicalize().map_err(|error| Error::io("cannot open the model folder", &error).in_file(folder))?;
    if !path.is_dir() {
        return Err(Error::invalid("a model is a folder with a config.json").in_file(folder));
    }
    Ok(path)
}

/// Reads a JSON file of bounded size.
pub(crate) fn read_json(path: &Path) -> Result<serde_json::Value> {
    let bytes = read_bounded(path, JSON_BYTES_MAX)?;
    serde_json::from_slice(&bytes).map_err(|error| Error::corrupt(error.to_string()).in_file(path))
}

/// Reads a regular file of at most `bytes_max` bytes.
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let io = |error: std::io::Error| Error::io("cannot read", &error).in_file(path);
    // Asked before opening: opening a pipe would wait for its writer.
    let found = std::fs::metadata(path).map_err(io)?;
    if !found.is_file() {
        return Err(Error::invalid("not a regular file").in_file(path));
    }
    let too_long = || Error::invalid(format!("more than {bytes_max} bytes")).in_file(path);
    if found.len() > bytes_max {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path).map_err(io)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > bytes_max {
        return Err(too_long());
    }
    Ok(bytes)
}
