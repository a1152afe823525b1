//! The user's state folder, whose files survive a logout and a reboot.

use crate::private_folder::{Others, private_folder};
use crate::socket_path::runtime_folder;
use cotensor_core::{Error, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// `cotensor` in `$XDG_STATE_HOME`, else in `~/.local/state`. None without a home folder.
pub fn state_folder() -> Option<PathBuf> {
    folder_in(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
}

fn folder_in(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // The specification of these folders ignores relative ones.
    let absolute = |name| variable(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let folder = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(folder.join("cotensor"))
}

/// The path of a file of the daemon at `socket` that survives the daemon: the socket's name with `suffix`. It is in
/// [`state_folder`] if the socket is in [`runtime_folder`], and otherwise beside the socket: a daemon at another place keeps
/// everything there.
pub fn kept_path(socket: &Path, suffix: &str) -> PathBuf {
    path_with(socket, suffix, &runtime_folder(), state_folder())
}

fn path_with(socket: &Path, suffix: &str, runtime: &Path, state: Option<PathBuf>) -> PathBuf {
    // Clients may have other current folders.
    let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.to_path_buf());
    let beside = match (socket.parent(), socket.file_name(), state) {
        (Some(folder), Some(name), Some(state)) if folder == runtime => state.join(name),
        _ => socket,
    };
    path_beside(&beside, suffix)
}

/// The path beside `socket` whose name is the socket's with `suffix`.
pub fn path_beside(socket: &Path, suffix: &str) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Creates the state folder with mode 0700 if `path` is in it, and checks that no other user can open it.
///
/// # Errors
/// `Refused` for a folder that other users can open; `Io`.
pub fn make_kept_folder(path: &Path) -> Result<()> {
    let Some(folder) = state_folder().filter(|folder| path.parent() == Some(folder)) else { return Ok(()) };
    private_folder(&folder, Others::None).map_err(|error: Error| error.prefixed("the folder of the daemon's tokens"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_follows_the_specification() {
        let with = |variables: &[(&str, &str)]| {
            folder_in(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
        };
        assert_eq!(with(&[("HOME", "/h")]).unwrap(), Path::new("/h/.local/state/cotensor"));
        assert_eq!(with(&[("HOME", "/h"), ("XDG_STATE_HOME", "/s")]).unwrap(), Path::new("/s/cotensor"));
        assert_eq!(with(&[("HOME", "/h"), ("XDG_STATE_HOME", "s")]).unwrap(), Path::new("/h/.local/state/cotensor"));
        assert_eq!((with(&[]), with(&[("HOME", "h")])), (None, None));
    }

    #[test]
    fn daemon_of_the_runtime_folder_keeps_files_in_the_state_folder() {
        let path = |socket, state: Option<&str>| {
            path_with(Path::new(socket), ".token", Path::new("/r"), state.map(PathBuf::from))
        };
        assert_eq!(path("/r/cotensor.sock", Some("/s")), Path::new("/s/cotensor.sock.token"));
        assert_eq!(path("/r/cotensor-2540.sock", Some("/s")), Path::new("/s/cotensor-2540.sock.token"));
        assert_eq!(path("/r/cotensor.sock", None), Path::new("/r/cotensor.sock.token"));
        assert_eq!(path("/r/a/cotensor.sock", Some("/s")), Path::new("/r/a/cotensor.sock.token"));
        assert_eq!(path("/other/cotensor.sock", Some("/s")), Path::new("/other/cotensor.sock.token"));
    }
}
