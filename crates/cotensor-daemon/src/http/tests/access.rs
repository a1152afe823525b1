//! Who is served.

use super::Running;
use std::os::unix::fs::PermissionsExt;

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tensor.list"}"#;

#[test]
fn off_loopback_everyone_needs_the_token() {
    let running = Running::start(|_, http| http.listen = "0.0.0.0:0".parse().unwrap());
    let token = running.token.clone().unwrap();
    for path in ["/metrics", "/openrpc.json", "/tensors/x", "/nothing"] {
        let answer = running.get(path);
        assert_eq!((answer.status, answer.headers["www-authenticate"].as_str()), (401, "Bearer realm=\"cotensor\""));
    }
    assert_eq!(running.rpc(&[], LIST).status, 401);
    assert_eq!(running.get("/health").text(), r#"{"status":"ok"}"#);
    assert_eq!(running.get("/").status, 200);
    for wrong in ["Bearer", "Bearer x", &format!("Basic {token}"), &format!("Bearer {}", &token[1..])] {
        assert_eq!(running.rpc(&[("Authorization", wrong)], LIST).status, 401, "{wrong}");
    }
    for right in [format!("Bearer {token}"), format!("bearer  {token}")] {
        assert_eq!(running.rpc(&[("Authorization", &right)], LIST).status, 200);
        let health = running.request("GET", "/health", &[("Authorization", &right)], b"").json();
        assert_eq!(health["pid"], std::process::id());
    }
}

#[test]
fn a_token_that_is_configured_is_required_on_loopback_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "a-token-of-some-length\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let running = Running::start(|_, http| http.token_file = Some(file));
    assert_eq!(running.rpc(&[], LIST).status, 401);
    assert_eq!(running.rpc(&[("Authorization", "Bearer a-token-of-some-length")], LIST).status, 200);
}

#[test]
fn on_loopback_this_users_processes_need_none() {
    let running = Running::start(|_, _| {});
    assert_eq!((running.rpc(&[], LIST).status, running.token.is_none()), (200, true));
}

#[test]
fn pages_of_other_sites_are_refused_and_so_are_names_that_are_pointed_here() {
    let running = Running::start(|_, http| http.hosts = vec!["box.example".to_owned()]);
    let (here, port) = (running.address.to_string(), running.address.port());
    let own = format!("http://{here}");
    let named = format!("Box.Example:{port}");
    let proxied = format!("https://box.example:{port}");
    for headers in [
        &[("Host", &*here)][..],
        &[("Host", &*here), ("Origin", &*own), ("Sec-Fetch-Site", "same-origin")],
        &[("Host", "localhost:1")],
        &[("Host", "[::1]")],
        &[("Host", &*named), ("Origin", &*proxied)],
    ] {
        assert_eq!(running.rpc(headers, LIST).status, 200, "{headers:?}");
    }
    for headers in [
        &[("Host", "evil.example")][..],
        &[("Host", "localhost.evil.example")],
        &[("Host", "127.0.0.1.evil.example")],
        &[("Host", &*here), ("Origin", "http://evil.example")],
        &[("Host", &*here), ("Origin", "null")],
        &[("Host", &*here), ("Origin", "http://localhost:8080")],
        &[("Host", &*here), ("Sec-Fetch-Site", "cross-site")],
        &[("Host", &*here), ("Sec-Fetch-Site", "same-site")],
    ] {
        let answer = running.rpc(headers, LIST);
        assert_eq!(answer.status, 403, "{headers:?}");
        assert!(!answer.headers.keys().any(|name| name.starts_with("access-control")));
    }
    // What a form of another site can send without asking.
    let form = running.request("POST", "/jsonrpc", &[("Content-Type", "text/plain")], LIST.as_bytes());
    assert_eq!(form.status, 415);
    assert_eq!(running.request("OPTIONS", "/jsonrpc", &[], b"").status, 405);
    // A link to the page is no harm: it shows nothing to the site that it is on.
    assert_eq!(running.request("GET", "/", &[("Sec-Fetch-Site", "cross-site")], b"").status, 200);
    let absolute = running.request("GET", "http://evil.example/metrics", &[], b"");
    assert_eq!(absolute.status, 403);
}
