//! Recognizes folders of the cache by their paths.

use super::{BLOBS, MODEL_FOLDER, SNAPSHOTS};
use crate::id::is_commit;
use std::path::{Path, PathBuf};

/// The model's folder in the cache, for a path in one of its snapshots.
fn repository_of(folder: &Path) -> Option<(&Path, &str)> {
    let snapshot = folder.ancestors().find(|folder| {
        let parent = folder.parent().and_then(Path::file_name);
        parent.is_some_and(|name| name == SNAPSHOTS)
            && folder.file_name().and_then(|name| name.to_str()).is_some_and(is_commit)
    })?;
    let repository = snapshot.parent()?.parent()?;
    let name = repository.file_name()?.to_str()?.strip_prefix(MODEL_FOLDER)?;
    Some((repository, name))
}

/// The name of the model on the hub, if `folder` is a snapshot in the hub's cache.
pub fn name_of_snapshot(folder: &Path) -> Option<String> {
    repository_of(folder).map(|(_, name)| name.replacen("--", "/", 1))
}

/// The folders to which the files of a snapshot are linked, if `folder` is in a snapshot of the hub's cache: the blobs
/// of the model, and those that several models share.
pub fn blob_folders(folder: &Path) -> Vec<PathBuf> {
    let Some((repository, _)) = repository_of(folder) else { return Vec::new() };
    [Some(repository), repository.parent()].into_iter().flatten().map(|folder| folder.join(BLOBS)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_known_by_their_paths() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let snapshot = PathBuf::from(format!("/c/hub/models--openai--whisper-base/snapshots/{commit}"));
        assert_eq!(name_of_snapshot(&snapshot).as_deref(), Some("openai/whisper-base"));
        let folders = ["/c/hub/models--openai--whisper-base/blobs", "/c/hub/blobs"].map(PathBuf::from);
        assert_eq!(blob_folders(&snapshot.join("onnx")), folders);
        let named = |path: &str| name_of_snapshot(Path::new(path));
        assert_eq!(named(&format!("/c/models--gpt2/snapshots/{commit}")).as_deref(), Some("gpt2"));
        for other in ["/", "/models/bert", "/c/models--a--b/snapshots/main"] {
            assert_eq!((named(other), blob_folders(Path::new(other)).len()), (None, 0), "{other}");
        }
        assert_eq!(named(&format!("/c/datasets--a--b/snapshots/{commit}")), None);
    }
}
