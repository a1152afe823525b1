//! The engines of this build. A new engine is one file beside this one and one line here.

use super::api::Engine;
use super::rten::RtenEngine;
use cotensor_core::{Error, Result};
use std::sync::Arc;

/// Opens an engine with so many threads of its own; `None` lets it choose.
type Open = fn(threads: Option<usize>) -> Arc<dyn Engine>;

/// Every engine by its name, the default first.
const ENGINES: &[(&str, Open)] = &[(RtenEngine::NAME, |threads| Arc::new(RtenEngine::new(threads)))];

/// The names of all engines, the default first.
pub fn names() -> impl Iterator<Item = &'static str> {
    ENGINES.iter().map(|(name, _)| *name)
}

/// The engine of that name with `threads` threads of its own; `None` lets it choose.
///
/// # Errors
/// `Invalid` for a name that no engine has; the message lists those there are.
pub fn open(name: &str, threads: Option<usize>) -> Result<Arc<dyn Engine>> {
    let found = ENGINES.iter().find(|(known, _)| *known == name);
    let (_, open) = found.ok_or_else(|| {
        let known = names().collect::<Vec<_>>().join(", ");
        Error::invalid(format!("{name:?} is no engine: {known}")).in_field("engine")
    })?;
    Ok(open(threads))
}

/// The default engine.
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
