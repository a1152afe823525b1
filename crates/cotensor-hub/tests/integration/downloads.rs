//! Downloads that succeed.

use crate::support::{Cache, NAME, files, id, requested, server};
use cotensor_core::waiting::{WaitReport, set_wait_reporter};
use cotensor_hub::testing::{Fault, HubServer};
use cotensor_hub::{Hub, ModelId, Settings};
use std::fs;
use std::sync::{Arc, Mutex};

const READ: [&str; 5] =
    ["config.json", "onnx/model.onnx", "onnx/model.onnx_data", "tokenizer.json", "tokenizer_config.json"];

#[test]
fn files_that_are_read_are_downloaded_once_in_the_layout_of_the_hub() {
    let (server, cache) = (HubServer::start(), Cache::new());
    let commit = server.serve(NAME, files());
    let pulled = cache.hub(&server).pull(&id(), None).unwrap();
    let mut paths = requested(&server);
    paths.sort();
    assert!(READ.iter().all(|path| paths.contains(&(*path).to_owned())), "{paths:?}");
    assert!(!paths.iter().any(|path| path.contains("safetensors") || path.contains(".bin") || path.contains("fp16")));
    assert_eq!(pulled.files, paths.len());
    assert_eq!((pulled.bytes, pulled.bytes_received), (pulled.bytes_received, pulled.bytes));
    assert_eq!(pulled.folder, cache.repository().join("snapshots").join(&commit));
    assert_eq!(fs::read_to_string(cache.repository().join("refs/main")).unwrap(), commit);
    for path in &paths {
        let link = pulled.folder.join(path);
        assert!(fs::read_link(&link).unwrap().is_relative(), "{path}");
        assert_eq!(fs::read(&link).unwrap(), files()[path], "{path}");
    }
    assert_eq!(cache.names("blobs").len(), paths.len());
    // Large files are named by their SHA-256, others by their hash in git.
    assert!(cache.names("blobs").iter().all(|name| name.len() == 64 || name.len() == 40));
    assert_eq!(cache.names("trees"), [format!("{commit}.json")]);

    let again = cache.hub(&server).pull(&id(), None).unwrap();
    assert_eq!((again.bytes_received, &again.folder), (0, &pulled.folder));
    assert_eq!(requested(&server), [""; 0]);
}

#[test]
fn blob_without_a_link_is_not_downloaded_again() {
    let (server, cache) = (server(), Cache::new());
    let pulled = cache.hub(&server).pull(&id(), None).unwrap();
    fs::remove_dir_all(&pulled.folder).unwrap();
    server.take_requests();
    assert_eq!(cache.hub(&server).pull(&id(), None).unwrap().bytes_received, 0);
    assert_eq!(requested(&server), [""; 0]);
    // A new commit downloads only what changed.
    let mut changed = files();
    changed.insert("tokenizer_config.json".into(), b"{}".to_vec());
    server.serve(NAME, changed);
    assert_ne!(cache.hub(&server).pull(&id(), None).unwrap().commit, pulled.commit);
    assert_eq!(requested(&server), ["tokenizer_config.json"]);
}

#[test]
fn variant_is_downloaded_on_request() {
    let (server, cache) = (server(), Cache::new());
    cache.hub(&server).find(&id(), Some("fp16")).unwrap();
    let paths = requested(&server);
    assert!(paths.contains(&"onnx/model_fp16.onnx".into()) && !paths.contains(&"onnx/model.onnx".into()), "{paths:?}");
    cache.hub(&server).find(&id(), None).unwrap();
    let paths = requested(&server);
    assert!(paths.contains(&"onnx/model.onnx".into()) && !paths.contains(&"config.json".into()), "{paths:?}");
    let error = cache.hub(&server).pull(&id(), Some("q4")).unwrap_err().to_string();
    assert!(error.contains("q4") && error.contains("onnx/model_fp16.onnx"), "{error}");
}

#[test]
fn revisions_are_kept_apart() {
    let (server, cache) = (HubServer::start(), Cache::new());
    let commit = server.serve(NAME, files());
    let at = |revision: &str| cache.hub(&server).pull(&id().at(revision).unwrap(), None).unwrap();
    assert_eq!(at("v1").commit, commit);
    assert_eq!(at(&commit).bytes_received, 0);
    assert_eq!(cache.names("refs"), ["v1"], "a commit needs no reference");
    let error = cache.hub(&server).pull(&id().at("v9").unwrap(), None).unwrap_err().to_string();
    assert!(error.contains("no revision \"v9\""), "{error}");
}

#[test]
fn name_without_an_owner_is_a_model() {
    let (server, cache) = (HubServer::start(), Cache::new());
    server.serve("gpt2", files());
    let pulled = cache.hub(&server).pull(&ModelId::parse("gpt2").unwrap(), None).unwrap();
    assert!(pulled.folder.starts_with(cache.path().join("models--gpt2")));
}

#[test]
fn broken_download_is_continued() {
    let (server, cache) = (server(), Cache::new());
    let whole = files()["onnx/model.onnx_data"].len();
    server.fail("model.onnx_data", 1, Fault::Truncated(whole / 2));
    let pulled = cache.hub(&server).pull(&id(), None).unwrap();
    let requests = server.take_requests();
    let ranges: Vec<_> =
        requests.iter().filter(|request| request.path.contains("onnx_data")).map(|r| &r.range).collect();
    assert_eq!(ranges, [&None, &Some(format!("bytes={}-", whole / 2))]);
    assert_eq!(fs::read(pulled.folder.join("onnx/model.onnx_data")).unwrap(), files()["onnx/model.onnx_data"]);
    assert_eq!(pulled.bytes, pulled.bytes_received, "no byte was received twice");
}

#[test]
fn download_of_an_ended_process_is_continued() {
    let (server, cache) = (server(), Cache::new());
    server.fail("model.onnx_data", 0, Fault::Truncated(1000));
    assert!(cache.hub(&server).pull(&id(), None).is_err());
    server.recover();
    server.take_requests();
    cache.hub(&server).pull(&id(), None).unwrap();
    let requests = server.take_requests();
    let last = requests.last().unwrap();
    assert!(last.path.contains("onnx_data") && last.range.is_some(), "{last:?}");
    assert!(!cache.names("blobs").iter().any(|name| name.contains("incomplete")));
}

#[test]
fn ignored_range_and_damaged_part_start_the_file_anew() {
    let (server, cache) = (server(), Cache::new());
    let whole = files()["onnx/model.onnx_data"].len();
    server.fail("model.onnx_data", 1, Fault::Truncated(whole / 2));
    server.fail("model.onnx_data", 1, Fault::IgnoredRange);
    // The whole file after half of it is longer than the file.
    let error = cache.hub(&server).pull(&id(), None).unwrap_err();
    assert_eq!(error.kind(), cotensor_core::ErrorKind::Corrupt, "{error}");
    let pulled = cache.hub(&server).pull(&id(), None).unwrap();
    let blob = fs::canonicalize(pulled.folder.join("onnx/model.onnx_data")).unwrap();
    fs::rename(&blob, blob.with_extension("incomplete")).unwrap();
    let mut part = files()["onnx/model.onnx_data"][..whole / 3].to_vec();
    part[0] ^= 1;
    fs::write(blob.with_extension("incomplete"), part).unwrap();
    cache.hub(&server).pull(&id(), None).unwrap();
    assert_eq!(fs::read(blob).unwrap(), files()["onnx/model.onnx_data"]);
}

#[test]
fn concurrent_downloads_request_each_file_once() {
    let (server, cache) = (server(), Cache::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            // Each has a lock of its own, as another process.
            scope.spawn(|| cache.hub(&server).pull(&id(), None).unwrap());
        }
    });
    let mut paths = requested(&server);
    let count = paths.len();
    paths.sort();
    paths.dedup();
    assert_eq!(paths.len(), count, "{paths:?}");
}

#[test]
fn locked_file_is_waited_for() {
    let (server, cache) = (server(), Cache::new());
    let pulled = cache.hub(&server).pull(&id(), None).unwrap();
    let blob = fs::canonicalize(pulled.folder.join("onnx/model.onnx_data")).unwrap();
    let etag = blob.file_name().unwrap().to_str().unwrap().to_owned();
    let lock = cache.path().join(".locks/models--owner--tiny-bert").join(format!("{etag}.lock"));
    let held = fs::File::open(&lock).unwrap();
    held.lock().unwrap();
    fs::remove_file(&blob).unwrap();
    server.take_requests();
    let (reported, reports) = std::sync::mpsc::channel();
    set_wait_reporter(Some(Arc::new(move |report: &WaitReport| drop(reported.send(report.text.clone())))));
    let hub = cache.hub(&server);
    std::thread::scope(|scope| {
        let pulling = scope.spawn(|| hub.pull(&id(), None).unwrap());
        let report = reports.recv().unwrap();
        let holder = format!("waiting for process {} (", std::process::id());
        assert!(report.starts_with(&holder) && report.contains("downloads onnx/model.onnx_data of owner/"), "{report}");
        // The other process finishes the download.
        fs::write(&blob, &files()["onnx/model.onnx_data"]).unwrap();
        held.unlock().unwrap();
        assert_eq!(pulling.join().unwrap().bytes_received, 0);
    });
    assert_eq!(requested(&server), [""; 0]);
}

#[test]
fn token_is_sent_to_the_hub_only() {
    let (server, cdn, cache) = (server(), server(), Cache::new());
    server.fail("/resolve/", 0, Fault::Redirect(cdn.other_host()));
    let settings = Settings { token: Some("hf_secret".into()), ..cache.settings(&server) };
    let pulled = Hub::new(settings).pull(&id(), None).unwrap();
    assert_eq!(fs::read(pulled.folder.join("onnx/model.onnx_data")).unwrap(), files()["onnx/model.onnx_data"]);
    let (first, second) = (server.take_requests(), cdn.take_requests());
    assert!(first.iter().all(|request| request.authorization.as_deref() == Some("Bearer hf_secret")));
    assert!(!second.is_empty() && second.iter().all(|request| request.authorization.is_none()), "{second:?}");
}

#[test]
fn progress_counts_the_bytes_of_all_files() {
    let (server, cache) = (server(), Cache::new());
    let seen = Arc::<Mutex<Vec<(u64, u64)>>>::default();
    let hub = cache.hub(&server);
    let events = Arc::clone(&seen);
    hub.observe(move |done, total, what| {
        assert_eq!(what, format!("downloading {NAME}"));
        events.lock().unwrap().push((done, total));
    });
    let pulled = hub.pull(&id(), None).unwrap();
    let seen = seen.lock().unwrap();
    let config = files()["config.json"].len() as u64;
    assert!(seen.is_sorted() && seen.iter().all(|(_, total)| *total == pulled.bytes - config), "{seen:?}");
    assert_eq!(seen.last().unwrap().0, pulled.bytes - config);
}
