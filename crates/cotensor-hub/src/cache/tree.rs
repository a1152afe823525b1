//! The list of a repository's files at a commit.

use cotensor_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Component, Path};

/// The format of the file in the cache.
const FORMAT_VERSION: u32 = 1;
/// The most files of a repository.
pub(crate) const FILES_MAX: usize = 10_000;
/// The hexadecimal digits of the two kinds of hashes.
const SHA1_DIGITS: usize = 40;
const SHA256_DIGITS: usize = 64;
/// The most characters of a file's path in its repository.
const PATH_CHARS_MAX: usize = 1024;

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RepoFile {
    /// The path in the repository, with `/` between its parts.
    pub(crate) path: String,
    /// The size in bytes.
    pub(crate) size: u64,
    /// The SHA-1 of the file as an object of git; of a large file, of its pointer.
    pub(crate) git_sha1: String,
    /// The SHA-256 of the bytes, of a large file.
    pub(crate) sha256: Option<String>,
    /// The hash of the bytes in the hub's chunked storage.
    pub(crate) xet_hash: Option<String>,
}

impl RepoFile {
    /// A file that no list states, which is linked to `blob`.
    pub(crate) fn of_blob(path: String, size: u64, blob: Option<&Path>) -> Self {
        let hash = blob.and_then(|blob| blob.file_name()?.to_str()).unwrap_or_default();
        let named = |digits: usize| if is_hex(hash, digits) { hash.to_owned() } else { String::new() };
        let sha256 = Some(named(SHA256_DIGITS)).filter(|hash| !hash.is_empty());
        Self { path, size, git_sha1: named(SHA1_DIGITS), sha256, xet_hash: None }
    }

    /// The name of the file's blob: the hash of its bytes. Empty if no hash is known.
    pub(crate) fn etag(&self) -> &str {
        self.sha256.as_deref().unwrap_or(&self.git_sha1)
    }

    /// Checks what a server or a file stated, so that path and hashes can be parts of paths in the cache.
    ///
    /// # Errors
    /// `Corrupt` for a path that leads out of its folder, or for a hash of another form.
    pub(crate) fn checked(self) -> Result<Self> {
        let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        let path = Path::new(&self.path);
        let is_path = !self.path.is_empty() && path.components().all(plain) && !self.path.ends_with('/');
        if !is_path || self.path.chars().count() > PATH_CHARS_MAX || self.path.contains(['\\', '\0', '\n', '\r']) {
            return Err(
                Error::corrupt("the list of files has a path that is not a plain relative path").in_field(self.path)
            );
        }
        if !is_hex(&self.git_sha1, SHA1_DIGITS)
            || !self.sha256.as_deref().is_none_or(|hash| is_hex(hash, SHA256_DIGITS))
        {
            return Err(Error::corrupt("the list of files has no valid hash of this file").in_field(self.path));
        }
        Ok(self)
    }
}

fn is_hex(hash: &str, digits: usize) -> bool {
    hash.len() == digits && hash.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[derive(Serialize, Deserialize)]
struct TreeFile {
    format_version: u32,
    files: BTreeMap<String, Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    size: u64,
    blob_id: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    lfs_sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    lfs_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    xet_hash: Option<String>,
}

/// The list in the bytes of a file in the cache. `None` for a file of another format or with an invalid entry: the list
/// is requested again.
pub(super) fn decode(bytes: &[u8]) -> Option<Vec<RepoFile>> {
    let tree: TreeFile = serde_json::from_slice(bytes).ok()?;
    if tree.format_version != FORMAT_VERSION || tree.files.len() > FILES_MAX {
        return None;
    }
    let files = tree.files.into_iter().map(|(path, entry)| {
        let size = entry.lfs_size.unwrap_or(entry.size);
        let (git_sha1, sha256, xet_hash) = (entry.blob_id, entry.lfs_sha256, entry.xet_hash);
        RepoFile { path, size, git_sha1, sha256, xet_hash }.checked().ok()
    });
    files.collect()
}

/// The bytes of the file in the cache.
pub(super) fn encode(files: &[RepoFile]) -> Vec<u8> {
    let entry = |file: &RepoFile| Entry {
        size: file.size,
        blob_id: file.git_sha1.clone(),
        lfs_sha256: file.sha256.clone(),
        lfs_size: file.sha256.as_ref().map(|_| file.size),
        xet_hash: file.xet_hash.clone(),
    };
    let files = files.iter().map(|file| (file.path.clone(), entry(file))).collect();
    serde_json::to_vec_pretty(&TreeFile { format_version: FORMAT_VERSION, files }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> RepoFile {
        RepoFile { path: path.into(), size: 5, git_sha1: "a1".repeat(20), sha256: None, xet_hash: None }
    }

    #[test]
    fn list_is_read_as_it_was_written() {
        let large =
            RepoFile { sha256: Some("b2".repeat(32)), xet_hash: Some("c3".repeat(32)), ..file("onnx/model.onnx") };
        let files = [file("config.json"), large];
        assert_eq!(decode(&encode(&files)).unwrap(), files);
        assert_eq!(files.map(|file| file.etag().len()), [40, 64]);
    }

    #[test]
    fn invalid_lists_are_refused() {
        for path in ["", "/etc/x", "../x", "a/../../x", "a\\b", "./x", "a/", "a\nb"] {
            assert!(file(path).checked().is_err(), "{path:?}");
        }
        let hash = |hash: &str| RepoFile { git_sha1: hash.into(), ..file("x") }.checked().is_ok();
        assert!(hash(&"0".repeat(40)) && !hash("") && !hash(&"A".repeat(40)) && !hash(&"/".repeat(40)));
        for bytes in [&b"{"[..], b"{}", br#"{"format_version": 2, "files": {}}"#] {
            assert_eq!(decode(bytes), None);
        }
        let outside = br#"{"format_version": 1, "files": {"../x": {"size": 1, "blob_id": "00"}}}"#;
        assert_eq!(decode(outside), None);
    }
}
