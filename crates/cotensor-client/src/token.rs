//! The token of the daemon's HTTP server, in a file that only its owner can read.
//!
//! Clients of this crate use the Unix socket and never send the token. A program that sends it must first get the HTTP
//! address over the Unix socket ([`HttpAddress`](crate::protocol::HttpAddress)). At a port from another source, another
//! user's program may listen and receive the token.

use crate::regular_file::{open_regular, open_regular_or_link};
use cotensor_core::{Error, ErrorKind, Result};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The shortest and the longest token, in bytes.
const TOKEN_BYTES: RangeInclusive<usize> = 16..=4096;

/// Reads the token of a file, without the white space around it.
///
/// # Errors
/// `Refused` for a file that other users can access, that another user owns, or that is not a regular file. `Invalid`
/// unless the file has a token of 16 to 4096 visible ASCII characters. `NotFound` and `Io` from the system.
pub fn read_token(path: &Path) -> Result<String> {
    read(path, open_regular_or_link(path, OFlags::RDONLY))
}

/// As [`read_token`], for a file that the daemon has made: a link is refused.
///
/// # Errors
/// As [`read_token`].
pub fn read_generated_token(path: &Path) -> Result<String> {
    read(path, open_regular(path, OFlags::RDONLY))
}

fn read(path: &Path, file: std::io::Result<File>) -> Result<String> {
    let io = |error: std::io::Error| Error::io("cannot read the token", &error).in_file(path);
    let refused = |message| Err(Error::new(ErrorKind::Refused, message).in_file(path));
    let file = match file {
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
            return refused("the token's file is not a regular file; write the token into one");
        }
        file => file.map_err(io)?,
    };
    let found = file.metadata().map_err(io)?;
    if found.mode() & 0o077 != 0 || found.uid() != rustix::process::geteuid().as_raw() {
        return refused(
            "other users can access the token's file, or own it; chown it to this user and chmod it to 600",
        );
    }
    let mut text = String::new();
    // One byte more than allowed, and some for line ends.
    file.take(*TOKEN_BYTES.end() as u64 + 8).read_to_string(&mut text).map_err(io)?;
    let secret = text.trim();
    if !TOKEN_BYTES.contains(&secret.len()) || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(
            Error::invalid("the file has no token; a token has 16 to 4096 visible ASCII characters").in_file(path)
        );
    }
    Ok(secret.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn token_is_read_only_from_a_private_regular_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, " a-token-of-some-length\n").unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o640);
        assert_eq!(read_token(&path).unwrap_err().kind(), ErrorKind::Refused);
        mode(0o600);
        assert_eq!(read_token(&path).unwrap(), "a-token-of-some-length");
        for wrong in ["", "short", "with a space inside it", &"x".repeat(5000)] {
            std::fs::write(&path, wrong).unwrap();
            let error = read_token(&path).unwrap_err();
            assert_eq!((error.kind(), error.file()), (ErrorKind::Invalid, Some(path.as_path())), "{wrong:.10}");
        }
        let missing = read_token(&folder.path().join("none")).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn generated_token_is_not_read_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("token"), folder.path().join("link"));
        std::fs::write(&file, "a-token-of-some-length").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read_generated_token(&file).unwrap(), "a-token-of-some-length");
        assert_eq!(read_token(&link).unwrap(), "a-token-of-some-length");
        assert_eq!(read_generated_token(&link).unwrap_err().kind(), ErrorKind::Refused);
    }

    #[test]
    fn pipe_is_refused_without_waiting_for_its_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(read_token(&path).unwrap_err().kind(), ErrorKind::Refused);
        assert_eq!(read_token(folder.path()).unwrap_err().kind(), ErrorKind::Refused, "a folder");
    }
}
