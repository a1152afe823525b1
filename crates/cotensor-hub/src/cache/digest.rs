//! The hashes by which the hub identifies files.

use super::RepoFile;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use std::io::{Read, Result};

/// The hash by which the hub identifies a file's bytes.
pub(crate) enum Digest {
    /// SHA-256 of the bytes: large files.
    Sha256(Sha256),
    /// SHA-1 of the bytes as an object of git.
    Git(Sha1),
}

impl Digest {
    pub(crate) fn of(file: &RepoFile) -> Self {
        match file.sha256 {
            Some(_) => Self::Sha256(Sha256::new()),
            None => Self::Git(Sha1::new_with_prefix(format!("blob {}\0", file.size))),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Git(hash) => hash.update(bytes),
        }
    }

    /// Adds all bytes of `source`. Calls `done` with their number so far.
    pub(crate) fn read(&mut self, mut source: impl Read, done: &dyn Fn(u64)) -> Result<()> {
        let (mut buffer, mut bytes) = (vec![0; 1 << 20], 0);
        loop {
            let read = source.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            self.update(&buffer[..read]);
            bytes += read as u64;
            done(bytes);
        }
    }

    /// The hash in hexadecimal digits, as the list of files has it.
    pub(crate) fn finish(self) -> String {
        let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Sha256(hash) => digits(&hash.finalize()),
            Self::Git(hash) => digits(&hash.finalize()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_git_and_of_large_files() {
        let mut file = RepoFile { path: "x".into(), size: 6, git_sha1: String::new(), sha256: None, xet_hash: None };
        let mut git = Digest::of(&file);
        git.read(&b"hello\n"[..], &|_| ()).unwrap();
        // echo hello | git hash-object --stdin
        assert_eq!(git.finish(), "ce013625030ba8dba906f756967f9e9ca394464a");
        file.sha256 = Some(String::new());
        let mut large = Digest::of(&file);
        large.read(&b"hello\n"[..], &|_| ()).unwrap();
        // echo hello | sha256sum
        assert_eq!(large.finish(), "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
    }
}
