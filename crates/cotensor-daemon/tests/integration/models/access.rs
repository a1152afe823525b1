use super::{Served, receive, send};
use std::os::unix::fs::MetadataExt;

#[test]
fn key_is_good_for_models_only() {
    let served = Served::start();
    let with =
        |request: &str, token: &str, headers: &str| receive(send(served.http.address, request, token, headers, b""));
    assert_ne!(served.key, served.token);
    let file = served.http.v1_token_file.as_ref().unwrap();
    assert_eq!(std::fs::metadata(file).unwrap().mode() & 0o777, 0o600);
    for request in [
        "POST /jsonrpc",
        "DELETE /session",
        "GET /tensors/x",
        "PUT /tensors/x?dtype=uint8&shape=0",
        "DELETE /tensors/x",
        "GET /metrics",
        "GET /openrpc.json",
    ] {
        let answer = with(request, &served.key, "");
        assert_eq!(answer.status, 403, "{request}");
        assert_eq!(answer.json()["error"]["data"]["kind"], "refused", "{request}: the form of the other paths");
    }
    for request in ["GET /nothing", "GET /v1x", "GET /v2/models"] {
        assert_eq!(with(request, &served.key, "").status, 404, "{request}");
    }
    for request in ["GET /", "GET /health"] {
        assert_eq!(with(request, &served.key, "").status, 200, "{request}");
    }
    for token in [&served.key, &served.token] {
        for path in ["/v1", "/v1/", "/v1/models", "/v1/../tensors/x", "/v1/%2e%2e/jsonrpc"] {
            let answer = with(&format!("GET {path}"), token, "");
            assert_eq!(
                (answer.status, answer.json()["path"].as_str().unwrap()),
                (200, path),
                "answered by the model process"
            );
        }
    }
}

#[test]
fn refusals_have_the_form_of_the_api() {
    let served = Served::start();
    let with = |token: &str, headers: &str| receive(send(served.http.address, "GET /v1/models", token, headers, b""));
    for wrong in ["", "x", &served.key[1..]] {
        let answer = with(wrong, "");
        assert_eq!((answer.status, answer.code().as_str()), (401, "invalid_api_key"), "{wrong}");
        assert!(answer.head.contains("www-authenticate: bearer"), "{answer:?}");
    }
    for site in ["Host: evil.example\r\n", "Origin: http://evil.example\r\n", "Sec-Fetch-Site: cross-site\r\n"] {
        let answer = with(&served.key, site);
        assert_eq!((answer.status, answer.code().as_str()), (403, "access_denied"), "{site}");
    }
    assert_eq!(served.fake.count("start"), 0);
}
