//! The secret that a client off this machine has to know.

use cotensor_core::{ContentHash, Error, ErrorKind, Result};
use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use subtle::ConstantTimeEq;

/// The shortest and the longest token, in bytes.
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=4096;

/// A bearer token, kept as its hash.
pub(crate) struct Token(ContentHash);

impl Token {
    pub(crate) fn new(secret: &str) -> Self {
        Self(ContentHash::of(secret.as_bytes()))
    }

    /// Whether `presented` is the token. Takes the same time for every wrong one of its length.
    pub(crate) fn is(&self, presented: &str) -> bool {
        let presented = ContentHash::of(presented.as_bytes());
        self.0.as_bytes().ct_eq(presented.as_bytes()).into()
    }

    /// The token in a file, white space around it left out.
    ///
    /// # Errors
    /// `Refused` for a file that others can read or that is not this user's, `Invalid` for one that holds no token of 16
    /// to 4096 visible ASCII characters, `NotFound`, `Io`.
    pub(crate) fn from_file(path: &Path) -> Result<Self> {
        let io = |error: std::io::Error| Error::io("reading the token", &error).in_file(path);
        let file = File::open(path).map_err(io)?;
        let found = file.metadata().map_err(io)?;
        if found.mode() & 0o077 != 0 || found.uid() != rustix::process::geteuid().as_raw() {
            let message = "others than its owner can reach it, or its owner is another user: chmod 600";
            return Err(Error::new(ErrorKind::Refused, message).in_file(path));
        }
        let mut text = String::new();
        // One byte more than allowed, and some for line ends.
        file.take(*TOKEN_BYTES.end() as u64 + 8).read_to_string(&mut text).map_err(io)?;
        let secret = text.trim();
        if !TOKEN_BYTES.contains(&secret.len()) || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::invalid("no token of 16 to 4096 visible ASCII characters").in_file(path));
        }
        Ok(Self::new(secret))
    }

    /// The token beside `socket`, which is made, mode 0600, when there is none; and its file.
    ///
    /// # Errors
    /// As [`from_file`](Token::from_file).
    pub(crate) fn beside(socket: &Path) -> Result<(Self, PathBuf)> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".token");
        let path = PathBuf::from(path);
        let io = |error: std::io::Error| Error::io("making a token", &error).in_file(&path);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match open(&path, flags, Mode::RUSR | Mode::WUSR) {
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(io(error.into())),
            Ok(fd) => {
                let mut secret = [0; 32];
                getrandom::fill(&mut secret).map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
                let line = cotensor_client::hex::encode(&secret) + "\n";
                File::from(fd).write_all(line.as_bytes()).map_err(io)?;
            }
        }
        Ok((Self::from_file(&path)?, path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_made_once_and_only_files_of_its_owner_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let (token, path) = Token::beside(&folder.path().join("socket")).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let secret = std::fs::read_to_string(&path).unwrap();
        assert!(token.is(secret.trim()) && !token.is("") && !token.is(&secret) && !token.is(&secret[1..]));
        let (again, _) = Token::beside(&folder.path().join("socket")).unwrap();
        assert!(again.is(secret.trim()));

        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(Token::from_file(&path).err().unwrap().kind(), ErrorKind::Refused);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        for wrong in ["", "short", "with a space inside it", &"x".repeat(5000)] {
            std::fs::write(&path, wrong).unwrap();
            let error = Token::from_file(&path).err().unwrap();
            assert_eq!((error.kind(), error.file()), (ErrorKind::Invalid, Some(path.as_path())), "{wrong:.10}");
        }
        let missing = Token::from_file(&folder.path().join("none")).err().unwrap();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}
