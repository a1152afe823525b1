//! JSON-RPC over HTTP: the specification's examples, sessions, health and metrics.

use super::Running;
use crate::dispatch::{Caller, Methods, Reply};
use crate::testing::until;
use cotensor_client::protocol::{Method, PROTOCOL};
use cotensor_core::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use std::time::Duration;

/// Messages and their answers: the specification's examples and more.
const EXAMPLES: &str = include_str!("../../../../../../protocol/jsonrpc.json");

#[derive(Serialize, Deserialize, JsonSchema)]
struct Subtraction {
    minuend: i64,
    subtrahend: i64,
}

/// A result that cannot be serialized.
#[derive(Deserialize, JsonSchema)]
struct Unwritable;

impl Serialize for Unwritable {
    fn serialize<S: Serializer>(&self, _: S) -> std::result::Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("unwritable"))
    }
}

macro_rules! methods {
    ($($type:ident $name:literal $params:ty => $result:ty: $run:expr;)*) => {
        $(
            struct $type;
            impl Method for $type {
                const NAME: &'static str = $name;
                const SUMMARY: &'static str = "";
                type Params = $params;
                type Result = $result;
            }
        )*
        fn methods() -> Methods {
            let mut methods = Methods::default();
            $({
                async fn run(_: Caller, params: $params) -> Result<Reply<$result>> {
                    let run: fn($params) -> $result = $run;
                    Ok(run(params).into())
                }
                methods.add::<$type, _>(run);
            })*
            methods
        }
    };
}

methods! {
    Subtract "subtract" Subtraction => i64: |params| params.minuend - params.subtrahend;
    Sum "sum" Vec<i64> => i64: |params| params.iter().sum();
    Update "update" Vec<i64> => (): |_| ();
    NotifyHello "notify_hello" Vec<i64> => (): |_| ();
    NotifySum "notify_sum" Vec<i64> => (): |_| ();
    GetData "get_data" Value => (String, i64): |_| ("hello".to_owned(), 5);
    Fail "unwritable" Value => Unwritable: |_| Unwritable;
}

/// Whether `found` contains `expected`. An error may have more fields.
fn contains(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => {
            found.len() >= expected.len()
                && expected.iter().all(|(name, value)| found.get(name).is_some_and(|found| contains(found, value)))
        }
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| contains(a, b))
        }
        _ => found == expected,
    }
}

#[test]
fn examples_of_the_json_rpc_specification() {
    let running = Running::with(Some(methods()), |_, _| {});
    let examples: Vec<Value> = serde_json::from_str(EXAMPLES).unwrap();
    assert!(examples.len() > 15);
    for example in &examples {
        let answer = running.rpc(&[], example["send"].as_str().unwrap());
        match example.get("receive") {
            None => assert_eq!((answer.status, &answer.body[..]), (204, &b""[..]), "{example}"),
            Some(expected) => {
                assert_eq!(answer.status, 200);
                assert!(contains(&answer.json(), expected), "{example}\n{}", answer.text());
            }
        }
    }
    let metrics = running.get("/metrics");
    for line in [
        "cotensor_requests_total{method=\"subtract\"} 6",
        "cotensor_errors_total{code=\"-32700\"} 2",
        "cotensor_errors_total{code=\"-32602\"} 1",
        "cotensor_errors_total{code=\"-32603\"} 1",
    ] {
        assert!(metrics.text().contains(line), "{line}\n{}", metrics.text());
    }
}

#[test]
fn session_keeps_its_leases_between_requests_until_it_is_deleted() {
    let running = Running::start(|_, _| {});
    running.request("PUT", "/tensors/x?dtype=uint8&shape=4", &[], b"1234");
    let token = running.hello("reader");
    let session = [("Cotensor-Session", token.as_str())];
    let found = running.call(&session, "tensor.get", json!({"name": "x"})).unwrap();
    assert_eq!((&found["spec"]["shape"], found.get("fd")), (&json!([4]), None));
    let holders =
        || running.call(&[], "tensor.holders", json!({"name": "x"})).unwrap()["versions"][0]["holders"].take();
    assert_eq!(holders(), json!({"reader[http]": 1}));
    let error = running.call(&session, "segment.fd", json!({"segment": found["segment"]["id"]})).unwrap_err();
    assert_eq!(error["data"]["kind"], "unsupported");

    // A call without a session releases its leases at its end.
    running.call(&[], "tensor.get", json!({"name": "x"})).unwrap();
    assert_eq!(holders(), json!({"reader[http]": 1}));

    assert_eq!(running.request("DELETE", "/session", &session, b"").status, 204);
    assert_eq!(holders(), json!({}));
    assert_eq!(running.request("DELETE", "/session", &session, b"").status, 404);
}

#[test]
fn session_without_calls_expires() {
    let running = Running::start(|_, http| http.session_ttl = Duration::from_millis(1));
    let token = running.hello("reader");
    until("the session has ended", || running.daemon.session_infos().is_empty());
    let ended = running.rpc(&[("Cotensor-Session", token.as_str())], "{}");
    assert_eq!((ended.status, ended.json()["error"]["data"]["kind"].as_str()), (404, Some("refused")));
}

#[test]
fn sessions_are_listed_counted_and_limited() {
    let running = Running::start(|_, http| http.sessions_max = 2);
    (0..2).for_each(|number| drop(running.hello(&format!("client {number}"))));
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "session.hello", "params": [PROTOCOL, "c"]});
    let third = running.rpc(&[], &hello.to_string());
    assert_eq!(third.status, 503);
    let list = running.call(&[], "session.list", json!({})).unwrap();
    let named: Vec<_> = list["sessions"].as_array().unwrap().iter().map(|session| session["client"].clone()).collect();
    assert_eq!(named[..2], ["client 0[http]", "client 1[http]"]);
    assert_eq!(list["sessions"][0]["transport"], "http");
    assert!(running.get("/metrics").text().contains("cotensor_sessions{transport=\"http\"} 2"));
}

#[test]
fn health_openrpc_page_and_unknown_paths() {
    let running = Running::start(|_, _| {});
    let health = running.get("/health").json();
    assert_eq!(health["status"], "ok");
    assert_eq!(health["socket"], running.daemon.config.socket.to_str().unwrap());
    let document = running.get("/openrpc.json").json();
    assert_eq!(document, running.call(&[], "rpc.discover", json!({})).unwrap());
    assert_eq!(document["openrpc"], "1.3.2");
    let page = running.get("/");
    assert_eq!((page.status, page.headers["content-type"].as_str()), (200, "text/html; charset=utf-8"));
    let policy = &page.headers["content-security-policy"];
    let nonce = policy.split("script-src 'nonce-").nth(1).unwrap().split('\'').next().unwrap();
    assert!(page.text().contains(&format!("<script nonce=\"{nonce}\">")) && !page.text().contains("{{"));
    for (path, status, kind) in
        [("/nothing", 404, "not_found"), ("/tensors/", 404, "not_found"), ("/jsonrpc", 405, "refused")]
    {
        let answer = running.get(path);
        assert_eq!((answer.status, answer.json()["error"]["data"]["kind"].as_str()), (status, Some(kind)), "{path}");
    }
}

/// Whether a name is valid in the [text format](https://prometheus.io/docs/instrumenting/exposition_formats/).
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

/// Name, labels and value of a sample; `None` for another line.
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}')?),
        None => (series, ""),
    };
    let mut rest = labels;
    while !rest.is_empty() {
        let (label, quoted) = rest.split_once("=\"")?;
        let end = (0..quoted.len()).find(|&at| {
            let escapes = quoted[..at].bytes().rev().take_while(|&byte| byte == b'\\').count();
            quoted.as_bytes()[at] == b'"' && escapes % 2 == 0
        })?;
        rest = &quoted[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
        if !is_name(label) {
            return None;
        }
    }
    is_name(name).then_some((name, labels, value.parse().ok()?))
}

#[test]
fn metrics_have_the_prometheus_text_format() {
    let running = Running::start(|config, _| config.max_memory_bytes = 1 << 20);
    running.request("PUT", "/tensors/x%22%5C%0Ay?dtype=uint8&shape=4", &[], b"1234");
    drop(running.hello("reader"));
    drop(running.rpc(&[], "{"));
    let answer = running.get("/metrics");
    assert!(answer.headers["content-type"].starts_with("text/plain; version=0.0.4"));
    let text = answer.text();
    assert!(text.ends_with('\n'));
    let (mut described, mut seen) = (Vec::new(), std::collections::BTreeSet::new());
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let name = help.split(' ').next().unwrap().to_owned();
            assert!(!described.iter().any(|(known, _)| *known == name), "described twice: {name}");
            described.push((name, ""));
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            let last = described.last_mut().unwrap();
            assert!(last.0 == name && ["gauge", "counter"].contains(&kind), "{line}");
            last.1 = kind;
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
        } else {
            let (name, labels, value) = sample(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(described.last().unwrap().0, name, "samples follow their description: {line}");
            assert!(seen.insert((name, labels)), "twice: {line}");
            assert!(value >= 0.0, "{line}");
        }
    }
    assert!(described.iter().all(|(_, kind)| !kind.is_empty()) && described.len() > 10);
    for name in
        ["tensors", "tensor_bytes", "leases", "functions", "memory_budget_bytes", "requests_total", "errors_total"]
    {
        assert!(seen.iter().any(|(known, _)| known.strip_prefix("cotensor_") == Some(name)), "{name}\n{text}");
    }
}
