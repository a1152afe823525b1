//! The engines of this build. A new engine is a folder beside this file and a line in `ENGINES`.

use super::api::{Engine, EngineOptions};
#[cfg(feature = "onnxruntime")]
use super::ort::OrtEngine;
use super::rten::RtenEngine;
use cotensor_core::{Error, Result};
use std::sync::Arc;

type Open = fn(options: &EngineOptions) -> Result<Arc<dyn Engine>>;

/// The engines by name, in the order in which `auto` tries them. An engine that widens floats comes after those that
/// do not.
const ENGINES: &[(&str, Open)] = &[
    #[cfg(feature = "onnxruntime")]
    (OrtEngine::NAME, |options| Ok(Arc::new(OrtEngine::new(options)?))),
    (RtenEngine::NAME, |options| Ok(Arc::new(RtenEngine::new(options.threads)))),
    #[cfg(feature = "onnxruntime")]
    (OrtEngine::SHARED, |options| Ok(Arc::new(OrtEngine::shared(options.threads)?))),
];

/// The names of all engines, in the order in which [`Engines::auto`](super::Engines::auto) tries them.
pub fn names() -> impl Iterator<Item = &'static str> {
    ENGINES.iter().map(|(name, _)| *name)
}

/// Opens the engine of this name. `options` may be a number of threads alone.
///
/// # Errors
/// `Invalid` for an unknown name; the message lists the engines. `NotFound` or `Unsupported` when the engine's library
/// cannot be used on this machine; the message names the command that installs it.
pub fn open(name: &str, options: impl Into<EngineOptions>) -> Result<Arc<dyn Engine>> {
    let found = ENGINES.iter().find(|(known, _)| *known == name);
    let (_, open) = found.ok_or_else(|| {
        let known = names().collect::<Vec<_>>().join(", ");
        Error::invalid(format!("{name:?} is not an engine; engines: {known}")).in_field("engine")
    })?;
    open(&options.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_opens_by_its_own_name() {
        for name in names() {
            match open(name, Some(1)) {
                Ok(engine) => assert_eq!(engine.name(), name),
                Err(error) => assert!(error.to_string().contains("pip install"), "{error}"),
            }
        }
        let error = open("torch", None).map(drop).unwrap_err();
        assert!(error.to_string().contains("rten"), "{error}");
    }
}
