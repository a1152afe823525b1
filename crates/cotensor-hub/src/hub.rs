use crate::cache::{RepoFile, Repository, read};
use crate::cached::{self, CachedModel};
use crate::download::{Download, Remote, Transfer, connect, is_of_network, space};
use crate::id::{ModelId, is_commit};
use crate::needed::{self, CONFIG_FILE, CONFIGURATION_BYTES_MAX};
use crate::settings::Settings;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_preprocess::JSON_BYTES_MAX;
use cotensor_preprocess::family::Family;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The models of the hub: those in the cache of this machine, and downloads of others.
pub struct Hub {
    settings: Settings,
    observer: OnceLock<Observer>,
}

/// Called with the bytes on disk, the bytes of all files, and what is done.
type Observer = Box<dyn Fn(u64, u64, &str) + Send + Sync>;

/// A model in the cache, with the files that this program reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The folder with the files.
    pub folder: PathBuf,
    /// The commit of the files.
    pub commit: String,
    /// The number of files that this program reads.
    pub files: usize,
    /// The bytes of these files.
    pub bytes: u64,
    /// The bytes that were received; the rest was in the cache.
    pub bytes_received: u64,
}

impl Hub {
    /// The hub with these settings.
    pub fn new(settings: Settings) -> Self {
        Self { settings, observer: OnceLock::new() }
    }

    /// The hub with the settings of this process's environment.
    pub fn from_env() -> Self {
        Self::new(Settings::from_env())
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Sets the observer of downloads: it is called with the bytes on disk, the bytes of all files, and what is done. A
    /// second call has no effect.
    pub fn observe(&self, observer: impl Fn(u64, u64, &str) + Send + Sync + 'static) {
        // The first observer stays.
        let _ = self.observer.set(Box::new(observer));
    }

    /// The models in the cache, by name. Asks no server.
    ///
    /// # Errors
    /// `Io` when the cache cannot be read.
    pub fn cached(&self) -> Result<Vec<CachedModel>> {
        cached::cached(&self.settings.cache)
    }

    /// The folder of the model `name`: a path, relative to `base`, or the id of a model. An existing folder has
    /// precedence.
    ///
    /// # Errors
    /// As [`find`](Self::find). A path that does not exist is returned as it is: opening it gives the error.
    pub fn folder(&self, name: &Path, base: &Path, variant: Option<&str>) -> Result<PathBuf> {
        let folder = base.join(name);
        if folder.exists() {
            return Ok(folder);
        }
        match name.to_str().map(ModelId::parse) {
            Some(Ok(id)) => {
                let missing = || format!("there is no folder {}; by name", folder.display());
                self.find(&id, variant).map_err(|error| error.prefixed(missing()))
            }
            _ => Ok(folder),
        }
    }

    /// The folder of a model in the cache, with the graphs of `variant` (`fp16`) if one is named. Files that the cache
    /// lacks are downloaded. Without them, and without an answer of the hub, the folder is returned as it is.
    ///
    /// # Errors
    /// As [`pull`](Self::pull).
    pub fn find(&self, id: &ModelId, variant: Option<&str>) -> Result<PathBuf> {
        let repository = Repository::of(&self.settings.cache, id);
        let commit = match repository.commit(id) {
            // Downloading writes a damaged file again.
            Err(error) if error.kind() == ErrorKind::Corrupt && !self.settings.offline => None,
            found => found?,
        };
        let Some(commit) = commit else { return Ok(self.pull(id, variant)?.folder) };
        let snapshot = repository.snapshot(&commit);
        let complete = is_complete(&repository, id, &commit, variant);
        if let Ok(true) = complete {
            return Ok(snapshot);
        }
        match (self.pull(id, variant), complete) {
            (Ok(pulled), _) => Ok(pulled.folder),
            (Err(error), Err(known)) if self.is_unanswered(&error) => Err(known),
            (Err(error), _) if self.is_unanswered(&error) && snapshot.join(CONFIG_FILE).is_file() => Ok(snapshot),
            (Err(error), _) => Err(error),
        }
    }

    /// Downloads the files of a model that this program reads into the cache, as far as it lacks them: the configuration
    /// and the graphs of the model's family, in `variant` if one is named. Asks the hub for the newest commit of a branch.
    ///
    /// # Errors
    /// `NotFound` when the network is not used, for an unknown model, revision or variant, and for a repository without
    /// graphs; `Io` when the hub does not answer or the disk fails, `TimedOut` when it is too slow, `Invalid` without access or for
    /// files that are too large, `Corrupt` for bytes that differ from the list of files, `Unsupported` for another family,
    /// `OverBudget` without room on the disk.
    pub fn pull(&self, id: &ModelId, variant: Option<&str>) -> Result<Pulled> {
        if self.settings.offline {
            let cache = self.settings.cache.display();
            let message = format!("the hub's cache {cache} lacks files of {id}, and HF_HUB_OFFLINE is set");
            return Err(Error::not_found(message));
        }
        self.pull_from(&connect(&self.settings)?, id, variant)
    }

    fn pull_from(&self, remote: &dyn Remote, id: &ModelId, variant: Option<&str>) -> Result<Pulled> {
        let repository = Repository::of(&self.settings.cache, id);
        let commit = match id.commit() {
            Some(commit) => commit.to_owned(),
            None => remote.commit(id)?,
        };
        if !is_commit(&commit) {
            return Err(Error::corrupt(format!("the hub's answer names no commit of {id}")));
        }
        let files = match repository.files(&commit)? {
            Some(files) => files,
            None => remote.files(id, &commit)?,
        };
        let download = Download { remote, repository: &repository, id, commit: &commit, limits: &self.settings.limits };
        let mut pulled = Pulled {
            folder: repository.snapshot(&commit),
            commit: commit.clone(),
            files: 0,
            bytes: 0,
            bytes_received: 0,
        };
        // config.json names the family, and the family's stages name the graphs.
        let (config, mut others): (Vec<&RepoFile>, Vec<_>) =
            needed::configuration(&files).partition(|file| file.path == CONFIG_FILE);
        if config.is_empty() {
            return Err(Error::not_found(format!("{id} has no {CONFIG_FILE}")));
        }
        config.iter().chain(&others).try_for_each(|file| needed::check_size(file, CONFIGURATION_BYTES_MAX))?;
        self.add(&download, &config, &mut pulled, None)?;
        let family = family_in(&pulled.folder, &files)?;
        others.extend(needed::graphs(id, family, &files, variant)?);
        space::check(&repository, &commit, &others)?;
        self.add(&download, &others, &mut pulled, self.observer.get())?;
        repository.set_files(&commit, &files)?;
        repository.set_commit(id, &commit)?;
        Ok(pulled)
    }

    /// Whether a download failed because the hub was not asked or did not answer.
    fn is_unanswered(&self, error: &Error) -> bool {
        self.settings.offline || is_of_network(error)
    }

    fn add(
        &self,
        download: &Download<'_>,
        files: &[&RepoFile],
        pulled: &mut Pulled,
        observer: Option<&Observer>,
    ) -> Result<()> {
        let total = files.iter().map(|file| file.size).sum();
        let (mut before, began) = (0, Cell::new(false));
        for file in files {
            let observed = Observed { observer, id: download.id, file, before, total, began: &began };
            pulled.bytes_received += download.add(file, &observed)?;
            pulled.files += 1;
            pulled.bytes += file.size;
            before += file.size;
        }
        if let Some(observer) = observer.filter(|_| began.get()) {
            observer(total, total, &format!("downloading {}", download.id));
        }
        Ok(())
    }
}

/// Passes the progress of one file of several to the observer.
struct Observed<'a> {
    observer: Option<&'a Observer>,
    id: &'a ModelId,
    file: &'a RepoFile,
    /// The bytes of the files before it.
    before: u64,
    /// The bytes of all files.
    total: u64,
    /// Whether bytes of any of the files arrived.
    began: &'a Cell<bool>,
}

impl Transfer for Observed<'_> {
    fn waits(&self) {
        if let Some(observer) = self.observer {
            let what = format!("waiting for another process that downloads {} of {}", self.file.path, self.id);
            observer(self.before, self.total, &what);
        }
    }

    fn has(&self, bytes: u64) {
        self.began.set(true);
        if let Some(observer) = self.observer {
            observer(self.before + bytes, self.total, &format!("downloading {}", self.id));
        }
    }
}

/// The family that config.json in a folder names, of a repository with `files`.
pub(crate) fn family_in(folder: &Path, files: &[RepoFile]) -> Result<&'static Family> {
    let path = folder.join(CONFIG_FILE);
    let bytes = read(&path, JSON_BYTES_MAX)?;
    let bytes = bytes.ok_or_else(|| Error::not_found("a model needs this file").in_file(&path))?;
    let config = serde_json::from_slice(&bytes).map_err(|error| Error::corrupt(error.to_string()).in_file(&path))?;
    let has_file = |name: &str| files.iter().any(|file| file.path == name);
    needed::family(&config, has_file).map_err(|error| error.in_file(path))
}

/// Whether the snapshot of a commit has every file that this program reads. False when their list is not known.
fn is_complete(repository: &Repository, id: &ModelId, commit: &str, variant: Option<&str>) -> Result<bool> {
    let Some(files) = repository.files(commit)? else { return Ok(false) };
    let has = |file: &RepoFile| repository.has(commit, file);
    if !needed::configuration(&files).all(has) {
        return Ok(false);
    }
    let family = family_in(&repository.snapshot(commit), &files)?;
    Ok(needed::graphs(id, family, &files, variant)?.into_iter().all(has))
}
