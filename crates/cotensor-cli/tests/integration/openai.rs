//! `env openai`: the address and the key for clients of OpenAI's API.

use crate::support::{Daemon, fixtures, until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

/// The status and the body of the answer to `GET path`.
fn get(base_url: &str, path: &str, key: &str) -> (u16, String) {
    request(base_url, &format!("GET {path}"), key, "")
}

/// The status and the body of an answer.
fn request(base_url: &str, line: &str, key: &str, body: &str) -> (u16, String) {
    let address = base_url.strip_prefix("http://").unwrap().strip_suffix("/v1").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!("{line} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n");
    let content = format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all((head + &content).as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn variables(daemon: &Daemon) -> (String, String) {
    let shown = daemon.json(&["env", "openai"]);
    let text = |name: &str| shown[name].as_str().unwrap().to_owned();
    (text("OPENAI_BASE_URL"), text("OPENAI_API_KEY"))
}

#[test]
fn address_and_key_survive_the_daemon_with_a_fixed_port() {
    let place = Daemon::stopped();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    std::fs::write(place.path("config.toml"), format!("listen = '127.0.0.1:{port}'\n")).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command
            .env_remove("COTENSOR_SOCKET")
            .env("COTENSOR_AUTOSTART", "1")
            .env("COTENSOR_RUNTIME_DIR", place.path("run"));
        command.env("XDG_STATE_HOME", place.path("state")).env("COTENSOR_CONFIG", place.path("config.toml"));
        let output = command.env("XDG_CONFIG_HOME", place.path("config")).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        output.stdout
    };
    let shown = || serde_json::from_slice::<Value>(&run(&["env", "openai", "--json"])).unwrap();
    let first = shown();
    assert_eq!(first["OPENAI_BASE_URL"], format!("http://127.0.0.1:{port}/v1"));
    assert_eq!((&first["permanent"], &first["starts_daemon"]), (&json!(true), &json!(false)), "{first}");
    run(&["stop"]);
    // The end of a login removes the runtime folder.
    std::fs::remove_dir_all(place.path("run")).unwrap();
    assert_eq!(shown(), first);
    run(&["stop"]);
}

#[test]
fn taken_port_is_named_with_its_process() {
    let place = Daemon::stopped();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let owner = format!("process {} (", std::process::id());
    place.expect_error(&["serve", "--listen", &address], 1, &[&address, &owner]);
}

#[test]
fn http_is_turned_on_once_and_survives_a_takeover() {
    let daemon = Daemon::start(&[]);
    assert_eq!(daemon.ready["http"], Value::Null);
    let (url, key) = variables(&daemon);
    assert!(url.starts_with("http://127.0.0.1:") && url.ends_with("/v1"), "{url}");
    assert_eq!(std::fs::read_to_string(daemon.path("cotensor.sock.v1.token")).unwrap().trim(), key);
    let shell = String::from_utf8(daemon.ok(&["env", "openai"])).unwrap();
    assert_eq!(shell, format!("export OPENAI_BASE_URL={url}\nexport OPENAI_API_KEY={key}\n"));
    let status = daemon.json(&["status"]);
    assert_eq!(format!("http://{}/v1", status["http"].as_str().unwrap()), url);

    assert_eq!(get(&url, "/metrics", &key).0, 403);
    let (missing, body) = request(&url, "POST /embeddings", &key, "{}");
    assert!(missing == 404 && body.contains("POST /v1/embeddings"), "{missing} {body}");
    let (refused, body) = get(&url, "/v1/models", &key[1..]);
    let error: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((refused, &error["error"]["code"]), (401, &"invalid_api_key".into()));

    let server = status["server"].as_u64().unwrap();
    assert!(Command::new("kill").args(["-9", &server.to_string()]).status().unwrap().success());
    until("there is another server", || daemon.json(&["status"])["server"].as_u64() != Some(server));
    assert_eq!(get(&url, "/metrics", &key).0, 403, "the next server serves HTTP at the same address");
    assert_eq!(variables(&daemon), (url, key));
}

#[test]
fn address_of_a_daemon_with_http_is_shown() {
    let daemon = Daemon::start(&["--listen", "0.0.0.0:0"]);
    let (url, _) = variables(&daemon);
    let port = daemon.ready["http"].as_str().unwrap().rsplit(':').next().unwrap();
    assert_eq!(url, format!("http://127.0.0.1:{port}/v1"));
}

#[test]
fn embeddings_are_served_by_a_process_that_the_daemon_starts() {
    let mut daemon = Daemon::stopped();
    daemon.serve_with(&["--model-ttl", "0"], |command| {
        command.env("COTENSOR_ENGINE", "rten");
    });
    let (url, key) = variables(&daemon);
    assert_eq!(daemon.json(&["status"])["models"], Value::Null, "none before the first request");
    let bert = fixtures().join("tiny/bert").canonicalize().unwrap();
    let body = json!({"model": bert, "input": ["gulls", "a crane lifts grain"]}).to_string();
    let embed = || {
        let (status, answer) = request(&url, "POST /v1/embeddings", &key, &body);
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str::<Value>(&answer).unwrap()
    };
    let first = embed();
    assert_eq!(first["data"].as_array().unwrap().len(), 2);
    // The forms of other servers, with the same key.
    let (status, rows) = request(&url, "POST /embed", &key, r#"{"inputs": ["gulls"]}"#);
    assert_eq!(serde_json::from_str::<Value>(&rows).unwrap().as_array().map(Vec::len), Some(1), "{status} {rows}");
    for path in ["/rerank", "/v2/rerank"] {
        let (status, error) = request(&url, &format!("POST {path}"), &key, r#"{"model": "m", "query": "a"}"#);
        assert!(status == 400 && error.contains("documents"), "{status} {error}");
    }
    let (status, error) = request(&url, "POST /v1/embeddings", &key, r#"{"model": "/nowhere", "input": "a"}"#);
    assert!((400..500).contains(&status) && error.contains("/nowhere"), "{status} {error}");

    let models = daemon.json(&["status"])["models"].as_u64().unwrap();
    assert!(Command::new("kill").args(["-9", &models.to_string()]).status().unwrap().success());
    until("the end of the model process is noticed", || daemon.json(&["status"])["models"].as_u64() != Some(models));
    assert_eq!(embed()["data"], first["data"]);
    assert_eq!(daemon.signal("-TERM"), Some(0));
    assert!(!daemon.path("cotensor.sock.v1").exists());
}
