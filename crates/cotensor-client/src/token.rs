//! The token of the daemon's HTTP side, in a file that only its owner can read.
//!
//! No client of this crate sends it: they use the Unix socket. A program that does send it first asks the daemon for its
//! HTTP address over the Unix socket ([`HttpAddress`](crate::protocol::HttpAddress)); at a port that it only knows by
//! number, another user's program may answer.

use cotensor_core::{Error, ErrorKind, Result};
use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The shortest and the longest token, in bytes.
const TOKEN_BYTES: RangeInclusive<usize> = 16..=4096;

/// The token in a file, white space around it left out.
///
/// # Errors
/// `Refused` for a file that others can read, that is not this user's, or that is no regular file; `Invalid` for one that
/// holds no token of 16 to 4096 visible ASCII characters; `NotFound`, `Io`.
pub fn read_token(path: &Path) -> Result<String> {
    let io = |error: std::io::Error| Error::io("reading the token", &error).in_file(path);
    let refused = |message| Err(Error::new(ErrorKind::Refused, message).in_file(path));
    // Opening a pipe would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty()).map_err(|error| io(error.into()))?);
    let found = file.metadata().map_err(io)?;
    if !found.is_file() {
        return refused("this is no regular file: write the token into one");
    }
    if found.mode() & 0o077 != 0 || found.uid() != rustix::process::geteuid().as_raw() {
        return refused("others than its owner can reach it, or its owner is another user: chmod 600");
    }
    let mut text = String::new();
    // One byte more than allowed, and some for line ends.
    file.take(*TOKEN_BYTES.end() as u64 + 8).read_to_string(&mut text).map_err(io)?;
    let secret = text.trim();
    if !TOKEN_BYTES.contains(&secret.len()) || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::invalid("no token of 16 to 4096 visible ASCII characters").in_file(path));
    }
    Ok(secret.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, mknodat};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_regular_files_of_their_owner_are_read() {
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
    fn a_pipe_is_refused_without_waiting_for_its_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(read_token(&path).unwrap_err().kind(), ErrorKind::Refused);
        assert_eq!(read_token(folder.path()).unwrap_err().kind(), ErrorKind::Refused, "a folder");
    }
}
