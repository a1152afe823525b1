//! The bearer token of HTTP clients.

use cotensor_client::hex;
use cotensor_client::token::{read_generated_token, read_token};
use cotensor_client::{kept_path, make_kept_folder};
use cotensor_core::{ContentHash, Error, ErrorKind, Result};
use cotensor_memory::process::random_bytes;
use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use subtle::ConstantTimeEq;

/// A bearer token.
pub(crate) struct Token {
    secret: String,
    hash: ContentHash,
}

impl Token {
    fn new(secret: String) -> Self {
        Self { hash: ContentHash::of(secret.as_bytes()), secret }
    }

    /// Whether `presented` is the token, in constant time for each length.
    pub(crate) fn is(&self, presented: &str) -> bool {
        let presented = ContentHash::of(presented.as_bytes());
        self.hash.as_bytes().ct_eq(presented.as_bytes()).into()
    }

    /// The token, for a client of the daemon's user.
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// Reads the token from a file.
    ///
    /// # Errors
    /// Those of [`read_token`].
    pub(crate) fn from_file(path: &Path) -> Result<Self> {
        Ok(Self::new(read_token(path)?))
    }

    /// The token file of the daemon at `socket`, whose name ends with `suffix`, and its token; [`kept_path`] has its place.
    /// Creates the file with mode 0600 if it is missing.
    ///
    /// # Errors
    /// As [`from_file`](Token::from_file).
    pub(crate) fn kept(socket: &Path, suffix: &str) -> Result<(Self, PathBuf)> {
        let path = kept_path(socket, suffix);
        make_kept_folder(&path)?;
        match read_generated_token(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let secret = hex::encode(&random_bytes::<32>()?);
                write(&path, &secret).map_err(|error| Error::io("making a token", &error).in_file(&path))?;
                // Another machine with the same home folder may have been first.
                Ok((Self::new(read_generated_token(&path)?), path))
            }
            found => Ok((Self::new(found?), path)),
        }
    }
}

/// Creates a file with all of its content, unless it exists.
fn write(path: &Path, secret: &str) -> std::io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".new.{}", std::process::id()));
    let new = PathBuf::from(new);
    let _ = std::fs::remove_file(&new);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = open(&new, flags, Mode::RUSR | Mode::WUSR)?;
    let mut file = File::from(fd);
    let written = file.write_all(format!("{secret}\n").as_bytes()).and_then(|()| file.sync_all());
    let linked = written.and_then(|()| match std::fs::hard_link(&new, path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    });
    std::fs::remove_file(&new).and(linked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn token_is_created_once() {
        let folder = tempfile::tempdir().unwrap();
        let (token, path) = Token::kept(&folder.path().join("socket"), ".token").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let secret = std::fs::read_to_string(&path).unwrap();
        assert!(token.is(secret.trim()) && !token.is("") && !token.is(&secret) && !token.is(&secret[1..]));
        let (again, _) = Token::kept(&folder.path().join("socket"), ".token").unwrap();
        assert!(again.is(secret.trim()));
        // An incomplete file of a daemon that died is not a token.
        std::fs::write(&path, "").unwrap();
        assert_eq!(Token::kept(&folder.path().join("socket"), ".token").err().unwrap().kind(), ErrorKind::Invalid);
    }
}
