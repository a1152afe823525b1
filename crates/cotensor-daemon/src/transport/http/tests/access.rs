//! Access: the token, users and other sites.

use super::Running;
use serde_json::json;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tensor.list"}"#;

const JSON: (&str, &str) = ("Content-Type", "application/json");

#[test]
fn token_is_required_except_for_health_and_page() {
    for listen in ["127.0.0.1:0", "0.0.0.0:0"] {
        let running = Running::start(|_, http| http.listen = listen.parse().unwrap());
        running.request("PUT", "/tensors/x?dtype=uint8&shape=1", &[], b"1");
        let requests = [
            ("GET", "/metrics"),
            ("GET", "/openrpc.json"),
            ("GET", "/tensors/x"),
            ("HEAD", "/tensors/x"),
            ("PUT", "/tensors/x?dtype=uint8&shape=0"),
            ("DELETE", "/tensors/x"),
            ("POST", "/jsonrpc"),
            ("DELETE", "/session"),
            ("POST", "/embed"),
            ("POST", "/health"),
            ("OPTIONS", "/"),
        ];
        for (method, path) in requests {
            let answer = running.anonymous(method, path, &[], b"");
            let challenge = answer.headers["www-authenticate"].as_str();
            assert_eq!((answer.status, challenge), (401, "Bearer realm=\"cotensor\""), "{method} {path}");
            assert_eq!(answer.headers["connection"], "close", "{method} {path}");
        }
        let health = running.anonymous("GET", "/health", &[], b"").json();
        let known: Vec<_> = health.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(known, ["status", "version", "protocol", "socket"]);
        assert_eq!(running.get("/health").json(), health, "the token makes no difference");
        assert_eq!(running.anonymous("GET", "/", &[], b"").status, 200);
        let token = &running.token;
        let wrong = ["Bearer", "Bearer x", &format!("Basic {token}"), &format!("Bearer {}", &token[1..])];
        for wrong in wrong {
            let answer = running.anonymous("POST", "/jsonrpc", &[JSON, ("Authorization", wrong)], LIST.as_bytes());
            assert_eq!(answer.status, 401, "{wrong}");
        }
        for right in [format!("Bearer {token}"), format!("bearer  {token}")] {
            let answer = running.anonymous("POST", "/jsonrpc", &[JSON, ("Authorization", &right)], LIST.as_bytes());
            assert_eq!(answer.status, 200);
        }
        assert_eq!(running.get("/tensors/x").body, b"1");
    }
}

#[test]
fn path_without_an_endpoint_is_404_with_the_endpoints() {
    let running = Running::start(|_, _| {});
    let token = format!("Bearer {}", running.token);
    for headers in [&[][..], &[("Authorization", token.as_str())]] {
        for path in ["/embeddings", "/v2/embeddings", "/v1embeddings", "/api/embed", "/tensors"] {
            let answer = running.anonymous("POST", path, headers, b"{}");
            let message = answer.json()["error"]["message"].to_string();
            assert_eq!(answer.status, 404, "{path}: {message}");
            assert!(message.contains(path) && message.contains("POST /v1/embeddings"), "{message}");
        }
    }
    // A wrong token and another site's page stay refused.
    assert_eq!(running.anonymous("GET", "/nothing", &[("Authorization", "Bearer x")], b"").status, 401);
    assert_eq!(running.anonymous("GET", "/nothing", &[("Origin", "http://elsewhere.example")], b"").status, 403);
}

#[test]
fn configured_token_is_required() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "a-token-of-some-length\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let running = Running::start(|_, http| http.token_file = Some(file));
    assert_eq!(running.anonymous("GET", "/metrics", &[], b"").status, 401);
    let right = ("Authorization", "Bearer a-token-of-some-length");
    assert_eq!(running.anonymous("GET", "/metrics", &[right], b"").status, 200);
}

#[test]
fn connection_without_the_token_ends_after_one_answer() {
    let running = Running::start(|_, _| {});
    let token = running.authorization();
    for (token, answers) in [(token.as_str(), 2), ("", 1)] {
        let mut stream = running.connect();
        let first = format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{token}\r\n");
        let last = format!("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{token}\r\n");
        stream.write_all((first + &last).as_bytes()).unwrap();
        let mut text = String::new();
        // The second request may be answered by a reset of the connection.
        drop(stream.read_to_string(&mut text));
        assert_eq!(text.matches("HTTP/1.1 200").count(), answers, "{text}");
    }
}

#[test]
fn page_receives_the_token_for_a_code_once() {
    let running = Running::start(|_, _| {});
    let file = running.call(&[], "http.dashboard", json!({})).unwrap()["file"].as_str().unwrap().to_owned();
    let redirect = std::fs::read_to_string(&file).unwrap();
    let (_, url) = redirect.split_once(&format!("url=http://{}", running.address)).unwrap();
    let url = url.split('"').next().unwrap();
    let has_token = |url: &str| running.anonymous("GET", url, &[], b"").text().contains(&running.token);
    assert!(!has_token("/") && !has_token("/?code=") && !has_token(&url[..url.len() - 1]));
    assert_eq!(running.anonymous("HEAD", url, &[], b"").status, 200);
    assert!(has_token(url), "a HEAD request leaves the code valid");
    assert!(!has_token(url) && !std::path::Path::new(&file).exists());

    let address = running.call(&[], "http.address", json!({})).unwrap();
    assert_eq!(address["address"], running.address.to_string());
    assert_eq!(std::fs::read_to_string(address["token_file"].as_str().unwrap()).unwrap().trim(), running.token);
}

#[test]
fn token_is_escaped_in_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let secret = "\"><script>{{nonce}}&amp;'0123";
    std::fs::write(&file, secret).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let running = Running::start(|_, http| http.token_file = Some(file));
    let file = running.call(&[], "http.dashboard", json!({})).unwrap()["file"].as_str().unwrap().to_owned();
    let redirect = std::fs::read_to_string(file).unwrap();
    let code = redirect.split("?code=").nth(1).unwrap().split('"').next().unwrap();
    let page = running.anonymous("GET", &format!("/?code={code}"), &[], b"");
    assert!(page.text().contains("content=\"&quot;>&lt;script>{{nonce}}&amp;amp;'0123\""), "{}", page.text());
}

#[test]
fn requests_of_other_sites_and_unknown_host_names_are_refused() {
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
    // A form of another site can send this without a preflight request.
    let form = running.request("POST", "/jsonrpc", &[("Content-Type", "text/plain")], LIST.as_bytes());
    assert_eq!(form.status, 415);
    assert_eq!(running.request("OPTIONS", "/jsonrpc", &[], b"").status, 405);
    // A link to the page is harmless: the linking site cannot read it.
    assert_eq!(running.request("GET", "/", &[("Sec-Fetch-Site", "cross-site")], b"").status, 200);
    // Two hosts: a proxy may have checked the other one.
    let two = [("Host", &*here), ("Host", "evil.example")];
    assert_eq!(running.rpc(&two, LIST).status, 400);
    assert_eq!(running.rpc(&[two[1], two[0]], LIST).status, 400);
    assert_eq!(running.rpc(&[two[0], two[0]], LIST).status, 400);
    let absolute = running.request("GET", "http://evil.example/metrics", &[], b"");
    assert_eq!(absolute.status, 403);
}
