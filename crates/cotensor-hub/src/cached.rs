//! The models in the cache of this machine.

use crate::cache::{FILES_MAX, MODEL_FOLDER, RepoFile, Repository, VerifiedFiles};
use crate::id::{ModelId, is_commit};
use crate::needed;
use cotensor_core::{Error, Result};
use cotensor_preprocess::family::Family;
use std::path::{Path, PathBuf};

/// The most models of a list.
const MODELS_MAX: usize = 10_000;
/// The deepest folder of a snapshot that is read.
const DEPTH_MAX: usize = 8;

/// A model in the cache: the commit of its main branch, else the newest one.
#[derive(Debug)]
pub struct CachedModel {
    /// The name on the hub.
    pub name: String,
    /// The commit.
    pub commit: String,
    /// The folder with the files of the commit.
    pub folder: PathBuf,
    /// The bytes of these files.
    pub bytes: u64,
    /// Its family, or why this program cannot run it.
    pub family: Result<&'static Family>,
}

/// The models in a cache, by name. No folder has no models.
///
/// # Errors
/// `Io` when the folder cannot be read.
pub(crate) fn cached(cache: &Path) -> Result<Vec<CachedModel>> {
    let entries = match std::fs::read_dir(cache) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| Error::io("listing the hub's cache", &error).in_file(cache))?,
    };
    let names = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_prefix(MODEL_FOLDER).map(|name| name.replacen("--", "/", 1))
    });
    let mut models: Vec<CachedModel> = names.take(MODELS_MAX).filter_map(|name| model(cache, &name)).collect();
    models.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(models)
}

fn model(cache: &Path, name: &str) -> Option<CachedModel> {
    let id = ModelId::parse(name).ok()?;
    let repository = Repository::of(cache, &id, VerifiedFiles::new(None, false));
    let main = repository.commit(&id).ok().flatten().filter(|commit| repository.snapshot(commit).is_dir());
    let commit = main.or_else(|| newest(&repository.snapshots()))?;
    let folder = repository.snapshot(&commit);
    let files = files_in(&folder);
    let bytes = files.iter().map(|file| file.size).sum();
    let family =
        needed::family_in(&folder, &files).and_then(|family| needed::graphs(&id, family, &files, None).map(|_| family));
    Some(CachedModel { name: name.to_owned(), commit, folder, bytes, family })
}

fn newest(snapshots: &Path) -> Option<String> {
    let entries = std::fs::read_dir(snapshots).ok()?.flatten();
    let commits = entries.filter_map(|entry| {
        let commit = entry.file_name().into_string().ok().filter(|name| is_commit(name))?;
        Some((entry.metadata().ok()?.modified().ok()?, commit))
    });
    commits.max().map(|(_, commit)| commit)
}

/// The files of a snapshot that have their bytes. Their hashes are the names of the blobs to which they are linked; a file
/// that is not a link has none.
pub(crate) fn files_in(snapshot: &Path) -> Vec<RepoFile> {
    let mut files = Vec::new();
    walk(snapshot, "", 0, &mut files);
    files
}

/// Adds the files of a folder of a snapshot.
fn walk(folder: &Path, before: &str, depth: usize, files: &mut Vec<RepoFile>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (Ok(name), true) = (entry.file_name().into_string(), files.len() < FILES_MAX) else { continue };
        // Follows the links to the blobs.
        let Ok(found) = std::fs::metadata(entry.path()) else { continue };
        let path = format!("{before}{name}");
        if found.is_dir() && depth < DEPTH_MAX {
            walk(&entry.path(), &format!("{path}/"), depth + 1, files);
        } else if found.is_file() {
            files.push(RepoFile::of_blob(path, found.len(), std::fs::read_link(entry.path()).ok().as_deref()));
        }
    }
}
