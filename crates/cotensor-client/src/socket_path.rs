//! The sockets of this user's daemons, and their folder.

use crate::port::PORT;
use crate::private_folder::{Others, private_folder};
use crate::settings::{RUNTIME_DIR, SOCKET, configured};
use cotensor_core::{Error, Result};
use std::path::{Path, PathBuf};

/// The default socket, in the folder of all sockets.
const NAME: &str = "cotensor.sock";

/// The socket in `COTENSOR_SOCKET`, else in the configuration file, else as [`default_socket`].
///
/// # Errors
/// As [`ConfigFile::load`](crate::settings::ConfigFile::load).
pub fn configured_socket() -> Result<PathBuf> {
    own_socket(None, None)
}

/// The socket of the daemon that a program names: `socket`, else [`configured_socket`]'s, else that of `port`
/// ([`socket_of_port`]), else [`default_socket`].
///
/// # Errors
/// As [`configured_socket`]; `Invalid` for the address of a machine: a file of that name would be a daemon of this one.
pub fn own_socket(socket: Option<&Path>, port: Option<u16>) -> Result<PathBuf> {
    let named = match socket {
        Some(socket) => Some(socket.to_path_buf()),
        None => configured(&SOCKET)?.map(PathBuf::from),
    };
    match (named, port) {
        (Some(socket), _) if is_address(&socket) => {
            let message = "this is an address, not a socket: a daemon serves its own machine only. Several machines share \
                           tensors on Ray, with `cotensor.ray.init()`";
            Err(Error::invalid(message).in_file(socket))
        }
        (Some(socket), _) => Ok(socket),
        (None, Some(port)) => Ok(socket_of_port(port)),
        (None, None) => Ok(default_socket()),
    }
}

/// Whether a path has the form of an URL, or of a host and a port.
fn is_address(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    text.contains("://") || !text.contains('/') && text.rsplit_once(':').is_some_and(|(_, port)| is_port(port))
}

/// `COTENSOR_SOCKET` if it is set, else `cotensor.sock` in [`runtime_folder`]. The configuration file is not read.
pub fn default_socket() -> PathBuf {
    match std::env::var_os(SOCKET.variable).filter(|socket| !socket.is_empty()) {
        Some(socket) => socket.into(),
        None => runtime_folder().join(NAME),
    }
}

/// The socket of the daemon of a port, in [`runtime_folder`]: each rank has a port, and so a daemon, of its own. The daemon of
/// port 2537 is the default one.
pub fn socket_of_port(port: u16) -> PathBuf {
    let folder = runtime_folder();
    if port == PORT { folder.join(NAME) } else { folder.join(format!("cotensor-{port}.sock")) }
}

/// The folder of the sockets of this user's daemons: `COTENSOR_RUNTIME_DIR` if it is set, else `/tmp/cotensor-UID`. If another
/// user has made that one, [`make_socket_folder`] refuses it: a second choice would give the user two daemons.
///
/// Nothing else decides: a login, cron, `sudo` and a container have other variables, and all programs of a user need the same
/// daemon.
pub fn runtime_folder() -> PathBuf {
    match std::env::var_os(RUNTIME_DIR).filter(|folder| !folder.is_empty()) {
        Some(folder) => folder.into(),
        None => usual_folder(),
    }
}

fn usual_folder() -> PathBuf {
    let own = rustix::process::geteuid().as_raw();
    let user = user_outside(own, &std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default());
    Path::new("/tmp").join(format!("cotensor-{user}"))
}

/// The number that a user has outside of this process's user namespace, by the lines of its map: the first number inside, the
/// first one outside, and their count. A program that `unshare --map-root-user` runs has the daemon of its user.
fn user_outside(user: u32, map: &str) -> u32 {
    let outside = |line: &str| {
        let mut numbers = line.split_ascii_whitespace().map(|number| number.parse::<u32>().ok());
        let (inside, outside, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let offset = user.checked_sub(inside).filter(|offset| *offset < count)?;
        outside.checked_add(offset)
    };
    map.lines().find_map(outside).unwrap_or(user)
}

/// Creates the folder of the socket at `path` with mode 0700 if it is missing, and checks that other users cannot replace
/// the socket.
///
/// # Errors
/// `Refused` for a folder that other users can change; `Io`.
pub fn make_socket_folder(path: &Path) -> Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    // Another user may have created a folder with the name of this user's.
    if folder != usual_folder() {
        return private_folder(folder, Others::Harmless);
    }
    private_folder(folder, Others::None).map_err(|error| {
        let message = format!("{}: {RUNTIME_DIR} names another folder for all programs of the user", error.message());
        Error::new(error.kind(), message).in_file(folder)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_machines_are_refused() {
        for address in ["host:7070", "192.0.2.1:80", "[::1]:80", "tcp://host:1", "http://host/", "unix:///tmp/a.sock"] {
            let error = own_socket(Some(Path::new(address)), None).unwrap_err();
            assert_eq!(error.file(), Some(Path::new(address)));
            assert!(error.message().contains("cotensor.ray.init()"), "{error}");
        }
        for socket in ["host", "./host:7070", "/tmp/host:7070", "a:b", "a:", "host:7070.sock"] {
            assert_eq!(own_socket(Some(Path::new(socket)), None).unwrap(), Path::new(socket));
        }
    }

    #[test]
    fn user_of_a_namespace_has_the_number_outside() {
        let all = "         0          0 4294967295\n";
        assert_eq!((user_outside(0, all), user_outside(1000, all)), (0, 1000));
        assert_eq!(user_outside(0, "0 1000 1\n"), 1000);
        let several = "0 1000 1\n1 100000 65536\n";
        assert_eq!((user_outside(0, several), user_outside(33, several)), (1000, 100_032));
        for without in ["", "0 1000\n", "x y z\n", "0 4294967295 2\n", "5 7 1\n"] {
            assert_eq!(user_outside(1, without), 1, "{without:?}");
        }
    }
}
