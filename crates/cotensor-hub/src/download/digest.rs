use crate::cache::RepoFile;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use std::io::{Read, Result};

/// The hash by which the hub identifies a file's bytes.
pub(super) enum Digest {
    /// SHA-256 of the bytes: large files.
    Sha256(Sha256),
    /// SHA-1 of the bytes as an object of git.
    Git(Sha1),
}

impl Digest {
    pub(super) fn of(file: &RepoFile) -> Self {
        match file.sha256 {
            Some(_) => Self::Sha256(Sha256::new()),
            None => Self::Git(Sha1::new_with_prefix(format!("blob {}\0", file.size))),
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Git(hash) => hash.update(bytes),
        }
    }

    /// Adds all bytes of `source`.
    pub(super) fn read(&mut self, mut source: impl Read) -> Result<()> {
        let mut buffer = vec![0; 1 << 20];
        loop {
            match source.read(&mut buffer)? {
                0 => return Ok(()),
                read => self.update(&buffer[..read]),
            }
        }
    }

    /// The hash in hexadecimal digits, as the list of files has it.
    pub(super) fn finish(self) -> String {
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
        git.read(&b"hello\n"[..]).unwrap();
        // echo hello | git hash-object --stdin
        assert_eq!(git.finish(), "ce013625030ba8dba906f756967f9e9ca394464a");
        file.sha256 = Some(String::new());
        let mut large = Digest::of(&file);
        large.read(&b"hello\n"[..]).unwrap();
        // echo hello | sha256sum
        assert_eq!(large.finish(), "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
    }
}
