//! Files of the cache with other bytes than the hub states.

use crate::support::{Cache, NAME, files, id, requested, server};
use cotensor_core::ErrorKind;
use cotensor_core::waiting::{WaitReport, set_wait_reporter};
use cotensor_hub::testing::HubServer;
use cotensor_hub::{Hub, Pulled, Settings};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const WEIGHTS: &str = "onnx/model.onnx_data";

fn blob(pulled: &Pulled, path: &str) -> PathBuf {
    fs::canonicalize(pulled.folder.join(path)).unwrap()
}

/// Changes the bytes of a file and keeps its length and the time of its last write.
fn change(path: &Path, change: impl Fn(&mut [u8])) {
    let written = fs::metadata(path).unwrap().modified().unwrap();
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
    fs::File::options().write(true).open(path).unwrap().set_modified(written).unwrap();
}

fn offline(cache: &Cache, server: &HubServer) -> Hub {
    Hub::new(Settings { offline: true, ..cache.settings(server) })
}

/// A hub, and what its observer was told.
fn observed(settings: Settings) -> (Hub, Arc<Mutex<Vec<String>>>) {
    let hub = Hub::new(settings);
    let told = Arc::<Mutex<Vec<String>>>::default();
    let tells = Arc::clone(&told);
    hub.observe(move |_, _, what| tells.lock().unwrap().push(what.to_owned()));
    (hub, told)
}

#[test]
fn damaged_file_is_an_error_offline_and_is_replaced_by_a_download() {
    type Damage = fn(&mut [u8]);
    let flip: Damage = |bytes| bytes[bytes.len() / 2] ^= 1;
    let zeros: Damage = |bytes| {
        let half = bytes.len() / 2;
        bytes[half..].fill(0);
    };
    for (path, damage) in [(WEIGHTS, flip), (WEIGHTS, zeros), ("config.json", flip), ("config.json", zeros)] {
        let (server, cache) = (server(), Cache::new());
        let pulled = cache.hub(&server).pull(&id(), None).unwrap();
        let blob = blob(&pulled, path);
        type Repair = fn(&Hub) -> PathBuf;
        let repairs: [Repair; 2] = [|hub| hub.find(&id(), None).unwrap(), |hub| hub.pull(&id(), None).unwrap().folder];
        for repair in repairs {
            change(&blob, damage);
            let refused = |error: cotensor_core::Error| {
                assert_eq!(
                    (error.kind(), error.file()),
                    (ErrorKind::Corrupt, Some(&*pulled.folder.join(path))),
                    "{error}"
                );
                assert!(error.to_string().contains(&format!("`cotensor pull {NAME}`")), "{error}");
            };
            refused(offline(&cache, &server).find(&id(), None).unwrap_err());
            refused(offline(&cache, &server).pull(&id(), None).unwrap_err());
            server.take_requests();
            assert_eq!(repair(&cache.hub(&server)), pulled.folder);
            assert_eq!((requested(&server), fs::read(&blob).unwrap()), (vec![path.to_owned()], files()[path].clone()));
            offline(&cache, &server).find(&id(), None).unwrap();
        }
        change(&blob, damage);
        assert_eq!(cache.hub(&server).pull(&id(), None).unwrap().repaired, [path]);
    }
}

#[test]
fn damaged_list_is_requested_again() {
    let (server, cache) = (server(), Cache::new());
    let pulled = cache.hub(&server).pull(&id(), None).unwrap();
    let list = cache.repository().join(format!("trees/{}.json", pulled.commit));
    let whole = fs::read_to_string(&list).unwrap();
    let name = blob(&pulled, WEIGHTS).file_name().unwrap().to_str().unwrap().to_owned();
    let other = format!("{}{}", if name.starts_with('0') { '1' } else { '0' }, &name[1..]);
    fs::write(&list, whole.replace(&name, &other)).unwrap();
    assert_eq!(cache.hub(&server).find(&id(), None).unwrap(), pulled.folder);
    assert_eq!(fs::read_to_string(&list).unwrap(), whole);
    assert_eq!(fs::read(pulled.folder.join(WEIGHTS)).unwrap(), files()[WEIGHTS]);
}

#[test]
fn file_is_hashed_once_until_it_changes_or_verification_is_requested() {
    let (server, cache) = (server(), Cache::new());
    let pulled = cache.hub(&server).pull(&id(), None).unwrap();
    let hashed = |settings: Settings| {
        let (hub, told) = observed(settings);
        hub.find(&id(), None).unwrap();
        let told = told.lock().unwrap();
        told.iter().any(|what| what.contains("verifying"))
    };
    let usual = || cache.settings(&server);
    assert!(!hashed(usual()), "the download has verified them");
    assert!(hashed(Settings { verify: true, ..usual() }));
    assert!(hashed(Settings { records: None, ..usual() }), "without records each process verifies");
    assert!(!hashed(usual()));
    // The same bytes with another time: hashed, and recorded when the time is old enough.
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    fs::File::options().write(true).open(blob(&pulled, WEIGHTS)).unwrap().set_modified(old).unwrap();
    assert!(hashed(usual()));
    // A verified commit does not hide damage that comes later.
    change(&blob(&pulled, WEIGHTS), |bytes| bytes[0] ^= 1);
    assert_eq!(offline(&cache, &server).find(&id(), None).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn blobs_of_programs_that_leave_no_list_are_verified_by_their_names() {
    let (server, cache) = (server(), Cache::new());
    let pulled = cache.hub(&server).pull(&id(), None).unwrap();
    fs::remove_dir_all(cache.repository().join("trees")).unwrap();
    assert_eq!(offline(&cache, &server).find(&id(), None).unwrap(), pulled.folder);
    for path in [WEIGHTS, "tokenizer.json"] {
        change(&blob(&pulled, path), |bytes| bytes[0] ^= 1);
        let error = offline(&cache, &server).find(&id(), None).unwrap_err();
        assert_eq!((error.kind(), error.file()), (ErrorKind::Corrupt, Some(&*pulled.folder.join(path))), "{error}");
        change(&blob(&pulled, path), |bytes| bytes[0] ^= 1);
    }
    offline(&cache, &server).find(&id(), None).unwrap();
}

#[test]
fn names_in_the_cache_that_lead_to_other_files_are_not_written_through() {
    let (server, cache) = (server(), Cache::new());
    let pulled = cache.hub(&server).pull(&id(), None).unwrap();
    let blob = blob(&pulled, WEIGHTS);
    let part = PathBuf::from(format!("{}.incomplete", blob.display()));
    let precious = cache.path().join("precious");
    let pipe = |at: &Path| {
        rustix::fs::mknodat(rustix::fs::CWD, at, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    };
    let places: [&dyn Fn(&Path); 3] =
        [&|at| std::os::unix::fs::symlink(&precious, at).unwrap(), &|at| fs::hard_link(&precious, at).unwrap(), &pipe];
    for place in places {
        fs::write(&precious, "precious").unwrap();
        fs::remove_file(&blob).unwrap();
        place(&part);
        cache.hub(&server).pull(&id(), None).unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        assert_eq!(fs::read(&blob).unwrap(), files()[WEIGHTS]);
    }
    let lock = cache.path().join(".locks/models--owner--tiny-bert");
    let lock = lock.join(format!("{}.lock", blob.file_name().unwrap().to_str().unwrap()));
    fs::remove_file(&blob).unwrap();
    fs::remove_file(&lock).unwrap();
    pipe(&lock);
    let error = cache.hub(&server).pull(&id(), None).unwrap_err();
    assert!(error.file() == Some(&*lock) && error.to_string().contains("not a regular file"), "{error}");
}

#[test]
fn holder_of_a_lock_that_does_nothing_is_named_and_given_up() {
    let (server, cache) = (server(), Cache::new());
    let pulled = cache.hub(&server).pull(&id(), None).unwrap();
    let blob = blob(&pulled, "config.json");
    let name = blob.file_name().unwrap().to_str().unwrap();
    let lock = cache.path().join(".locks/models--owner--tiny-bert").join(format!("{name}.lock"));
    let held = fs::File::open(&lock).unwrap();
    held.lock().unwrap();
    fs::remove_file(&blob).unwrap();
    let mut settings = cache.settings(&server);
    // Longer than the time after which a wait is reported.
    settings.limits.lock = std::time::Duration::from_secs(3);
    let (reported, reports) = std::sync::mpsc::channel();
    set_wait_reporter(Some(Arc::new(move |report: &WaitReport| drop(reported.send(report.text.clone())))));
    let error = Hub::new(settings).pull(&id(), None).unwrap_err();
    assert_eq!((error.kind(), error.file()), (ErrorKind::TimedOut, Some(&*lock)), "{error}");
    let process = format!("process {}", std::process::id());
    assert!(error.to_string().contains(&process), "{error}");
    let report = reports.recv().unwrap();
    assert!(report.contains(&process) && report.contains("which downloads config.json of owner/"), "{report}");
}
