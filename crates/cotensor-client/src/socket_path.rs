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
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir()) {
        Some(folder) => folder.join("cotensor.sock"),
        None => fallback_folder().join("cotensor.sock"),
    }
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
