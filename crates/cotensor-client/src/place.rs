//! Where the daemon is.

use std::path::PathBuf;

/// `COTENSOR_SOCKET`, or `cotensor.sock` in the user's runtime folder, or in a folder of the user's own under `/tmp`.
pub fn default_socket() -> PathBuf {
    if let Some(socket) = std::env::var_os("COTENSOR_SOCKET").filter(|socket| !socket.is_empty()) {
        return socket.into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => PathBuf::from(folder).join("cotensor.sock"),
        None => fallback_folder().join("cotensor.sock"),
    }
}

/// Where the socket is when there is no runtime folder. Anybody can make a folder of this name, so a daemon uses it only
/// when it is this user's alone.
pub fn fallback_folder() -> PathBuf {
    PathBuf::from(format!("/tmp/cotensor-{}", rustix::process::geteuid().as_raw()))
}
