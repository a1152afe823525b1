use super::{Served, send};
use crate::support::until;

#[test]
fn request_and_answer_are_forwarded_without_the_key() {
    let served = Served::start();
    let headers = "Content-Type: application/json\r\nAccept: text/plain\r\nCookie: a=b\r\nX-Other: 1\r\n";
    let body = vec![b'x'; 1 << 20];
    let seen = served.request("POST /v1/embeddings?a=%2Fb&c", headers, &body).json();
    let expected = ("POST", "/v1/embeddings?a=%2Fb&c", body.len() as u64);
    assert_eq!(
        (seen["method"].as_str().unwrap(), seen["path"].as_str().unwrap(), seen["bytes"].as_u64().unwrap()),
        expected
    );
    let mut names: Vec<_> = seen["headers"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["accept", "content-length", "content-type", "host"]);
    assert_eq!(served.request("DELETE /v1/models/a%20b", "", b"").json()["method"], "DELETE");
    assert_eq!(served.get("/v1").json()["path"], "/v1");

    let refused = served.get("/v1/refuse");
    assert_eq!((refused.status, refused.body.as_slice()), (429, &b"{\"error\":{}}"[..]));
    assert!(refused.head.contains("retry-after: 7") && refused.head.contains("cache-control: no-store"), "{refused:?}");
    let streamed = served.get("/v1/stream");
    assert!(streamed.head.contains("transfer-encoding: chunked"), "{}", streamed.head);
    assert_eq!(streamed.body.iter().filter(|byte| **byte == b'x').count(), 64 * 0x4000);
}

#[test]
fn connections_to_the_process_are_used_again() {
    let served = Served::start();
    let connections = (0..50).map(|_| served.get("/v1/models").json()["connection"].as_u64().unwrap());
    assert!(connections.max().unwrap() < 25);
}

#[test]
fn requests_over_the_limits_are_refused() {
    let served = Served::start();
    let large = served.request("POST /v1/embeddings", "", &vec![b'x'; (16 << 20) + 1]);
    assert_eq!((large.status, large.code().as_str()), (413, "request_too_large"));
    let compressed = served.request("POST /v1/embeddings", "Content-Encoding: gzip\r\n", b"x");
    assert_eq!((compressed.status, compressed.code().as_str()), (415, "unsupported_media_type"));
    assert_eq!(served.fake.count("start"), 0, "the model process has seen neither");
    assert_eq!(served.request("POST /v1/embeddings", "", &vec![b'x'; 16 << 20]).json()["bytes"], 16 << 20);
}

#[test]
fn request_of_a_client_that_vanishes_is_dropped() {
    let served = Served::start();
    let stream = send(served.http.address, "POST /v1/hang", &served.key, "", b"{}");
    until("the model process has the request", || served.fake.count("hang") == 1);
    drop(stream);
    until("the connection to the model process has ended", || served.fake.count("gone") == 1);
    served.pid();
    assert_eq!(served.fake.count("start"), 1);
}
