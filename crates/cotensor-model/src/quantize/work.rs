//! The folder in which a copy of a model is written until all of it is there.

use super::files::io;
use cotensor_core::{Error, ErrorKind, Result};
use std::fs::{self, File, Metadata, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Between the name of a target and the number of the process.
const INFIX: &str = ".quantizing-";

/// The folder beside `target` in which this process writes until all is written.
pub fn work_folder(target: &Path) -> PathBuf {
    target.with_file_name(format!("{}{}", prefix(target), std::process::id()))
}

/// The start of the names of such folders.
fn prefix(target: &Path) -> String {
    format!(".{}{INFIX}", target.file_name().unwrap_or_default().to_string_lossy())
}

/// A folder that is removed, unless it has another name by then.
pub(super) struct Work {
    path: PathBuf,
    /// Locked as long as the process lives.
    _lock: File,
}

impl Work {
    /// Removes those of processes that ended before they could.
    ///
    /// # Errors
    /// `Io`, such as for one that this process writes.
    pub(super) fn create(target: &Path) -> Result<Self> {
        remove_left(target);
        let path = work_folder(target);
        fs::create_dir(&path).map_err(io("writing", target))?;
        match File::open(&path) {
            Ok(folder) => Self::locked(path, folder),
            Err(error) => {
                // Empty, or that of another process since.
                let _ = fs::remove_dir(&path);
                Err(Error::io("opening", &error).in_file(path))
            }
        }
    }

    /// Locks `folder`, which was opened at `path`.
    ///
    /// # Errors
    /// `Conflict` if another process has removed it before, or is about to; `Io`.
    fn locked(path: PathBuf, folder: File) -> Result<Self> {
        let is_free = match folder.try_lock() {
            Err(TryLockError::WouldBlock) => false,
            // A file system without locks. No process removes a folder there that it cannot lock.
            Ok(()) | Err(TryLockError::Error(_)) => is_at(&folder, &path).map_err(io("opening", &path))?,
        };
        if is_free {
            return Ok(Self { path, _lock: folder });
        }
        let message = "another process has removed the new folder, which has its process number in its name; try again";
        Err(Error::new(ErrorKind::Conflict, message).in_file(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders of killed processes. One of a live process of another container, whose number is not known here, is locked.
fn remove_left(target: &Path) {
    let parent = target.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    let prefix = prefix(target);
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.parse::<u32>().ok());
        let is_left = process.is_some_and(|process| process == std::process::id() || has_ended(process));
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let path = entry.path();
        // Locked until it is removed: its process may be about to lock it.
        if is_left
            && is_folder
            && let Some(_lock) = lock_of(&path)
        {
            let _ = fs::remove_dir_all(path);
        }
    }
}

fn has_ended(process: u32) -> bool {
    Path::new("/proc/self").exists() && !Path::new("/proc").join(process.to_string()).exists()
}

/// The lock of a folder that no process has locked.
fn lock_of(path: &Path) -> Option<File> {
    let folder = File::open(path).ok()?;
    folder.try_lock().ok()?;
    is_at(&folder, path).is_ok_and(|is_there| is_there).then_some(folder)
}

/// Whether an open folder is the one at `path`.
fn is_at(folder: &File, path: &Path) -> std::io::Result<bool> {
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(identity(found) == identity(folder.metadata()?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn folders_of_processes_that_ended_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("new");
        let mut ended = Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let mut live = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let make = |name: String| {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("model.onnx"), "half").unwrap();
            path
        };
        let left = make(format!(".new.quantizing-{}", ended.id()));
        // Of a process with the number of this one, in another container or before this one.
        let own = make(format!(".new.quantizing-{}", std::process::id()));
        let stays = [
            make(format!(".new.quantizing-{}", live.id())),
            make(format!(".other.quantizing-{}", ended.id())),
            make(".new.quantizing-".to_owned()),
            make(".new.quantizing-x".to_owned()),
        ];
        let locked = make(".new.quantizing-4294967295".to_owned());
        let lock = File::open(&locked).unwrap();
        lock.try_lock().unwrap();
        let work = Work::create(&target).unwrap();
        assert!(!left.exists() && work.path() == own && fs::read_dir(&own).unwrap().next().is_none());
        assert!(stays.iter().all(|path| path.join("model.onnx").is_file()) && locked.exists());
        // Another thread of this process writes it.
        assert!(Work::create(&target).is_err() && own.exists());
        drop((lock, work));
        assert!(!own.exists());
        drop(Work::create(&target).unwrap());
        assert!(!locked.exists());
        drop(live.stdin.take());
        live.wait().unwrap();
    }

    #[test]
    fn folder_that_was_removed_before_its_lock_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".new.quantizing-1");
        let make = || {
            fs::create_dir(&path).unwrap();
            File::open(&path).unwrap()
        };
        let kind = |opened: File| Work::locked(path.clone(), opened).err().unwrap().kind();
        let removed = make();
        fs::remove_dir(&path).unwrap();
        assert_eq!(kind(removed.try_clone().unwrap()), ErrorKind::Conflict);
        // Another process has made one of the same name.
        let next = make();
        assert_eq!(kind(removed), ErrorKind::Conflict);
        // Another process is about to remove it.
        let lock = lock_of(&path).unwrap();
        assert_eq!(kind(next.try_clone().unwrap()), ErrorKind::Conflict);
        assert!(path.is_dir(), "a folder of another process stays");
        drop(lock);
        drop(Work::locked(path.clone(), next).unwrap());
        assert!(!path.exists());
    }
}
