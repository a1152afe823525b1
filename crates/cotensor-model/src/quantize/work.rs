//! The folder in which a copy of a model is written until all of it is there.

use super::files::io;
use cotensor_core::{Error, Result};
use std::fs::{self, File};
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
            Ok(folder) => {
                // A file system without locks has the numbers of processes only.
                let _ = folder.try_lock();
                Ok(Self { path, _lock: folder })
            }
            Err(error) => {
                let _ = fs::remove_dir_all(&path);
                Err(Error::io("opening", &error).in_file(path))
            }
        }
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
        if is_left && is_folder && is_free(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn has_ended(process: u32) -> bool {
    Path::new("/proc/self").exists() && !Path::new("/proc").join(process.to_string()).exists()
}

/// Whether no process has locked a folder.
fn is_free(folder: &Path) -> bool {
    File::open(folder).is_ok_and(|folder| folder.try_lock().is_ok())
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
}
