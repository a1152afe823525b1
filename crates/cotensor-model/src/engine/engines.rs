use super::api::{Engine, EngineOptions, MultipliedCodes};
use super::registry::{names, open};
use cotensor_core::{DerivedFiles, Error, ErrorKind, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name that chooses the engine for each graph.
pub const AUTO: &str = "auto";

/// The variable that names the engine when a program does not.
const VARIABLE: &str = "COTENSOR_ENGINE";

/// The best engine of a list, for people and for lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EngineInfo {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The file of its library; none for an engine that is a part of this program.
    pub library: Option<PathBuf>,
    /// Why a better engine cannot be used, if the best one was to be chosen: its name and the reason.
    pub absent: Vec<String>,
}

/// Why an engine expands codes.
pub(crate) const WITHOUT_CACHE: &str = "without a cache for packed codes, it expands codes of few bits for each run";

/// An engine that may get a graph.
#[derive(Clone, Copy)]
pub(crate) struct Candidate<'c> {
    pub(crate) engine: &'c Arc<dyn Engine>,
    /// For each engine before it that does not run the graph: its name and the reason.
    pub(crate) reasons: &'c [String],
    /// Whether no engine follows if this one refuses the graph.
    pub(crate) is_last: bool,
}

/// The engines of a runtime, best first. Each graph runs on the first one that supports it.
#[derive(Clone)]
pub struct Engines {
    engines: Vec<Arc<dyn Engine>>,
    /// For each better engine that cannot be used on this machine: its name and the reason.
    absent: Vec<String>,
    options: EngineOptions,
}

impl Engines {
    /// The engine `name`, or those of [`auto`](Self::auto) for [`AUTO`]. `options` may be a number
    /// of threads alone.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(name: &str, options: impl Into<EngineOptions>) -> Result<Self> {
        let options = options.into();
        if name == AUTO {
            return Ok(Self::auto(options));
        }
        match open(name, options) {
            Ok(engine) => Ok(engine.into()),
            Err(error) if error.kind() == ErrorKind::Invalid => {
                let known = names().collect::<Vec<_>>().join(", ");
                Err(Error::invalid(format!("{name:?} is not an engine; engines: {AUTO}, {known}")).in_field("engine"))
            }
            Err(error) => Err(error),
        }
    }

    /// As [`open`](Self::open) with the name in `COTENSOR_ENGINE`, or [`AUTO`] if the variable is not set.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn of_environment(options: impl Into<EngineOptions>) -> Result<Self> {
        let name = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
        let name = name.as_ref().map_or(AUTO.into(), |name| name.to_string_lossy());
        Self::open(&name, options)
    }

    /// Every engine that can be used on this machine, the fastest first.
    ///
    /// # Panics
    /// Never: one engine is part of every build.
    pub fn auto(options: impl Into<EngineOptions>) -> Self {
        let options = options.into();
        let mut all = Self { engines: Vec::new(), absent: Vec::new(), options: options.clone() };
        for name in names() {
            match open(name, options.clone()) {
                Ok(engine) => all.engines.push(engine),
                Err(error) if all.engines.is_empty() => all.absent.push(format!("{name}: {error}")),
                Err(_) => {}
            }
        }
        assert!(!all.engines.is_empty(), "rten is part of every build");
        all
    }

    /// The engine that a graph gets if it supports the graph.
    pub fn first(&self) -> &Arc<dyn Engine> {
        &self.engines[0]
    }

    /// If a better engine could not be used: the engines that can be used now, such as after
    /// [`add_libraries`](super::add_libraries). `None` for an engine that was chosen by its name, and for the best one.
    pub fn again(&self) -> Option<Self> {
        (!self.absent.is_empty()).then(|| Self::auto(self.options.clone()))
    }

    /// The best engine.
    pub fn describe(&self) -> EngineInfo {
        let best = self.first();
        EngineInfo {
            name: best.name().to_owned(),
            version: best.version().to_owned(),
            library: best.library().map(Path::to_path_buf),
            absent: self.absent.clone(),
        }
    }

    /// For each better engine that cannot be used on this machine: its name and the reason.
    pub fn absent(&self) -> &[String] {
        &self.absent
    }

    /// The folder of derived files that the engines use.
    pub fn derived_files(&self) -> Option<&Arc<dyn DerivedFiles>> {
        self.options.derived.as_ref()
    }

    /// Calls `load` with one engine after the other until one does not answer `Unsupported`. For a graph that has codes, engines
    /// that expand them for each run come last.
    ///
    /// # Errors
    /// The first error of `load` of another kind; if no engine supports the graph, the error of the first.
    pub(crate) fn place<T>(&self, has_codes: bool, mut load: impl FnMut(Candidate<'_>) -> Result<T>) -> Result<T> {
        let mut refusals: Vec<Error> = Vec::new();
        let mut reasons = self.absent.clone();
        let expands = |engine: &&Arc<dyn Engine>| {
            has_codes && engine.capabilities().multiplied_codes == MultipliedCodes::Expanded
        };
        let (last, first): (Vec<_>, Vec<_>) = self.engines.iter().partition(expands);
        if !first.is_empty() {
            reasons.extend(last.iter().map(|engine| format!("{}: {WITHOUT_CACHE}", engine.name())));
        }
        let mut order = first.into_iter().chain(last).peekable();
        while let Some(engine) = order.next() {
            match load(Candidate { engine, reasons: &reasons, is_last: order.peek().is_none() }) {
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    reasons.push(format!("{}: {error}", engine.name()));
                    refusals.push(error);
                }
                loaded => return loaded,
            }
        }
        Err(refusals.swap_remove(0))
    }
}

#[cfg(test)]
impl Engines {
    pub(crate) fn of(engines: Vec<Arc<dyn Engine>>) -> Self {
        Self { engines, absent: Vec::new(), options: EngineOptions::default() }
    }
}

impl From<Arc<dyn Engine>> for Engines {
    fn from(engine: Arc<dyn Engine>) -> Self {
        Self { engines: vec![engine], absent: Vec::new(), options: EngineOptions::default() }
    }
}

impl<E: Engine + 'static> From<Arc<E>> for Engines {
    fn from(engine: Arc<E>) -> Self {
        Self::from(engine as Arc<dyn Engine>)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Capabilities, FileMode, LoadedGraph, RtenEngine};
    use crate::graph::Graph;
    use cotensor_store::Lease;

    fn two() -> Engines {
        let engine = || Arc::new(RtenEngine::new(Some(1))) as Arc<dyn Engine>;
        let absent = vec!["ort: absent".to_owned()];
        Engines { engines: vec![engine(), engine()], absent, options: EngineOptions::default() }
    }

    #[test]
    fn graph_that_an_engine_refuses_goes_to_the_next() {
        let mut calls = 0;
        let reasons = two().place(false, |candidate| {
            calls += 1;
            assert_eq!(candidate.is_last, calls == 2);
            if calls == 1 { Err(Error::unsupported("cubic")) } else { Ok(candidate.reasons.to_vec()) }
        });
        let reasons = reasons.unwrap();
        assert_eq!(reasons[0], "ort: absent");
        assert!(reasons[1].starts_with("rten: ") && reasons[1].contains("cubic"), "{reasons:?}");
    }

    #[test]
    fn engines_that_expand_codes_come_last_for_graphs_with_codes() {
        let order = |engines: &Engines, has_codes| {
            let mut order = Vec::new();
            let placed = engines.place(has_codes, |candidate| -> Result<()> {
                order.push((candidate.engine.name(), candidate.reasons.len(), candidate.is_last));
                Err(Error::unsupported("no"))
            });
            assert!(placed.is_err());
            order
        };
        let expanding = || Arc::new(Expanding) as Arc<dyn Engine>;
        let rten = || Arc::new(RtenEngine::new(Some(1))) as Arc<dyn Engine>;
        let both = Engines::of(vec![expanding(), rten()]);
        assert_eq!(order(&both, false), [("expanding", 0, false), ("rten", 1, true)]);
        assert_eq!(order(&both, true), [("rten", 1, false), ("expanding", 2, true)]);
        assert_eq!(order(&Engines::of(vec![expanding()]), true), [("expanding", 0, true)]);
    }

    /// An engine that expands codes.
    struct Expanding;

    impl Engine for Expanding {
        fn name(&self) -> &'static str {
            "expanding"
        }

        fn version(&self) -> &'static str {
            "1"
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities { multiplied_codes: MultipliedCodes::Expanded, ..RtenEngine::new(Some(1)).capabilities() }
        }

        fn load(&self, _: &Graph, _: Vec<Lease>) -> Result<Arc<dyn LoadedGraph>> {
            Err(Error::unsupported("expanding"))
        }

        fn load_file(&self, _: &Path, _: FileMode) -> Result<Arc<dyn LoadedGraph>> {
            Err(Error::unsupported("expanding"))
        }
    }

    #[test]
    fn other_errors_end_the_search_and_the_first_refusal_is_reported() {
        let mut calls = 0;
        let corrupt = two().place(false, |_| -> Result<()> {
            calls += 1;
            Err(Error::corrupt("bad"))
        });
        assert_eq!((corrupt.err().unwrap().kind(), calls), (ErrorKind::Corrupt, 1));
        let mut names = ["a", "b"].into_iter();
        let refused = two().place(false, |_| -> Result<()> { Err(Error::unsupported(names.next().unwrap())) });
        assert_eq!(refused.err().unwrap().message(), "a");
    }

    #[test]
    fn auto_always_has_an_engine_and_unknown_names_are_listed() {
        assert!(names().any(|name| name == Engines::open(AUTO, Some(1)).unwrap().first().name()));
        let error = Engines::open("torch", None).err().unwrap();
        assert!(error.to_string().contains("auto, "), "{error}");
    }
}
