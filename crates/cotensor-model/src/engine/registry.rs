//! The engines of this build. A new engine is a folder beside this file and a line in `ENGINES`.

use super::api::Engine;
use super::rten::RtenEngine;
use cotensor_core::{Error, Result};
use std::sync::Arc;

/// Opens an engine with `threads` threads of its own; `None` lets the engine choose.
type Open = fn(threads: Option<usize>) -> Arc<dyn Engine>;

/// The engines by name; the first is the default.
const ENGINES: &[(&str, Open)] = &[(RtenEngine::NAME, |threads| Arc::new(RtenEngine::new(threads)))];

/// The names of all engines; the first is the default.
pub fn names() -> impl Iterator<Item = &'static str> {
    ENGINES.iter().map(|(name, _)| *name)
}

/// Opens the engine of this name with `threads` threads of its own; `None` lets the engine choose.
///
/// # Errors
/// `Invalid` for an unknown name; the message lists the engines.
pub fn open(name: &str, threads: Option<usize>) -> Result<Arc<dyn Engine>> {
    let found = ENGINES.iter().find(|(known, _)| *known == name);
    let (_, open) = found.ok_or_else(|| {
        let known = names().collect::<Vec<_>>().join(", ");
        Error::invalid(format!("{name:?} is not an engine; engines: {known}")).in_field("engine")
    })?;
    Ok(open(threads))
}

/// Opens the default engine.
pub fn open_default(threads: Option<usize>) -> Arc<dyn Engine> {
    let (_, open) = ENGINES[0];
    open(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_opens_by_its_own_name() {
        for name in names() {
            assert_eq!(open(name, Some(1)).unwrap().name(), name);
        }
        assert_eq!(open_default(Some(1)).name(), names().next().unwrap());
        let error = open("torch", None).map(drop).unwrap_err();
        assert!(error.to_string().contains("rten"), "{error}");
    }
}
