//! Calls that are too many, too deep or too long.

use cotensor_attacks::{Target, spec};
use cotensor_client::protocol as p;
use cotensor_core::ContentHash;
use serde_json::{Value, json};

#[test]
fn batches_are_bounded_and_do_not_block_other_clients() {
    let target = Target::start(|_| {});
    let (mut raw, mut other) = (target.raw(), target.raw());
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "store.diagnostics"});
    for calls in [1025, 100_000] {
        raw.send_frame(&serde_json::to_string(&vec![call.clone(); calls]).unwrap());
        assert_eq!(raw.receive().0["error"]["code"], -32600);
    }
    raw.send_frame(&serde_json::to_string(&vec![call; 1024]).unwrap());
    assert_eq!(other.call("ping", json!({}), &[]), Ok(json!({})));
    assert_eq!(raw.receive().0.as_array().unwrap().len(), 1024);
    // Nested batches are invalid.
    raw.send_frame("[[[]],[{}]]");
    assert!(raw.receive().0.as_array().unwrap().iter().all(|answer| answer["error"]["code"] == -32600));
    drop((raw, other));
    target.assert_unharmed();
}

#[test]
fn depth_is_bounded() {
    let target = Target::start(|_| {});
    let mut raw = target.raw();
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = format!("{}1{}", open.repeat(1_000_000), close.repeat(1_000_000));
        for text in [
            deep.clone(),
            format!(r#"{{"jsonrpc":"2.0","id":{deep},"method":"ping"}}"#),
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tensor.get","params":{{"name":{deep}}}}}"#),
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"session.hello","params":{{"protocol":{deep},"client":"x"}}}}"#
            ),
        ] {
            raw.send_frame(&text);
            let (answer, _) = raw.receive();
            let answer = answer.get(0).unwrap_or(&answer).clone();
            assert!(answer["error"]["code"].is_i64(), "{}", &answer.to_string()[..200]);
        }
    }
    drop(raw);
    target.assert_unharmed();
}

#[test]
fn names_are_bounded_and_quoted() {
    let target = Target::start(|_| {});
    let mut raw = target.raw();
    let long = "n".repeat(1025);
    let mut wrong = p::Spec::from(&spec("x", 1));
    wrong.name.clone_from(&long);
    let mut calls: Vec<(&str, Value, &str)> = vec![("tensor.reserve", json!({"spec": wrong, "holder": ""}), "name")];
    wrong.name = "x".to_owned();
    wrong.producer.clone_from(&long);
    calls.push(("tensor.reserve", json!({"spec": wrong, "holder": ""}), "producer"));
    let hash = ContentHash::of(b"x").to_string();
    let content = json!({"hash": hash, "dtype": "uint8", "shape": [1]});
    calls.extend([
        ("tensor.get", json!({"name": "secret-small", "holder": long}), "holder"),
        ("claim.begin", json!({"key": hash, "holder": long}), "holder"),
        ("store.record_copies", json!({"copies": [{"tensor": long, "reason": "put", "bytes": 1}]}), "tensor"),
        ("blob.plan_upload", json!({"blobs": [content], "producer": long, "holder": ""}), "producer"),
        ("blob.plan_upload", json!({"blobs": vec![&content; 65_537], "producer": "x"}), "blobs"),
        ("function.register", json!({"function": {"name": long, "summary": ""}, "epoch": 1}), "name"),
        (
            "function.register",
            json!({"function": {"name": "../../etc/passwd\u{0}", "summary": ""}, "epoch": 1}),
            "name",
        ),
    ]);
    for (method, params, field) in calls {
        let error = raw.call(method, params, &[]).unwrap_err();
        assert_eq!(error["data"]["field"], field, "{method}: {error}");
        assert!(error.to_string().len() < 4000);
    }
    // Missing names, up to the length of a message: an error, or the end of the connection.
    for name in ["\u{0}".repeat(100), "\u{1b}[2J".to_owned(), "../../../etc/passwd".to_owned(), long.repeat(1000)] {
        let error = raw.refused("tensor.get", json!({"name": name}), &[]);
        assert!(
            error.contains("not_found") && !error.contains('\u{1b}') && error.len() < 4000,
            "{} bytes",
            error.len()
        );
    }
    // More holders than a session may have.
    let more = (0..1100).filter(|index| {
        raw.call("tensor.get", json!({"name": "secret-small", "holder": format!("h{index}")}), &[]).is_err()
    });
    assert!((50..100).contains(&more.count()));
    drop(raw);
    target.assert_unharmed();
}

#[test]
fn oversized_shapes_are_refused() {
    let target = Target::start(|config| config.max_memory_bytes = 1 << 30);
    let mut raw = target.raw();
    for shape in [
        json!([u64::MAX]),
        json!([1u64 << 33, 1u64 << 33]),
        json!([u64::MAX, 0]),
        json!(vec![1; 1000]),
        json!([1u64 << 62]),
        json!([-1]),
        json!([1.5]),
    ] {
        let spec = json!({"name": "x", "dtype": "float64", "shape": shape});
        let error = raw.refused("tensor.reserve", json!({"spec": spec, "holder": ""}), &[]);
        assert!(error.contains("invalid") || error.contains("over_budget"), "{shape}: {error}");
    }
    // Empty reservations take no budget, but their number is bounded.
    let spec = p::Spec::from(&spec("none", 0));
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tensor.reserve", "params": {"spec": spec, "holder": ""}});
    let mut refused = 0;
    for _ in 0..5 {
        raw.send_frame(&serde_json::to_string(&vec![&call; 1000]).unwrap());
        refused += raw.receive().0.as_array().unwrap().iter().filter(|answer| answer.get("error").is_some()).count();
    }
    assert_eq!(refused, 5000 - 4096);
    drop(raw);
    target.assert_unharmed();
}
