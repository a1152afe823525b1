//! The default path of the daemon's socket.

use std::path::PathBuf;

/// `COTENSOR_SOCKET` if it is set, else `cotensor.sock` in the user's runtime folder, else in [`fallback_folder`].
pub fn default_socket() -> PathBuf {
    if let Some(socket) = std::env::var_os("COTENSOR_SOCKET").filter(|socket| !socket.is_empty()) {
        return socket.into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => PathBuf::from(folder).join("cotensor.sock"),
        None => fallback_folder().join("cotensor.sock"),
    }
}

/// The socket's folder when the user has no runtime folder, below `/tmp`. Any user can create a folder of this name, so
/// a daemon uses it only if this user owns it and other users cannot access it.
pub fn fallback_folder() -> PathBuf {
    PathBuf::from(format!("/tmp/cotensor-{}", rustix::process::geteuid().as_raw()))
}
