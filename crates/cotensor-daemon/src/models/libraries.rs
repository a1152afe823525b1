//! Libraries of the fast engine that clients named.

use cotensor_core::{Error, ErrorKind, Result};
use rustix::process::geteuid;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The most libraries; the one that was named first gives way to a further one.
const LIBRARIES_MAX: usize = 16;
/// The longest path that the system takes.
const PATH_BYTES_MAX: usize = 4095;
/// Other users may write the file.
const OTHERS_WRITE: u32 = 0o002;

/// A file that may be a library of the fast engine.
#[derive(PartialEq, Eq)]
pub(crate) struct Library {
    path: PathBuf,
    /// Inode, bytes and time of the last change: another file has others.
    identity: (u64, u64, i64, i64),
}

/// The libraries, in the order in which they were named. The daemon loads none of them: the model process chooses.
#[derive(Default)]
pub(super) struct Libraries {
    known: Vec<Library>,
    /// The number of libraries that were added so far.
    pub(super) added: u64,
}

impl Libraries {
    /// A library that is known is added again when its file has changed, such as after an installation.
    pub(super) fn add(&mut self, library: Library) {
        if self.known.contains(&library) {
            return;
        }
        self.known.retain(|known| known.path != library.path);
        if self.known.len() == LIBRARIES_MAX {
            self.known.remove(0);
        }
        self.known.push(library);
        self.added += 1;
    }

    pub(super) fn list(&self) -> Vec<PathBuf> {
        self.known.iter().map(|known| known.path.clone()).collect()
    }
}

/// The library that the client in process `pid` named, by the path of the file itself.
///
/// The model process runs the library's code with the rights of the daemon's user. A client of this user could start a program with these
/// rights anyway, so a path adds nothing, with two exceptions, which are refused: a client in a container, whose rights and files are
/// others, and a file that another user can change.
///
/// # Errors
/// `Refused` for these; `Invalid` for a path that is relative or too long; `NotFound` or `Io` for a file that cannot be read.
pub(crate) fn checked(library: &Path, pid: Option<i32>) -> Result<Library> {
    let refused = |reason: &str| Error::new(ErrorKind::Refused, reason).in_field("library");
    if !library.is_absolute() || library.as_os_str().as_bytes().len() > PATH_BYTES_MAX {
        let message = format!("a library is named by an absolute path of at most {PATH_BYTES_MAX} bytes");
        return Err(Error::invalid(message).in_field("library"));
    }
    if !pid.is_some_and(sees_the_same_files) {
        return Err(refused("this client and the daemon may see different files, such as in two containers"));
    }
    let read = |error| Error::io("finding the library", &error).in_file(library);
    let path = std::fs::canonicalize(library).map_err(read)?;
    let found = std::fs::metadata(&path).map_err(read)?;
    if !found.is_file() {
        return Err(Error::invalid("this is not a file").in_field("library").in_file(&path));
    }
    let is_owned = found.uid() == geteuid().as_raw() || found.uid() == 0;
    if !is_owned || found.mode() & OTHERS_WRITE != 0 {
        return Err(refused("another user can change this file").in_file(&path));
    }
    Ok(Library { path, identity: (found.ino(), found.len(), found.mtime(), found.mtime_nsec()) })
}

/// Whether a process has the mounts and the user namespace of this one.
fn sees_the_same_files(pid: i32) -> bool {
    ["mnt", "user"].iter().all(|kind| {
        let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/{kind}")).ok();
        let own = namespace("self");
        own.is_some() && own == namespace(&pid.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn own_pid() -> Option<i32> {
        i32::try_from(std::process::id()).ok()
    }

    #[test]
    fn a_file_of_this_user_is_taken_by_its_own_path() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("libonnxruntime.so.1.32.0"), folder.path().join("libonnxruntime.so"));
        std::fs::write(&file, b"").unwrap();
        symlink(&file, &link).unwrap();
        assert_eq!(checked(&link, own_pid()).unwrap().path, file.canonicalize().unwrap());
        let kind = |library: &Path, pid| checked(library, pid).err().unwrap().kind();
        assert_eq!(kind(&file, None), ErrorKind::Refused, "a client without a process");
        assert_eq!(kind(Path::new("libonnxruntime.so"), own_pid()), ErrorKind::Invalid);
        assert_eq!(kind(&folder.path().join("x".repeat(PATH_BYTES_MAX)), own_pid()), ErrorKind::Invalid);
        assert_eq!(kind(&folder.path().join("none"), own_pid()), ErrorKind::NotFound);
        assert_eq!(kind(folder.path(), own_pid()), ErrorKind::Invalid);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(kind(&file, own_pid()), ErrorKind::Refused);
    }

    #[test]
    fn libraries_are_bounded_and_each_is_known_once() {
        let mut libraries = Libraries::default();
        let library = |number: usize, inode| Library { path: format!("/{number}").into(), identity: (inode, 0, 0, 0) };
        for number in [0, 0, 1].into_iter().chain(2..LIBRARIES_MAX + 3) {
            libraries.add(library(number, 0));
        }
        let known = libraries.list();
        assert_eq!((known.len(), &known[0]), (LIBRARIES_MAX, &PathBuf::from("/3")));
        let added = libraries.added;
        libraries.add(library(3, 0));
        assert_eq!(libraries.added, added);
        libraries.add(library(3, 1));
        assert_eq!((libraries.added, libraries.list().len()), (added + 1, LIBRARIES_MAX), "the file has changed");
    }
}
