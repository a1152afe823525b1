//! The library of onnxruntime: found in the Python environments of the user, loaded once per process.

use super::elf::is_complete;
use super::{arena, native};
use crate::engine::guard::guarded;
use cotensor_core::sync::lock;
use cotensor_core::{Error, Result};
use cotensor_memory::process::returns_free_memory_by;
use ort::environment::Environment;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

/// The variable with the path of the library. It has precedence over every search.
const VARIABLE: &str = "ORT_DYLIB_PATH";

/// The command that installs the library.
const INSTALL: &str = "pip install --upgrade onnxruntime";

/// The oldest release 1.N that has the needed functions.
const MINOR_MIN: u32 = 24;

/// The most entries of a folder that the search reads.
const ENTRIES_MAX: usize = 10_000;

/// The loaded library. A process loads one.
pub(super) struct Library {
    pub(super) environment: Environment,
    /// Its version, such as `1.32.0`.
    pub(super) version: String,
    pub(super) path: PathBuf,
}

static LIBRARY: OnceLock<Library> = OnceLock::new();
static LOADING: Mutex<()> = Mutex::new(());

/// The prefix of the Python interpreter that runs in this process.
static INTERPRETER: OnceLock<PathBuf> = OnceLock::new();

/// Libraries of other installations, as their clients named them.
static ADDED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Adds libraries of other installations to those of the search, of which the newest that can be loaded is used. The variable
/// `ORT_DYLIB_PATH` has precedence. Has no effect once a library is loaded.
pub fn add_libraries(libraries: &[PathBuf]) {
    let mut added = lock(&ADDED);
    for library in libraries {
        if !added.contains(library) {
            added.push(library.clone());
        }
    }
}

/// The library that this process would load, if its installation has one: that of the variable, or the one of the search. It is not loaded,
/// and may not be usable. The first call searches.
pub fn installed_library() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = || named().or_else(|| find(&prefixes()));
    FOUND.get_or_init(|| std::fs::canonicalize(found()?).ok()).as_deref()
}

/// The library that the variable names.
fn named() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The libraries to try, in order.
fn candidates() -> Vec<PathBuf> {
    let added = lock(&ADDED).clone();
    let own = if named().is_some() { None } else { find(&prefixes()) };
    let mut searched: Vec<PathBuf> = own.into_iter().chain(added).collect();
    let version = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).map(version_key);
    // Stable: of equal versions, that of this installation is the first.
    searched.sort_by_key(|path| std::cmp::Reverse(version(path)));
    let mut all: Vec<PathBuf> = named().into_iter().chain(searched).collect();
    let mut seen = Vec::new();
    all.retain(|path| {
        !seen.contains(path) && {
            seen.push(path.clone());
            true
        }
    });
    all
}

/// Makes the search begin in the Python environment `prefix` (`sys.prefix`). The first call counts.
pub fn search_python(prefix: PathBuf) {
    // A process has one interpreter.
    let _ = INTERPRETER.set(prefix);
}

/// The library, if this process has loaded it.
pub(super) fn loaded() -> Option<&'static Library> {
    LIBRARY.get()
}

/// The library, loaded at the first call.
///
/// # Errors
/// `NotFound` without a library, `Unsupported` for one that is too old or is not onnxruntime. The message names the
/// command that installs it.
pub(super) fn library() -> Result<&'static Library> {
    if let Some(library) = loaded() {
        return Ok(library);
    }
    let _loading = lock(&LOADING);
    if let Some(library) = loaded() {
        return Ok(library);
    }
    let mut refused: Option<Error> = None;
    for path in candidates() {
        match guarded("loading its library", || load(&path)).map_err(|error| error.in_file(&path)) {
            Ok(library) => return Ok(LIBRARY.get_or_init(|| library)),
            // The first one is the best; the others are named, too.
            Err(error) => {
                refused = Some(match refused {
                    Some(first) => Error::new(first.kind(), format!("{first}; {error}")),
                    None => error,
                });
            }
        }
    }
    Err(refused.unwrap_or_else(|| {
        Error::not_found(format!("no library of onnxruntime in a Python environment; install it by `{INSTALL}`"))
    }))
}

fn load(path: &Path) -> Result<Library> {
    if !path.is_file() {
        return Err(Error::not_found(format!(
            "this file does not exist; unset {VARIABLE} if it names the file, and `{INSTALL}`"
        )));
    }
    let refused = |reason: String| Error::unsupported(format!("{reason}; `{INSTALL}`"));
    if !is_complete(path) {
        return Err(refused("cannot be loaded: the file is cut off".to_owned()));
    }
    let opened = native::open(path).map_err(|reason| refused(format!("cannot be loaded: {reason}")))?;
    let version = opened.version.as_ref().ok_or_else(|| refused("this library is not onnxruntime".to_owned()))?;
    let mut parts = version.split('.').map(str::parse::<u32>);
    if !matches!((parts.next(), parts.next()), (Some(Ok(1)), Some(Ok(minor))) if minor >= MINOR_MIN) {
        return Err(refused(format!("onnxruntime {version} found, 1.{MINOR_MIN} or a later 1.x is needed")));
    }
    if !opened.is_usable {
        return Err(refused(format!("onnxruntime {version} cannot be used: it lacks functions")));
    }
    native::disable_telemetry();
    let failed = |error: &dyn std::fmt::Display| refused(format!("onnxruntime {version} cannot be used: {error}"));
    let environment = ort::init_from(path).map_err(|error| failed(&error))?;
    let environment =
        environment.with_name("cotensor").with_telemetry(false).build().map_err(|error| failed(&error))?;
    arena::share(&environment);
    returns_free_memory_by(return_free_memory);
    Ok(Library { environment, version: version.clone(), path: path.to_path_buf() })
}

/// Returns the free memory of the arena to the allocator. Does nothing before onnxruntime is loaded.
fn return_free_memory() {
    if let Some(library) = loaded() {
        // Without it, the memory stays for the next runs.
        let _ = arena::return_free_memory(&library.environment);
    }
}

/// The Python environments to search, in order: of this process, of the active environment, of the `python3` on PATH.
fn prefixes() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut prefixes: Vec<PathBuf> = INTERPRETER.get().cloned().into_iter().collect();
    prefixes.extend(["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable));
    let path = variable("PATH").unwrap_or_default();
    let python = std::env::split_paths(&path).find(|folder| folder.is_absolute() && folder.join("python3").is_file());
    if let Some(prefix) = python.as_deref().and_then(Path::parent) {
        prefixes.push(prefix.to_path_buf());
        // A system's Python has packages of the distribution, of the administrator and of the user.
        if prefix == Path::new("/usr") {
            prefixes.push(PathBuf::from("/usr/local"));
            prefixes.extend(variable("HOME").map(|home| home.join(".local")));
        }
    }
    prefixes.retain(|prefix| prefix.is_absolute());
    prefixes
}

/// The newest library among the packages of the first environment that has one.
fn find(prefixes: &[PathBuf]) -> Option<PathBuf> {
    let entries = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().take(ENTRIES_MAX).flatten();
        entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
    };
    prefixes.iter().find_map(|prefix| {
        let pythons = entries(prefix.join("lib")).filter(|(name, _)| name.starts_with("python3"));
        let packages = pythons.flat_map(|(_, path)| [path.join("site-packages"), path.join("dist-packages")]);
        let libraries = packages.flat_map(|packages| entries(packages.join("onnxruntime/capi"))).filter(|(name, _)| {
            let mut dotted = name.split('.');
            // libonnxruntime.so.1.32.0 or libonnxruntime.1.32.0.dylib; libonnxruntime_providers_shared.so is a part.
            dotted.next() == Some("libonnxruntime") && dotted.any(|part| part == "so" || part == "dylib")
        });
        libraries.max_by_key(|(name, _)| version_key(name)).map(|(_, path)| path)
    })
}

/// The numbers in a file name, for the order of versions.
fn version_key(name: &str) -> Vec<u32> {
    name.split('.').filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_library_of_the_first_environment_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let environment = |name: &str, python: &str, files: &[&str]| {
            let prefix = folder.path().join(name);
            let capi = prefix.join("lib").join(python).join("onnxruntime/capi");
            std::fs::create_dir_all(&capi).unwrap();
            files.iter().for_each(|file| std::fs::write(capi.join(file), b"").unwrap());
            prefix
        };
        let without = environment("a", "python3.11/site-packages", &["libonnxruntime_providers_shared.so", "x.so"]);
        let with = environment(
            "b",
            "python3.9/site-packages",
            &["libonnxruntime.so.1.9.0", "libonnxruntime.so.1.32.0", "libonnxruntime.so.1.4.1"],
        );
        let system = environment("c", "python3/dist-packages", &["libonnxruntime.1.24.0.dylib"]);
        let missing = folder.path().join("none");
        let found = find(&[missing.clone(), without.clone(), with.clone(), system.clone()]).unwrap();
        assert_eq!(found.file_name().unwrap(), "libonnxruntime.so.1.32.0");
        assert!(find(&[system, with]).unwrap().ends_with("libonnxruntime.1.24.0.dylib"));
        assert_eq!(find(&[missing, without]), None);
    }

    #[test]
    fn other_files_are_refused_with_the_command_that_mends_it() {
        let folder = tempfile::tempdir().unwrap();
        let error = load(&folder.path().join("none.so")).err().unwrap();
        assert!(error.to_string().contains(INSTALL), "{error}");
        let text = folder.path().join("libonnxruntime.so.1.32.0");
        std::fs::write(&text, b"not a library").unwrap();
        let error = load(&text).err().unwrap();
        assert_eq!(error.kind(), cotensor_core::ErrorKind::Unsupported, "{error}");
    }
}
