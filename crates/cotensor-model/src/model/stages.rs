//! The stages and heads of a model: which file has the graph, and loading it.

use super::open_model::{Model, StageSource};
use super::stage_loader::{Origin, RETRY_AFTER};
use crate::engine::Candidate;
use crate::graph::{Graph, open_graph};
use crate::stage::{RunsOn, Stage};
use cotensor_core::sync::lock;
use cotensor_core::{ContentHash, Error, ErrorKind, Kind, Result, Space};
use cotensor_pipeline::OWN_HEAD;
use cotensor_preprocess::family::{LOGITS, Medium, StageDef};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The most heads in an error message.
const HEADS_SHOWN_MAX: usize = 20;
/// The most graphs in an error message.
const GRAPHS_SHOWN_MAX: usize = 10;

impl Model {
    /// The stage with this role, loaded at its first use. If the graph holds trunk and head, a shared stage is the
    /// trunk only; a private copy is the whole graph.
    ///
    /// # Errors
    /// `Unsupported` for a role that the family does not have, `NotFound` without the graph, or as [`Engine::load`](crate::engine::Engine::load).
    pub fn stage(&self, role: &str) -> Result<Arc<Stage>> {
        let def = self.family.stage(role)?;
        self.loaded(role, || {
            let (path, whole) = self.graph_file(def)?;
            let preprocessing = self.preprocessing_of(def)?;
            if let Some((blocks, place)) = self.inner_cut(def, &path, whole)? {
                let before = self.load(&blocks.role, blocks.kind, &path, &preprocessing, |graph| {
                    self.part(def, graph, whole)?.blocks_before(&blocks.output, place)
                })?;
                // The results depend on both parts.
                let space: Vec<ContentHash> = before.space().iter().map(|space| space.0).collect();
                let after = self.load(role, def.kind, &path, &space, |graph| {
                    self.part(def, graph, whole)?.blocks_after(&blocks.output, place)
                })?;
                return Ok(Arc::new(after.continuing(before, &blocks.output)));
            }
            let stage = self.load(role, def.kind, &path, &preprocessing, |graph| self.part(def, graph, whole))?;
            self.check_width(def, &stage)?;
            Ok(stage)
        })
    }

    /// Loads the stages of all tasks whose graphs the folder has. Heads are loaded at their first use.
    ///
    /// # Errors
    /// As [`stage`](Self::stage).
    pub fn load_stages(&self) -> Result<()> {
        for task in self.family.tasks() {
            for role in self.roles(task).or_else(unless_missing)? {
                if self.graph_file(self.family.stage(role)?).is_ok() {
                    self.stage(role)?;
                }
            }
        }
        Ok(())
    }

    /// The stages and heads that are loaded, by role; none while one of them is being loaded.
    pub fn loaded_stages(&self) -> Vec<Arc<Stage>> {
        let Ok(stages) = self.stages.try_lock() else { return Vec::new() };
        let mut stages: Vec<_> = stages.values().cloned().collect();
        stages.sort_by(|a, b| a.role.cmp(&b.role));
        stages
    }

    /// The space of the stage with this role. The stage is not loaded: its files are read only if the store has no note
    /// of their content.
    ///
    /// # Errors
    /// As [`stage`](Self::stage); `Invalid` for a private copy, which has no space.
    pub fn space(&self, role: &str) -> Result<Space> {
        let StageSource::Shared(loader) = &self.source else {
            return Err(Error::invalid("a private copy of a model has no space"));
        };
        let def = self.family.stage(role)?;
        let loaded = lock(&self.stages).get(role).and_then(|stage| stage.space());
        if let Some(space) = loaded {
            return Ok(space);
        }
        self.check_unchanged()?;
        let (path, whole) = self.graph_file(def)?;
        let space = || {
            let graph = || self.part(def, open_graph(&path)?, whole);
            let preprocessing = self.preprocessing_of(def)?;
            let Some((blocks, place)) = self.inner_cut(def, &path, whole)? else {
                return loader.space(graph()?, &preprocessing);
            };
            let before = loader.space(graph()?.blocks_before(&blocks.output, place)?, &preprocessing)?;
            loader.space(graph()?.blocks_after(&blocks.output, place)?, &[before.0])
        };
        space().map_err(|error| error.in_file(&path))
    }

    /// The error for a missing head. It lists the heads of the model: the graphs in `onnx/` that are not stages of the
    /// family.
    pub(crate) fn no_head(&self) -> Error {
        let stages: Vec<String> =
            self.family.stages.iter().flat_map(|stage| stage.candidates(None)).map(|(file, _)| file).collect();
        let files = std::fs::read_dir(self.folder.join("onnx")).into_iter().flatten().flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        let mut heads: Vec<String> = names
            .filter(|name| !stages.contains(&format!("onnx/{name}")))
            .filter_map(|name| name.strip_suffix(".onnx").map(str::to_owned))
            .take(HEADS_SHOWN_MAX)
            .collect();
        heads.sort_unstable();
        Error::not_found(match heads.as_slice() {
            [] => "no such head: the model has no head graph".to_owned(),
            heads => format!("no such head; the model has {}", heads.join(", ")),
        })
    }

    /// A head: the graph `onnx/NAME.onnx`.
    ///
    /// # Errors
    /// `Invalid` for a name that is not a plain file name, `NotFound` without the graph, or as [`Engine::load`](crate::engine::Engine::load).
    pub fn head(&self, name: &str) -> Result<Arc<Stage>> {
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
        if !plain || name.is_empty() || name.starts_with('.') {
            return Err(Error::invalid(format!("{name:?} is not a plain file name")).in_field("head"));
        }
        self.loaded(name, || {
            let path = self.head_file(name);
            if !path.is_file() {
                return Err(self.no_head().in_file(&path).in_field("head"));
            }
            self.load(name, Kind::Other, &path, &[], Ok)
        })
    }

    /// The model's own head: `onnx/head.onnx`, or the part after the trunk in the graph of stage `role`. `None` when
    /// that stage gives logits itself: its graph has both outputs, or it is a private copy.
    ///
    /// # Errors
    /// `NotFound` when the model has no head, or as [`Engine::load`](crate::engine::Engine::load).
    pub fn own_head(&self, role: &str) -> Result<Option<Arc<Stage>>> {
        let def = self.family.stage(role)?;
        if self.head_file(OWN_HEAD).is_file() {
            return self.head(OWN_HEAD).map(Some);
        }
        if self.stage(role)?.has_output(LOGITS) {
            return Ok(None);
        }
        let (Some(_), Some(_), StageSource::Shared(_)) = (&def.encoder, def.outputs.first(), &self.source) else {
            return self.head(OWN_HEAD).map(Some);
        };
        let (path, _) = self.graph_file(def)?;
        let stage = self.loaded(OWN_HEAD, || {
            self.load(OWN_HEAD, Kind::Other, &path, &[], |graph| {
                self.model_config().head_part(def, graph)?.ok_or_else(|| {
                    let expected = self.head_file(OWN_HEAD);
                    self.no_head().in_file(&expected).in_field("head")
                })
            })
        })?;
        Ok(Some(stage))
    }

    /// Whether the model has `onnx/head.onnx`.
    pub(crate) fn has_head_file(&self) -> bool {
        self.head_file(OWN_HEAD).is_file()
    }

    /// The file of a stage's graph, and whether it holds the whole model.
    pub(super) fn graph_file(&self, def: &StageDef) -> Result<(PathBuf, bool)> {
        let found = def.graph_file(self.variant, |file| self.folder.join(file).is_file());
        found.map(|(file, is_whole)| (self.folder.join(file), is_whole)).ok_or_else(|| {
            let expected = def.files.join(" or ");
            let message =
                format!("the graph of stage {:?} is missing: {expected}; {}", def.role, self.way_to_a_graph());
            Error::not_found(message).in_file(&self.folder)
        })
    }

    /// What the folder has in place of a graph, and what to do.
    fn way_to_a_graph(&self) -> String {
        let names = |folder: &str| {
            let files = std::fs::read_dir(self.folder.join(folder)).into_iter().flatten().flatten();
            files.filter_map(|file| file.file_name().into_string().ok()).collect::<Vec<_>>()
        };
        let (own, inner) = (names(""), names("onnx").into_iter().map(|name| format!("onnx/{name}")));
        let mut graphs: Vec<String> = own.into_iter().chain(inner).filter(|name| name.ends_with(".onnx")).collect();
        graphs.sort_unstable();
        graphs.truncate(GRAPHS_SHOWN_MAX);
        if graphs.is_empty() {
            return format!("the folder has no ONNX graph; {}", self.model_config().way_to_graphs());
        }
        format!("the folder has {}: give the right one an expected name, by a link", graphs.join(", "))
    }

    fn head_file(&self, name: &str) -> PathBuf {
        self.folder.join("onnx").join(format!("{name}.onnx"))
    }

    fn loaded(&self, role: &str, load: impl FnOnce() -> Result<Arc<Stage>>) -> Result<Arc<Stage>> {
        let mut stages = lock(&self.stages);
        let known = stages.get(role).cloned();
        if let Some(stage) = known.as_ref().filter(|stage| !stage.is_due(Instant::now())) {
            return Ok(Arc::clone(stage));
        }
        let loaded = self.check_unchanged().and_then(|()| load());
        // A stage that runs stays if it cannot be loaded again.
        let stage = match (loaded, known) {
            (Ok(stage), _) => stage,
            (Err(_), Some(known)) => {
                known.set_due(Instant::now() + RETRY_AFTER);
                known
            }
            (Err(error), None) => return Err(error),
        };
        stages.insert(role.to_owned(), Arc::clone(&stage));
        Ok(stage)
    }

    /// Loads the part of a graph that `part` returns; a private copy is always the whole graph.
    fn load(
        &self,
        role: &str,
        kind: Kind,
        path: &Path,
        preprocessing: &[ContentHash],
        part: impl FnOnce(Graph) -> Result<Graph>,
    ) -> Result<Arc<Stage>> {
        let load = || match &self.source {
            StageSource::Shared(loader) => {
                let start = Instant::now();
                let graph = part(open_graph(path)?)?;
                // A damaged report is no reason to refuse the model.
                let report = self.quantization().ok().flatten().and_then(|report| report.graph(self.relative(path)));
                let origin = Origin { producer: &format!("model:{}", self.name()), report };
                loader.load_stage(role, kind, graph, preprocessing, &origin, start)
            }
            StageSource::Private(engines, mode) => engines.place(false, |Candidate { engine, reasons, .. }| {
                let start = Instant::now();
                let graph = engine.load_file(path, *mode)?;
                let runs_on = RunsOn::new(&**engine, &*graph, reasons);
                Ok(Arc::new(Stage::new(role, kind, path, graph, None, runs_on, start.elapsed())))
            }),
        };
        load().map_err(|error| error.in_file(path))
    }

    /// Fingerprints of the preprocessing of the inputs of `def`: part of its space.
    fn preprocessing_of(&self, def: &StageDef) -> Result<Vec<ContentHash>> {
        let fingerprint = |medium| match medium {
            Medium::Text => Ok(self.text()?.fingerprint()),
            Medium::Image => Ok(self.image()?.fingerprint()),
            Medium::Audio => Ok(self.audio()?.fingerprint()),
        };
        def.media().into_iter().map(fingerprint).collect()
    }
}

/// No role of a task whose graph the folder lacks.
fn unless_missing<'a>(error: Error) -> Result<Vec<&'a str>> {
    match error.kind() {
        ErrorKind::NotFound => Ok(Vec::new()),
        _ => Err(error),
    }
}
