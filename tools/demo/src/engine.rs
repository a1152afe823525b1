//! The engine of a scenario. All variants run on it, with the same settings.

use cotensor::core::{DerivedFiles, Error, Result};
use cotensor::memory::PackCache;
use cotensor::model::engine::{Engine, EngineOptions, Engines, FileMode, RtenEngine, open};
use std::path::Path;
use std::sync::Arc;

/// The name of onnxruntime, which copies weights into the layout of its kernels by default.
pub(crate) const ONNXRUNTIME: &str = "ort";

/// The name of onnxruntime without these copies.
pub(crate) const ONNXRUNTIME_SHARED: &str = "ort-shared";

/// The engine of a scenario.
pub(crate) struct Chosen {
    pub(crate) name: &'static str,
    /// Name and version.
    pub(crate) description: String,
}

impl Chosen {
    /// The engine of the scenario `scenario`: `needed` if its graphs run on that engine only, else `requested`, of which
    /// `auto` is the fastest engine of this machine.
    ///
    /// # Errors
    /// `NotFound` or `Unsupported` for an engine that cannot be used; the message names the command that installs it.
    pub(crate) fn of(scenario: &str, requested: &str, needed: Option<&str>) -> Result<Self> {
        let engines = Engines::open(needed.unwrap_or(requested), Some(1)).map_err(|error| match needed {
            Some(needed) => Error::new(error.kind(), format!("{scenario} runs on {needed}: {}", error.message())),
            None => error,
        })?;
        let engine = engines.first();
        Ok(Self { name: engine.name(), description: format!("{} {}", engine.name(), engine.version()) })
    }

    /// Whether the engine has a private copy of mapped weights by default.
    pub(crate) fn copies_weights(&self) -> bool {
        copies_weights(self.name)
    }
}

fn copies_weights(engine: &str) -> bool {
    engine == ONNXRUNTIME
}

/// The engine `engine` of a variant without Cotensor. onnxruntime maps external data in both modes; with [`FileMode::Read`], it
/// copies them into the layout of its kernels, as it does by default.
///
/// rten skips the validation of the graph, which the preceding run with Cotensor has done.
///
/// # Errors
/// As [`open`], `Io` for the folder of the cache.
pub(crate) fn plain(engine: &str, threads: Option<usize>, cache: &Path, mode: FileMode) -> Result<Arc<dyn Engine>> {
    if engine == RtenEngine::NAME {
        return Ok(Arc::new(RtenEngine::new(threads).plain()));
    }
    let derived = match mode {
        FileMode::Read => Some(Arc::new(PackCache::open(cache)?) as Arc<dyn DerivedFiles>),
        FileMode::Map => None,
    };
    open(engine, EngineOptions { threads, derived })
}

/// How a program that is written for the engine opens its files.
pub(crate) fn usual_mode(engine: &str) -> FileMode {
    if copies_weights(engine) { FileMode::Read } else { FileMode::Map }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor::model::engine::AUTO;

    #[test]
    fn scenario_with_an_engine_of_its_own_runs_on_that() {
        let rten = Chosen::of("a", AUTO, Some(RtenEngine::NAME)).unwrap();
        assert_eq!((rten.name, rten.description), (RtenEngine::NAME, RtenEngine::describe()));
        match Chosen::of("a", RtenEngine::NAME, Some(ONNXRUNTIME)) {
            Ok(ort) => assert!(ort.copies_weights() && ort.description.starts_with("ort 1.")),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("a runs on ort") && text.contains("pip install"), "{text}");
            }
        }
        assert!(Chosen::of("a", "torch", None).is_err());
    }
}
