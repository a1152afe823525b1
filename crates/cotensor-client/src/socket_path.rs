//! The default path of the daemon's socket, and its folder.

use crate::private_folder::{Others, private_folder};
use crate::settings::{SOCKET, configured};
use cotensor_core::Result;
use std::path::{Path, PathBuf};

/// The socket in `COTENSOR_SOCKET`, else in the configuration file, else as [`default_socket`].
///
/// # Errors
/// As [`ConfigFile::load`](crate::settings::ConfigFile::load).
pub fn configured_socket() -> Result<PathBuf> {
    Ok(configured(&SOCKET)?.map_or_else(default_socket, PathBuf::from))
}

/// `COTENSOR_SOCKET` if it is set, else `cotensor.sock` in the user's runtime folder if that exists, else in
/// [`fallback_folder`]. The configuration file is not read.
pub fn default_socket() -> PathBuf {
    if let Some(socket) = std::env::var_os(SOCKET.variable).filter(|socket| !socket.is_empty()) {
        return socket.into();
    }
    match runtime_folder() {
        Some(folder) => folder.join("cotensor.sock"),
        None => fallback_folder().join("cotensor.sock"),
    }
}

/// The user's folder of this login: `XDG_RUNTIME_DIR`, or the folder that the system gives every user. Programs that start others with few
/// variables leave the variable out.
fn runtime_folder() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
    named.or_else(|| own_folder_in(Path::new("/run/user")))
}

/// The folder of this user's number, if other users cannot open it.
fn own_folder_in(parent: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let user = rustix::process::geteuid().as_raw();
    let folder = parent.join(user.to_string());
    let found = std::fs::symlink_metadata(&folder).ok()?;
    (found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0).then_some(folder)
}

/// The socket's folder when the user has no runtime folder, below `/tmp`. Any user can create a folder of this name, so
/// a daemon uses it only if this user owns it and other users cannot access it.
pub fn fallback_folder() -> PathBuf {
    PathBuf::from(format!("/tmp/cotensor-{}", rustix::process::geteuid().as_raw()))
}

/// Creates the folder of the socket at `path` with mode 0700 if it is missing, and checks that other users cannot replace
/// the socket.
///
/// # Errors
/// `Refused` for a folder that other users can change; `Io`.
pub fn make_socket_folder(path: &Path) -> Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    // Another user may have created this folder in the temp folder.
    let others = if folder == fallback_folder() { Others::None } else { Others::Harmless };
    private_folder(folder, others)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn folder_that_others_can_open_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        assert_eq!(own_folder_in(parent.path()), None);
        let folder = parent.path().join(rustix::process::geteuid().as_raw().to_string());
        std::fs::create_dir(&folder).unwrap();
        for (mode, is_used) in [(0o700, true), (0o755, false), (0o770, false)] {
            std::fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
            assert_eq!(own_folder_in(parent.path()).is_some(), is_used, "{mode:o}");
        }
        std::fs::remove_dir(&folder).unwrap();
        std::os::unix::fs::symlink(parent.path(), &folder).unwrap();
        assert_eq!(own_folder_in(parent.path()), None);
    }
}
