use crate::cache::{FileState, RepoFile, Repository, VerifiedFiles, blob_folders, name_of_snapshot};
use crate::cached::{self, CachedModel};
use crate::download::{Download, Remote, connect, is_of_network, space};
use crate::id::{ModelId, is_commit};
use crate::needed::{self, CONFIG_FILE, CONFIGURATION_BYTES_MAX};
use crate::progress::{Observer, Progress};
use crate::settings::Settings;
use cotensor_core::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The models of the hub: those in the cache of this machine, and downloads of others.
pub struct Hub {
    settings: Settings,
    observer: OnceLock<Observer>,
}

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
    /// The paths of the files that were damaged in the cache, and were replaced.
    pub repaired: Vec<String>,
}

/// A file of a model's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFile {
    /// The path in the folder, with `/` between its parts.
    pub path: String,
    /// The size in bytes.
    pub bytes: u64,
    /// Whether the path is a link to a file that is neither in the folder nor a blob of the hub's cache.
    pub is_outside: bool,
}

/// The files of a model's folder that this program reads, with the graphs of `variant` (`fp16`) if one is named.
///
/// # Errors
/// `NotFound` for a folder without config.json or without graphs of the model's family, and as [`Hub::pull`].
pub fn files_of(folder: &Path, variant: Option<&str>) -> Result<Vec<ModelFile>> {
    let files = cached::files_in(folder);
    let of_folder = || folder.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name_of_snapshot(folder).or_else(of_folder).unwrap_or_default();
    // For messages only: a folder can have a name that no model of the hub has.
    let id = ModelId::parse(&name).or_else(|_| ModelId::parse("model"))?;
    let read = read_by(&id, folder, &files, variant)?;
    let folder = folder.canonicalize().map_err(|error| Error::io("resolving", &error).in_file(folder))?;
    let allowed: Vec<PathBuf> = blob_folders(&folder).into_iter().chain([folder.clone()]).collect();
    let found = read.into_iter().map(|file| {
        // A file that is gone meanwhile is found to be missing when it is read.
        let real = folder.join(&file.path).canonicalize();
        let is_outside = real.is_ok_and(|real| !allowed.iter().any(|allowed| real.starts_with(allowed)));
        ModelFile { path: file.path.clone(), bytes: file.size, is_outside }
    });
    Ok(found.collect())
}

/// The error for a model that is neither a folder nor the id of a model.
pub fn no_folder(folder: &Path) -> Error {
    if folder.exists() {
        Error::invalid("not a folder").in_file(folder)
    } else {
        Error::not_found("no such folder").in_file(folder)
    }
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

    /// Sets the observer of downloads and verifications: it is called with the bytes that are done, the bytes of all
    /// files, and what is done. A second call has no effect.
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
    /// As [`find`](Self::find); `NotFound` for a path without a folder that can be no id.
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
            _ => Err(no_folder(&folder)),
        }
    }

    /// The folder of a model in the cache, with the graphs of `variant` (`fp16`) if one is named. Files that the cache
    /// lacks, and files with other bytes than the hub states, are downloaded. Each file is hashed once after each boot, and
    /// again after it changed. Without an answer of the hub, the folder is returned as it is if no file is damaged.
    ///
    /// # Errors
    /// As [`pull`](Self::pull); `Corrupt` for a damaged file that cannot be downloaded.
    pub fn find(&self, id: &ModelId, variant: Option<&str>) -> Result<PathBuf> {
        let repository = self.repository(id);
        let commit = match repository.commit(id) {
            // Downloading writes a damaged file again.
            Err(error) if error.kind() == ErrorKind::Corrupt && !self.settings.offline => None,
            found => found?,
        };
        let Some(commit) = commit else { return Ok(self.download(id, variant)?.folder) };
        let snapshot = repository.snapshot(&commit);
        let complete = self.is_complete(&repository, id, &commit, variant);
        if let Ok(true) = complete {
            return Ok(snapshot);
        }
        match (self.download(id, variant), complete) {
            (Ok(pulled), _) => Ok(pulled.folder),
            (Err(error), Err(known)) if self.is_unanswered(&error) => Err(known),
            (Err(error), _) if self.is_unanswered(&error) && snapshot.join(CONFIG_FILE).is_file() => Ok(snapshot),
            (Err(error), _) => Err(error),
        }
    }

    /// Downloads the files of a model that this program reads into the cache, as far as it lacks them or has damaged ones:
    /// the configuration and the graphs of the model's family, in `variant` if one is named. Asks the hub for the newest
    /// commit of a branch; if the network must not be used, it only verifies a complete model in the cache.
    ///
    /// # Errors
    /// `NotFound` when the network is not used, for an unknown model, revision or variant, and for a repository without
    /// graphs; `Io` when the hub does not answer or the disk fails, `TimedOut` when it is too slow, `Invalid` without access or for
    /// files that are too large, `Corrupt` for bytes that differ from the list of files, `Unsupported` for another family,
    /// `OverBudget` without room on the disk.
    pub fn pull(&self, id: &ModelId, variant: Option<&str>) -> Result<Pulled> {
        if self.settings.offline {
            let repository = self.repository(id);
            if let Some(commit) = repository.commit(id)?
                && self.is_complete(&repository, id, &commit, variant)?
            {
                let files = repository.files(&commit)?.unwrap_or_default();
                let folder = repository.snapshot(&commit);
                let read = read_by(id, &folder, &files, variant)?;
                let bytes = read.iter().map(|file| file.size).sum();
                return Ok(Pulled {
                    folder,
                    commit,
                    files: read.len(),
                    bytes,
                    bytes_received: 0,
                    repaired: Vec::new(),
                });
            }
        }
        self.download(id, variant)
    }

    /// As [`pull`](Self::pull), with the network only.
    fn download(&self, id: &ModelId, variant: Option<&str>) -> Result<Pulled> {
        if self.settings.offline {
            let cache = self.settings.cache.display();
            let message = format!("the hub's cache {cache} lacks files of {id}, and HF_HUB_OFFLINE is set");
            return Err(Error::not_found(message));
        }
        self.pull_from(&connect(&self.settings)?, id, variant)
    }

    fn pull_from(&self, remote: &dyn Remote, id: &ModelId, variant: Option<&str>) -> Result<Pulled> {
        let repository = self.repository(id);
        let commit = match id.commit() {
            Some(commit) => commit.to_owned(),
            None => remote.commit(id)?,
        };
        if !is_commit(&commit) {
            return Err(Error::corrupt(format!("the hub's answer names no commit of {id}")));
        }
        let download = Download { remote, repository: &repository, id, commit: &commit, limits: &self.settings.limits };
        if let Some(files) = repository.files(&commit)? {
            match self.add_files(&download, &files, variant) {
                // The list itself can be what is damaged.
                Err(error) if error.kind() == ErrorKind::Corrupt => {}
                added => return added,
            }
        }
        self.add_files(&download, &remote.files(id, &commit)?, variant)
    }

    /// Adds the files of the list that this program reads to the cache.
    fn add_files(&self, download: &Download<'_>, files: &[RepoFile], variant: Option<&str>) -> Result<Pulled> {
        let Download { repository, id, commit, .. } = *download;
        let mut pulled = Pulled {
            folder: repository.snapshot(commit),
            commit: commit.to_owned(),
            files: 0,
            bytes: 0,
            bytes_received: 0,
            repaired: Vec::new(),
        };
        // config.json names the family, and the family's stages name the graphs.
        let (config, mut others): (Vec<&RepoFile>, Vec<_>) =
            needed::configuration(files).partition(|file| file.path == CONFIG_FILE);
        if config.is_empty() {
            return Err(Error::not_found(format!("{id} has no {CONFIG_FILE}")));
        }
        config.iter().chain(&others).try_for_each(|file| needed::check_size(file, CONFIGURATION_BYTES_MAX))?;
        // Without an observer: these files are small, and others follow.
        self.add(download, &config, &mut pulled, Progress::new(None, id, &config))?;
        let family = needed::family_in(&pulled.folder, files)?;
        others.extend(needed::graphs(id, family, files, variant)?);
        space::check(repository, &others)?;
        self.add(download, &others, &mut pulled, self.progress(id, &others))?;
        repository.set_files(commit, files)?;
        repository.set_commit(id, commit)?;
        Ok(pulled)
    }

    /// Whether a download failed because the hub was not asked or did not answer.
    fn is_unanswered(&self, error: &Error) -> bool {
        self.settings.offline || is_of_network(error)
    }

    fn progress<'a>(&'a self, id: &'a ModelId, files: &[&RepoFile]) -> Progress<'a> {
        Progress::new(self.observer.get(), id, files)
    }

    fn add(
        &self,
        download: &Download<'_>,
        files: &[&RepoFile],
        pulled: &mut Pulled,
        mut progress: Progress<'_>,
    ) -> Result<()> {
        for file in files {
            progress.begin(file);
            let (received, was_damaged) = download.add(file, &progress)?;
            pulled.bytes_received += received;
            pulled.files += 1;
            pulled.bytes += file.size;
            if was_damaged {
                pulled.repaired.push(file.path.clone());
            }
        }
        Ok(())
    }

    fn repository(&self, id: &ModelId) -> Repository {
        let Settings { cache, records, verify, .. } = &self.settings;
        Repository::of(cache, id, VerifiedFiles::new(records.clone(), !verify))
    }

    /// Whether the snapshot of a commit has every file that this program reads, with the right bytes. False when their
    /// list is not known.
    ///
    /// # Errors
    /// `Corrupt`, with the file, for other bytes than the list or the name of the blob state.
    fn is_complete(&self, repository: &Repository, id: &ModelId, commit: &str, variant: Option<&str>) -> Result<bool> {
        let folder = repository.snapshot(commit);
        let (files, is_listed) = match repository.files(commit)? {
            Some(files) => (files, true),
            // Other programs leave no list. The names of the blobs are hashes too.
            None => (cached::files_in(&folder), false),
        };
        let is_whole = |files: &[&RepoFile]| -> Result<bool> {
            let mut progress = self.progress(id, files);
            let mut all = true;
            for file in files {
                progress.begin(file);
                match repository.state(commit, file, &|bytes| progress.verifies(bytes)) {
                    FileState::Whole => {}
                    FileState::Missing => all = false,
                    FileState::Damaged => {
                        let message = format!("the bytes are not those of the hub; `cotensor pull {id}` replaces them");
                        return Err(Error::corrupt(message).in_file(folder.join(&file.path)));
                    }
                }
            }
            Ok(all)
        };
        let configuration: Vec<_> = needed::configuration(&files).collect();
        let has_configuration = is_whole(&configuration)?;
        let graphs = needed::family_in(&folder, &files).and_then(|family| needed::graphs(id, family, &files, variant));
        if is_listed {
            Ok(has_configuration && is_whole(&graphs?)?)
        } else {
            // A model that this program cannot run is refused when it is opened.
            is_whole(&graphs.unwrap_or_default()).map(|_| false)
        }
    }
}

/// The files of a complete model that this program reads.
fn read_by<'f>(id: &ModelId, folder: &Path, files: &'f [RepoFile], variant: Option<&str>) -> Result<Vec<&'f RepoFile>> {
    let graphs = needed::graphs(id, needed::family_in(folder, files)?, files, variant)?;
    Ok(needed::configuration(files).chain(graphs).collect())
}
