//! Servers that refuse, fail or lie: an error with the cause, and a cache without half of anything.

use crate::support::{Cache, NAME, files, id, server};
use cotensor_core::{Error, ErrorKind};
use cotensor_hub::testing::{Fault, HubServer};
use cotensor_hub::{Hub, ModelId, Settings};
use serde_json::json;

/// The error of a download, after which the cache has no reference and no link to a file that is not complete.
fn refused(cache: &Cache, hub: &Hub) -> Error {
    let error = hub.pull(&id(), None).unwrap_err();
    assert_eq!(cache.names("refs"), [""; 0], "{error}");
    for commit in cache.names("snapshots") {
        for name in cache.names(&format!("snapshots/{commit}")).iter().filter(|name| name.contains('.')) {
            let bytes = std::fs::read(cache.repository().join("snapshots").join(&commit).join(name)).unwrap();
            assert_eq!(bytes, files()[name], "{name}");
        }
    }
    error
}

#[test]
fn refusals_name_the_cause_and_a_way_out() {
    for (status, code, kind, words) in [
        (401, "", ErrorKind::NotFound, &["private", "HF_TOKEN", NAME][..]),
        (401, "RepoNotFound", ErrorKind::NotFound, &["no model", "HF_TOKEN"]),
        (404, "RepoNotFound", ErrorKind::NotFound, &["no model", NAME]),
        (401, "GatedRepo", ErrorKind::Invalid, &["gated", "accept its terms", "HF_TOKEN"]),
        (403, "GatedRepo", ErrorKind::Invalid, &["gated"]),
        (403, "", ErrorKind::Invalid, &["refuses access", "the test's message"]),
        (404, "RevisionNotFound", ErrorKind::NotFound, &["no revision \"main\""]),
        (429, "", ErrorKind::Io, &["429"]),
        (503, "", ErrorKind::Io, &["503", "the test's message"]),
        (418, "", ErrorKind::Corrupt, &["418"]),
    ] {
        for route in ["/revision/", "/tree/", "/resolve/"] {
            let (server, cache) = (server(), Cache::new());
            server.fail(route, 0, Fault::Status(status, code));
            let error = refused(&cache, &cache.hub(&server));
            let text = error.to_string();
            assert_eq!(error.kind(), kind, "{route}: {text}");
            assert!(words.iter().all(|word| text.contains(word)), "{route} {status} {code}: {text}");
        }
    }
    let (server, cache) = (server(), Cache::new());
    let other = cache.hub(&server).pull(&ModelId::parse("owner/other").unwrap(), None).unwrap_err();
    assert!(other.kind() == ErrorKind::NotFound && other.to_string().contains("owner/other"), "{other}");
    server.fail("", 0, Fault::Status(401, ""));
    let hub = Hub::new(Settings { token: Some("hf_wrong".into()), ..cache.settings(&server) });
    let error = refused(&cache, &hub).to_string();
    assert!(error.contains("the token has no access") && !error.contains("hf_wrong"), "{error}");
}

#[test]
fn answers_of_another_form_are_refused() {
    let commit = json!({"sha": "main"}).to_string();
    let outside = json!({"sha": "../../../../../etc/passwd"}).to_string();
    let entry = |path: &str, oid: &str| json!([{"type": "file", "path": path, "size": 5, "oid": oid}]).to_string();
    let hash = "0".repeat(40);
    for (route, body, word) in [
        ("/revision/", "{", "EOF"),
        ("/revision/", "[]", "revision"),
        ("/revision/", &commit, "no commit"),
        ("/revision/", &outside, "no commit"),
        ("/tree/", "{}", "tree"),
        ("/tree/", "<html>", "tree"),
        ("/tree/", &entry("../config.json", &hash), "../config.json"),
        ("/tree/", &entry("/etc/config.json", &hash), "/etc/config.json"),
        ("/tree/", &entry("a/../../config.json", &hash), "a/../../config.json"),
        ("/tree/", &entry("config.json", "../../x"), "config.json"),
        ("/tree/", &entry("config.json", ""), "config.json"),
    ] {
        let (server, cache) = (server(), Cache::new());
        server.fail(route, 0, Fault::Body(body.into()));
        let error = refused(&cache, &cache.hub(&server));
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains(word), "{route} {body}: {error}");
        assert!(!cache.repository().join("snapshots").exists());
    }
}

#[test]
fn long_lists_are_refused() {
    let (server, cache) = (server(), Cache::new());
    server.fail("/tree/", 0, Fault::EndlessPages);
    let error = refused(&cache, &cache.hub(&server));
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("pages"), "{error}");
    server.recover();
    let many: Vec<_> = (0..10_001)
        .map(|at| json!({"type": "file", "path": at.to_string(), "size": 1, "oid": "0".repeat(40)}))
        .collect();
    server.fail("/tree/", 0, Fault::Body(json!(many).to_string().into_bytes()));
    let error = refused(&cache, &cache.hub(&server));
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("10000 files"), "{error}");
    server.recover();
    server.fail("/revision/", 0, Fault::Body(vec![b' '; (16 << 20) + 1]));
    let error = refused(&cache, &cache.hub(&server));
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("16.0 MiB"), "{error}");
}

#[test]
fn next_page_on_another_server_is_refused() {
    let (server, other, cache) = (server(), server(), Cache::new());
    // The page that the other server sends names itself.
    other.fail("/tree/", 0, Fault::EndlessPages);
    server.fail("/tree/", 0, Fault::Redirect(other.address().to_owned()));
    let error = refused(&cache, &cache.hub(&server));
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("another server"), "{error}");
}

#[test]
fn wrong_bytes_get_no_name() {
    for (fault, word) in [(Fault::Changed, "hash"), (Fault::TooLong, "more than")] {
        for path in ["config.json", "onnx/model.onnx_data"] {
            let (server, cache) = (server(), Cache::new());
            server.fail(path, 0, fault.clone());
            let error = refused(&cache, &cache.hub(&server));
            assert_eq!((error.kind(), error.field()), (ErrorKind::Corrupt, Some(path)), "{error}");
            assert!(error.to_string().contains(word), "{error}");
            assert!(!cache.names("blobs").iter().any(|name| name.contains("incomplete")));
            server.recover();
            cache.hub(&server).pull(&id(), None).unwrap();
        }
    }
}

#[test]
fn file_that_is_too_short_is_an_error() {
    let (server, cache) = (server(), Cache::new());
    // A whole answer by its headers, but shorter than the list of files states.
    server.fail("onnx_data", 0, Fault::Body(vec![1; 100]));
    let error = refused(&cache, &cache.hub(&server));
    assert!(error.kind() == ErrorKind::Io || error.kind() == ErrorKind::Corrupt, "{error}");
    assert_eq!(error.field(), Some("onnx/model.onnx_data"));
}

#[test]
fn slow_servers_are_given_up() {
    for (route, fault) in [
        ("/revision/", Fault::Silence),
        ("/tree/", Fault::Silence),
        ("/tree/", Fault::Drip),
        ("config.json", Fault::Silence),
        ("config.json", Fault::Drip),
        ("config.json", Fault::EndlessHeader),
        ("onnx_data", Fault::Drip),
    ] {
        let (server, cache) = (server(), Cache::new());
        server.fail(route, 0, fault);
        let error = refused(&cache, &cache.impatient(&server));
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{route}: {error}");
    }
}

#[test]
fn redirects_have_an_end() {
    let (server, cache) = (server(), Cache::new());
    server.fail("", 0, Fault::Redirect(server.address().to_owned()));
    let error = refused(&cache, &cache.hub(&server));
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(server.take_requests().len() < 10);
}

#[test]
fn repository_without_graphs_names_the_command_that_makes_them() {
    let (server, cache) = (HubServer::start(), Cache::new());
    let mut plain = files();
    plain.retain(|path, _| !path.starts_with("onnx/"));
    server.serve(NAME, plain);
    for hub in [cache.hub(&server), cache.hub(&server)] {
        let error = hub.find(&id(), None).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(text.contains(&format!("`optimum-cli export onnx --model {NAME} tiny-bert`")), "{text}");
    }
    assert!(!cache.names("blobs").iter().any(|name| name.contains("onnx")));
    server.serve(NAME, [("README.md".to_owned(), b"hello".to_vec())]);
    let error = refused(&cache, &cache.hub(&server)).to_string();
    assert!(error.contains("has no config.json"), "{error}");
    server.serve(NAME, [("config.json".to_owned(), br#"{"model_type": "mamba"}"#.to_vec())]);
    let error = cache.hub(&server).pull(&id(), None).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("model_type")), "{error}");
}

#[test]
fn address_that_is_none_is_refused() {
    let cache = Cache::new();
    for endpoint in ["ftp://127.0.0.1", "127.0.0.1", "http://"] {
        let settings = Settings { endpoint: Some(endpoint.into()), ..cache.settings(&server()) };
        let error = Hub::new(settings).pull(&id(), None).unwrap_err();
        assert!(error.to_string().contains(endpoint), "{error}");
    }
}
