//! The cache on disk, without a network.

use crate::support::{Cache, NAME, files, id, server};
use cotensor_core::ErrorKind;
use cotensor_hub::testing::HubServer;
use cotensor_hub::{Hub, ModelId, Settings};
use std::fs;
use std::path::Path;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A cache as an older `huggingface_hub` leaves it: no list of files, one file.
fn older_cache() -> Cache {
    let cache = Cache::new();
    let folder = cache.repository();
    for (path, content) in [
        ("refs/main", COMMIT.as_bytes()),
        ("blobs/aa", br#"{"model_type": "bert"}"#),
        (&format!("snapshots/{COMMIT}/other.txt"), b""),
    ] {
        fs::create_dir_all(folder.join(path).parent().unwrap()).unwrap();
        fs::write(folder.join(path), content).unwrap();
    }
    std::os::unix::fs::symlink("../../blobs/aa", folder.join(format!("snapshots/{COMMIT}/config.json"))).unwrap();
    cache
}

fn settings(cache: &Cache, endpoint: Option<String>, offline: bool) -> Settings {
    let (cache, limits) = (cache.path(), Default::default());
    Settings { cache, endpoint, token: None, offline, records: None, verify: false, limits }
}

fn offline(cache: &Cache) -> Hub {
    let endpoint = Some("http://127.0.0.1:1".to_owned());
    Hub::new(settings(cache, endpoint, true))
}

#[test]
fn offline_hub_finds_what_other_programs_downloaded() {
    let cache = older_cache();
    let hub = offline(&cache);
    let snapshot = cache.repository().join("snapshots").join(COMMIT);
    assert_eq!(hub.find(&id(), None).unwrap(), snapshot);
    assert_eq!(hub.find(&id().at(COMMIT).unwrap(), None).unwrap(), snapshot);
    assert_eq!(hub.folder(Path::new(NAME), Path::new(""), None).unwrap(), snapshot);
    assert_eq!(cotensor_hub::name_of_snapshot(&snapshot).as_deref(), Some(NAME));
    for missing in ["owner/other", "owner/tiny-bert@v2"] {
        let error = hub.find(&ModelId::parse(missing).unwrap(), None).unwrap_err();
        let text = error.to_string();
        assert!(error.kind() == ErrorKind::NotFound && text.contains("HF_HUB_OFFLINE"), "{text}");
        assert!(text.contains(missing) && text.contains(cache.path().to_str().unwrap()), "{text}");
    }
}

#[test]
fn existing_folder_has_precedence_over_a_name() {
    let cache = older_cache();
    let hub = offline(&cache);
    let base = tempfile::tempdir().unwrap();
    fs::create_dir_all(base.path().join(NAME)).unwrap();
    assert_eq!(hub.folder(Path::new(NAME), base.path(), None).unwrap(), base.path().join(NAME));
    // A path that cannot be a name is one of a folder only.
    let error = hub.folder(Path::new("./missing/bert"), base.path(), None).unwrap_err();
    assert!(error.kind() == ErrorKind::NotFound && error.message() == "no such folder", "{error}");
    let error = hub.folder(Path::new("missing/bert"), base.path(), None).unwrap_err().to_string();
    assert!(error.contains("there is no folder") && error.contains(base.path().to_str().unwrap()), "{error}");
}

#[test]
fn files_that_are_read_are_listed_for_any_folder() {
    let (server, cache) = (server(), Cache::new());
    let pulled = cache.hub(&server).pull(&id(), None).unwrap();
    let found = cotensor_hub::files_of(&pulled.folder, None).unwrap();
    assert_eq!((found.len(), found.iter().map(|file| file.bytes).sum::<u64>()), (pulled.files, pulled.bytes));
    assert!(!found.iter().any(|file| file.is_outside), "they are linked to blobs");
    // Under a name that no model of the hub has, and with files that no part of this program reads.
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("a--b");
    for (path, content) in files().into_iter().chain([("model.safetensors".into(), vec![0])]) {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let found = cotensor_hub::files_of(&folder, None).unwrap();
    assert_eq!(found.len(), pulled.files);
    fs::rename(folder.join("config.json"), folder.join("linked")).unwrap();
    std::os::unix::fs::symlink("linked", folder.join("config.json")).unwrap();
    assert!(!cotensor_hub::files_of(&folder, None).unwrap().iter().any(|file| file.is_outside));
    fs::rename(folder.join("linked"), folder.with_file_name("outside")).unwrap();
    fs::remove_file(folder.join("config.json")).unwrap();
    std::os::unix::fs::symlink("../outside", folder.join("config.json")).unwrap();
    let outside = cotensor_hub::files_of(&folder, None).unwrap().into_iter().filter(|file| file.is_outside);
    assert_eq!(outside.map(|file| file.path).collect::<Vec<_>>(), ["config.json"]);
    fs::remove_file(folder.join("config.json")).unwrap();
    let error = cotensor_hub::files_of(&folder, None).unwrap_err();
    assert_eq!((error.kind(), error.file()), (ErrorKind::NotFound, Some(folder.join("config.json").as_path())));
}

#[test]
fn damaged_reference_is_an_error_offline_and_is_mended_by_a_download() {
    let cache = older_cache();
    let reference = cache.repository().join("refs/main");
    for damaged in [&b"../../../etc"[..], b"", b"main\n", &[0xff; 40]] {
        fs::write(&reference, damaged).unwrap();
        let error = offline(&cache).find(&id(), None).unwrap_err();
        assert_eq!((error.kind(), error.file()), (ErrorKind::Corrupt, Some(reference.as_path())));
    }
    let server = HubServer::start();
    let commit = server.serve(NAME, files());
    assert!(cache.hub(&server).find(&id(), None).unwrap().ends_with(&commit));
    assert_eq!(fs::read_to_string(&reference).unwrap(), commit);
}

#[test]
fn complete_model_is_found_without_a_request() {
    let (server, cache) = (server(), Cache::new());
    let pulled = cache.hub(&server).pull(&id(), None).unwrap();
    server.take_requests();
    assert_eq!(cache.hub(&server).find(&id(), None).unwrap(), pulled.folder);
    assert_eq!(server.take_requests(), []);
    // A file that is missing, and one that is too short, are downloaded.
    for path in ["onnx/model.onnx", "tokenizer.json"] {
        let blob = fs::canonicalize(pulled.folder.join(path)).unwrap();
        fs::write(&blob, "short").unwrap();
        assert_eq!(cache.hub(&server).find(&id(), None).unwrap(), pulled.folder);
        assert_eq!(fs::read(&blob).unwrap(), files()[path]);
        fs::remove_file(pulled.folder.join(path)).unwrap();
        assert_eq!(cache.hub(&server).find(&id(), None).unwrap(), pulled.folder);
        assert_eq!(crate::support::requested(&server), [path]);
    }
}

#[test]
fn hub_without_an_answer_leaves_what_the_cache_has() {
    let cache = older_cache();
    let endpoint = Some("http://127.0.0.1:1".to_owned());
    let hub = Hub::new(settings(&cache, endpoint, false));
    assert!(hub.find(&id(), None).unwrap().ends_with(COMMIT));
    let error = hub.find(&ModelId::parse("owner/other").unwrap(), None).unwrap_err();
    assert!(error.kind() == ErrorKind::Io && error.to_string().contains("127.0.0.1:1"), "{error}");
}
