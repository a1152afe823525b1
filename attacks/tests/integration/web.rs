//! Invalid HTTP. The daemon's `src/transport/http/tests/` cover slow clients and most access rules.

use cotensor_attacks::{SHORT_TIMEOUT, Target, Web, assert_no_secrets};
use std::io::{Read, Write};
use std::time::Instant;

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tensor.list"}"#;

#[test]
fn request_smuggling_is_refused() {
    let target = Target::start(|_| {});
    let web = Web::start(&target, |http| http.message_timeout = SHORT_TIMEOUT);
    let token = web.authorization();
    let head = format!("POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\n{token}\r\nContent-Type: application/json\r\n");
    let smuggled = "GET /tensors/secret-small HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    for body in [
        format!("Content-Length: 5\r\nContent-Length: 50\r\n\r\n{smuggled}"),
        format!("Content-Length: -1\r\n\r\n{smuggled}"),
        format!("Content-Length: 99999999999999999999\r\n\r\n{smuggled}"),
        format!("Content-Length: 0x10\r\n\r\n{smuggled}"),
        format!("Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{smuggled}"),
        format!("Transfer-Encoding: chunked\r\n\r\n-1\r\n{smuggled}"),
        format!("Transfer-Encoding: gzip\r\n\r\n{smuggled}"),
        format!("Content-Length : 0\r\n\r\n{smuggled}"),
        format!("X: y\r\n folded\r\nContent-Length: 0\r\n\r\n{smuggled}"),
        format!("X: a\0b\r\n\r\n{smuggled}"),
        format!("Host: evil.example\r\nContent-Length: 0\r\n\r\n{smuggled}"),
    ] {
        let answer = web.send(format!("{head}{body}").as_bytes());
        assert!(!(200..300).contains(&answer.status), "{body:?}: {}", answer.text);
        assert_eq!(answer.text.matches("HTTP/1.1 ").count(), usize::from(answer.status != 0), "{}", answer.text);
        assert_no_secrets(&answer.text);
    }
    drop(web);
    target.assert_unharmed();
}

#[test]
fn endless_body_is_refused() {
    let target = Target::start(|_| {});
    let web = Web::start(&target, |http| http.call_bytes_max = 1 << 20);
    for path in ["POST /jsonrpc", "PUT /tensors/endless?dtype=uint8&shape=1000"] {
        let mut stream = web.connect();
        let token = web.authorization();
        let head = format!(
            "{path} HTTP/1.1\r\nHost: localhost\r\n{token}\r\nContent-Type: application/json\r\n\
             Transfer-Encoding: chunked\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
        let taken = (0..100_000).take_while(|_| stream.write_all(chunk.as_bytes()).is_ok()).count();
        assert!(taken < 1000, "{path}: {taken} chunks were accepted");
    }
    drop(web);
    target.assert_unharmed();
}

#[test]
fn names_are_not_paths() {
    let target = Target::start(|_| {});
    let web = Web::start(&target, |_| {});
    for path in [
        "/tensors/%2e%2e/%2e%2e/etc/passwd",
        "/tensors/../../etc/passwd",
        "/tensors/..%2f..%2fetc%2fpasswd",
        "/tensors//etc/passwd",
        "/tensors/%00",
        "/tensors/%ff%fe",
        "/tensors/%",
        "/tensors/%1b%5b2J",
        "/tensors/",
        "/../health%00",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/jsonrpc/../metrics",
    ] {
        for method in ["GET", "DELETE"] {
            let answer = web.request(&format!("{method} {path} HTTP/1.1"), &["Content-Length: 0"]);
            assert!((400..500).contains(&answer.status), "{method} {path}: {}", answer.text);
            assert!(!answer.text.contains("root:") && !answer.text.contains('\u{1b}'));
            assert_no_secrets(&answer.text);
        }
    }
    let long = format!("GET /tensors/{} HTTP/1.1", "n".repeat(60_000));
    assert!(matches!(web.request(&long, &[]).status, 400..500));
    // An accepted path segment is only a name.
    let put = web.request("PUT /tensors/%2e%2e%2fsecret-small?dtype=uint8&shape=0 HTTP/1.1", &["Content-Length: 0"]);
    assert_eq!(put.status, 201, "{}", put.text);
    assert_eq!(web.request("DELETE /tensors/..%2fsecret-small HTTP/1.1", &["Content-Length: 0"]).status, 204);
    drop(web);
    target.assert_unharmed();
}

#[test]
fn ranges_return_at_most_the_whole_tensor() {
    let target = Target::start(|_| {});
    let web = Web::start(&target, |_| {});
    let many = format!("Range: bytes={}", vec!["0-"; 5000].join(","));
    for range in [many.as_str(), "Range: bytes=0-18446744073709551615", "Range: bytes=-18446744073709551615"] {
        let answer = web.request("GET /tensors/secret-large HTTP/1.1", &[range]);
        let status = answer.status;
        assert!(matches!(status, 200 | 206) && answer.text.len() < 4 << 20, "{}: {status}", &range[..20]);
    }
    for range in ["Range: bytes=18446744073709551615-", "Range: bytes=1048576-"] {
        assert_eq!(web.request("GET /tensors/secret-large HTTP/1.1", &[range]).status, 416);
    }
    drop(web);
    target.assert_unharmed();
}

#[test]
fn requests_without_the_token_disclose_nothing() {
    for listen in ["127.0.0.1:0", "0.0.0.0:0"] {
        try_without_the_token(listen);
    }
}

fn try_without_the_token(listen: &str) {
    let target = Target::start(|_| {});
    let web = Web::start(&target, |http| http.listen = listen.parse().unwrap());
    let token = web.token.clone();
    let post = |headers: &[&str]| {
        let length = format!("Content-Length: {}", LIST.len());
        let mut lines = vec!["POST /jsonrpc HTTP/1.1", "Content-Type: application/json", &length, "Connection: close"];
        let host = format!("Host: {}", web.address);
        if !headers.iter().any(|header| header.starts_with("Host")) {
            lines.push(&host);
        }
        lines.extend(headers);
        web.send(format!("{}\r\n\r\n{LIST}", lines.join("\r\n")).as_bytes())
    };
    let right = format!("Authorization: Bearer {token}");
    assert!(post(&[&right]).text.contains("secret-large"), "the token grants access");
    let wrong: Vec<String> = vec![
        String::new(),
        token[..token.len() - 1].to_owned(),
        format!("{token}0"),
        token.to_uppercase() + "x",
        "0".repeat(30_000),
        format!("{token},{token}"),
    ];
    for wrong in wrong {
        let answer = post(&[&format!("Authorization: Bearer {wrong}")]);
        assert!(matches!(answer.status, 401 | 431), "{}", answer.text);
        assert_no_secrets(&answer.text);
    }
    for headers in [
        &["Host: evil.example"][..],
        &[right.as_str(), "Host: evil.example"],
        &[&right, "Host: localhost@evil.example"],
        &[&right, "Origin: http://evil.example"],
        &[&right, "Origin: null"],
        &[&right, "Sec-Fetch-Site: cross-site"],
        &[&right, "Cotensor-Session: 0000000000000000000000000000000000000000000000000000000000000000"],
        &[&right, "Cotensor-Session: "],
    ] {
        let answer = post(headers);
        assert!(matches!(answer.status, 400..500), "{headers:?}: {}", answer.text);
        assert_no_secrets(&answer.text);
        assert!(!answer.text.to_ascii_lowercase().contains("access-control-allow"));
    }
    drop(web);
    target.assert_unharmed();
}

#[test]
fn slow_request_times_out() {
    let target = Target::start(|_| {});
    let web = Web::start(&target, |http| http.message_timeout = SHORT_TIMEOUT);
    for head in [
        "GET /health HTTP/1.1\r\nX: ",
        &format!(
            "POST /jsonrpc HTTP/1.1\r\nHost: localhost\r\n{}\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n",
            web.authorization()
        ),
    ] {
        let mut stream = web.connect();
        stream.write_all(head.as_bytes()).unwrap();
        let start = Instant::now();
        while stream.write_all(b" ").is_ok() {
            assert!(start.elapsed().as_secs() < 30, "{head:?} is still waited for");
            std::thread::sleep(SHORT_TIMEOUT / 20);
        }
        let mut rest = Vec::new();
        drop(stream.read_to_end(&mut rest));
    }
    drop(web);
    target.assert_unharmed();
}
