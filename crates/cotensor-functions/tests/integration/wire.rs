//! What a provider answers to frames that no caller of ours would send.

use cotensor_client::protocol::{self as p, provider};
use cotensor_daemon::testing::Running;
use cotensor_functions::{Options, Provider, Value};
use cotensor_memory::Slab;
use cotensor_rpc::{Decoder, Frame, send_all};
use serde_json::{Value as Json, json};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

struct Raw {
    socket: UnixStream,
    decoder: Decoder,
}

impl Raw {
    /// A socket to the provider of `echo`, as the daemon makes them.
    fn connect(running: &Running) -> (Self, p::FoundFunction) {
        let connection = cotensor_client::connect(&running.socket, Box::new(|_, _, _| {})).unwrap();
        let hello = p::HelloParams { protocol: p::PROTOCOL, client: "raw".into(), resume: None };
        connection.call::<p::Hello>(&hello, Vec::new(), None).unwrap();
        let params = p::LookupFunctionParams { name: "echo".into(), connected: Vec::new() };
        let (found, fds) = connection.call::<p::LookupFunction>(&params, Vec::new(), None).unwrap();
        let known = p::LookupFunctionParams { name: "echo".into(), connected: vec![found.provider.epoch] };
        let (_, none) = connection.call::<p::LookupFunction>(&known, Vec::new(), None).unwrap();
        assert!(none.is_empty(), "one socket is enough");
        let socket = UnixStream::from(fds.into_iter().next().unwrap());
        (Self { socket, decoder: Decoder::default() }, found)
    }

    fn say(&self, text: &str) {
        send_all(self.socket.as_fd(), &Frame::new(text.as_bytes().to_vec())).unwrap();
    }

    fn open_slab(&mut self, slab: u64, bytes: u64, fds: Vec<OwnedFd>) -> Json {
        let params = json!({"slab": slab, "bytes": bytes});
        let body =
            json!({"jsonrpc": "2.0", "id": 1, "method": "arena.open", "params": params}).to_string().into_bytes();
        send_all(self.socket.as_fd(), &Frame { body, fds }).unwrap();
        self.hear()
    }

    fn hear(&mut self) -> Json {
        loop {
            if let Some(frame) = self.decoder.take().unwrap() {
                return serde_json::from_slice(&frame.body).unwrap();
            }
            assert!(self.decoder.fill(self.socket.as_fd()).unwrap() > 0, "the provider ended the connection");
        }
    }

    fn ask(&mut self, method: &str, params: &Json) -> Json {
        self.say(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string());
        let answer = self.hear();
        assert_eq!(answer["id"], 1);
        answer
    }
}

fn echoing(running: &Running) -> Provider {
    let echo = |arguments: &cotensor_functions::Arguments, _: &_| Ok(arguments.get(0, "value")?.clone());
    let builder = Provider::builder(running.connect("provider")).function("echo", Options::default(), echo);
    // As JSON, 18 MB.
    let long = |_: &_, _: &_| Ok(Value::List(vec![Value::from("\u{1}".repeat(60_000)); 50]));
    let half = |_: &_, _: &_| Ok(Value::List(vec![Value::from("\u{1}".repeat(60_000)); 25]));
    let builder = builder.function("long", Options::default(), long).function("half", Options::default(), half);
    builder.function("kept", Options::default().managed(), |_, _| Ok(Value::Int(1))).start().unwrap()
}

#[test]
fn json_rpc_errors_notifications_and_batches_are_answered() {
    let running = Running::start(|_| {});
    let _provider = echoing(&running);
    let (mut raw, _) = Raw::connect(&running);
    let call = |id: u64, value: Json| json!({"jsonrpc": "2.0", "id": id, "method": "call", "params": {"function": "echo", "args": [value]}});
    raw.say(&call(7, json!([1, 2.5, {"a": null}])).to_string());
    assert_eq!(raw.hear(), json!({"jsonrpc": "2.0", "id": 7, "result": {"value": [1, 2.5, {"a": null}]}}));
    for (text, code) in
        [("{", -32700), ("[]", -32600), ("1", -32600), (r#"{"jsonrpc":"2.0","id":1,"method":"os.system"}"#, -32601)]
    {
        raw.say(text);
        assert_eq!(raw.hear()["error"]["code"], code, "{text}");
    }
    let notification = json!({"jsonrpc": "2.0", "method": "call", "params": {"function": "echo", "args": [0]}});
    raw.say(&notification.to_string());
    raw.say(&json!([call(1, json!(1)), notification, 5, call(2, json!("two"))]).to_string());
    let answers = raw.hear();
    let answers = answers.as_array().unwrap();
    assert_eq!(answers.len(), 3, "the notification has none: {answers:?}");
    assert!(answers.iter().any(|answer| answer["id"] == 2 && answer["result"]["value"] == "two"));
    raw.say(&json!([notification, notification]).to_string());
    raw.say(&call(9, json!(9)).to_string());
    assert_eq!(raw.hear()["id"], 9, "a batch of notifications is not answered");
}

#[test]
fn batch_is_answered_when_one_result_is_too_long() {
    let running = Running::start(|_| {});
    let provider = echoing(&running);
    let (mut raw, _) = Raw::connect(&running);
    let call = |id: u64, params: Json| json!({"jsonrpc": "2.0", "id": id, "method": "call", "params": params});
    let eight = "x".repeat(60_000);
    let eight = vec![eight.as_str(); 140];
    let batch = json!([
        call(1, json!({"function": "long"})),
        call(2, json!({"function": "echo", "args": ["short"]})),
        call(3, json!({"function": "echo", "args": [eight]})),
    ]);
    raw.say(&batch.to_string());
    let answers = raw.hear();
    let answer = |id: u64| answers.as_array().unwrap().iter().find(|answer| answer["id"] == id).unwrap().clone();
    assert!(answer(1)["error"]["message"].as_str().unwrap().contains("tensor"), "{}", answer(1)["error"]);
    assert_eq!(answer(2)["result"]["value"], "short");
    assert_eq!(answer(3)["result"]["value"].as_array().unwrap().len(), 140);
    // Answers that are too long together only.
    raw.say(&json!([1, 2].map(|id| call(id, json!({"function": "half"})))).to_string());
    let answers = raw.hear();
    let results = answers.as_array().unwrap().iter().filter(|answer| answer["result"].is_object()).count();
    assert_eq!((answers.as_array().unwrap().len(), results), (2, 1), "one fits, the other is an error");
    assert_eq!(provider.callers(), 1);
}

#[test]
fn every_method_answers_and_names_wrong_parameters() {
    let running = Running::start(|_| {});
    let _provider = echoing(&running);
    let (mut raw, found) = Raw::connect(&running);
    for method in provider::METHODS {
        let error = raw.ask(method.name, &json!({"nonsense": true}));
        // These need no parameters.
        let fine = match method.name {
            "task.list" => error["result"]["tasks"] == json!([]),
            "rpc.discover" => error["result"]["openrpc"].is_string(),
            _ => false,
        };
        assert!(fine || error["error"]["code"] == -32602, "{}: {error}", method.name);
    }
    let epoch = found.provider.epoch;
    let forged = json!({"$object": {"id": 1, "epoch": epoch}});
    let object = raw.ask("call", &json!({"function": "kept"}))["result"]["value"]["$object"].clone();
    for (value, names) in [
        (json!({"$tensor": {"id": {"slot": 99, "version": 1}, "dtype": "float32", "shape": [1]}}), "version"),
        (json!({"$tensor": {"id": {"slot": 99, "version": 1}, "dtype": "float99", "shape": [1]}}), "float99"),
        (json!({"$tensor": 5}), "$tensor"),
        (json!({"$object": {"id": 999, "epoch": epoch}}), "object"),
        (json!({"$object": {"id": object["id"], "epoch": epoch ^ 1}}), "restarted"),
        (json!({"$bytes": "0g"}), "$bytes"),
        (json!({"$float": "many"}), "$float"),
        (json!({"$map": [["a"]]}), "$map"),
        (json!({"$what": 1}), "$what"),
        (json!({"$bytes": "00", "more": 1}), "$bytes"),
        (serde_json::from_str("12345678901234567890").unwrap(), "64 bits"),
    ] {
        let answer = raw.ask("call", &json!({"function": "echo", "args": [value]}));
        assert!(answer["error"].to_string().contains(names), "{value}: {answer}");
    }
    // A number that was read as a float would have lost digits.
    for number in ["18446744073709551616", "-9223372036854775809", "[{\"a\": 99999999999999999999}]"] {
        raw.say(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"call","params":{{"function":"echo","args":[{number}]}}}}"#
        ));
        assert!(raw.hear()["error"]["message"].to_string().contains("64 bits"), "{number}");
    }
    let deep = "[".repeat(100) + &"]".repeat(100);
    raw.say(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"call","params":{{"function":"echo","args":[{deep}]}}}}"#));
    assert!(raw.hear()["error"]["message"].to_string().contains("deeper"));
    // Another caller's object is nobody else's.
    let (mut other, _) = Raw::connect(&running);
    assert!(other.ask("object.call", &json!({"object": object, "method": "get"}))["error"].is_object());
    assert_eq!(raw.ask("object.call", &json!({"object": object, "method": "get"}))["result"]["value"], 1);
    assert!(raw.ask("object.release", &json!({"object": object}))["result"].is_object());
    assert!(raw.ask("object.release", &json!({"object": object}))["error"].is_object(), "once");
    assert!(raw.ask("call", &json!({"function": "echo", "args": [forged]}))["error"].is_object());
}

#[test]
fn arena_accepts_only_sealed_slabs_and_ranges_within_them() {
    let running = Running::start(|_| {});
    let _provider = echoing(&running);
    let (mut raw, _) = Raw::connect(&running);
    let slab = |bytes| Slab::create(bytes).unwrap().fd().try_clone_to_owned().unwrap();
    let unsealed = || rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    for (bytes, fds, names) in [
        (4096, Vec::new(), "descriptor"),
        (0, vec![unsealed()], "seals"),
        (8192, vec![slab(4096)], "4096"),
        (4096, vec![OwnedFd::from(tempfile::tempfile().unwrap())], "memfd"),
    ] {
        let answer = raw.open_slab(0, bytes, fds);
        assert!(answer["error"]["message"].to_string().contains(names), "{names}: {answer}");
    }
    for number in 0..64 {
        assert!(raw.open_slab(number, 4096, vec![slab(4096)])["result"].is_object());
    }
    assert!(raw.open_slab(0, 4096, vec![slab(4096)])["error"].to_string().contains("open"), "once");
    assert!(raw.open_slab(64, 4096, vec![slab(4096)])["error"].to_string().contains("64"), "not as many as one likes");
    let lent = |slab: u64, offset: u64, shape: Json| json!({"$arena": {"slab": slab, "offset": offset, "name": "x", "dtype": "uint8", "shape": shape}});
    for (value, names) in [
        (lent(99, 0, json!([1])), "99"),
        (lent(0, 4096, json!([1])), "4096"),
        (lent(0, 64, json!([4096])), "4096"),
        (lent(0, u64::MAX, json!([2])), "18446744073709551615"),
        (lent(0, 1, json!([1])), "multiple"),
        (lent(0, 0, json!([1_u64 << 40, 1_u64 << 40])), ""),
        (json!({"$arena": {"slab": 0, "offset": 0, "name": "x", "dtype": "float99", "shape": [1]}}), "float99"),
        (json!({"$arena": 1}), "$arena"),
    ] {
        let answer = raw.ask("call", &json!({"function": "echo", "args": [value]}));
        assert!(answer["error"].to_string().contains(names) && answer["error"].is_object(), "{value}: {answer}");
    }
    // Gives back what was never lent.
    let ranges = json!([{"slab": 0, "offset": 0}, {"slab": 7777, "offset": 1}]);
    assert!(raw.ask("arena.release", &json!({"ranges": ranges}))["result"].is_object());
    let params = json!({"function": "echo", "args": [lent(0, 64, json!([2]))], "released": ranges});
    let answer = raw.ask("call", &params);
    assert_eq!(answer["result"]["value"]["$tensor"]["shape"], json!([2]), "what is handed on is published: {answer}");
    assert_eq!(raw.ask("call", &json!({"function": "echo", "args": [5]}))["result"]["value"], 5);
}

#[test]
fn arena_ranges_of_an_invalid_message_are_released() {
    let running = Running::start(|_| {});
    let _provider = echoing(&running);
    let (mut raw, _) = Raw::connect(&running);
    let fd = Slab::create(4096).unwrap().fd().try_clone_to_owned().unwrap();
    assert!(raw.open_slab(0, 4096, vec![fd])["result"].is_object());
    let lent =
        |offset: u64| json!({"$arena": {"slab": 0, "offset": offset, "name": "x", "dtype": "uint8", "shape": [1]}});
    let gone = json!({"$object": {"epoch": 1, "id": 12345, "type": "", "methods": []}});
    let args = json!([lent(0), {"before": lent(64), "gone": gone, "lost": [lent(128)]}, {"$tuple": [lent(192)]}]);
    let params = json!({"function": "echo", "args": args, "kwargs": {"more": {"$map": [["$x", lent(256)]]}}});
    let refused = raw.ask("call", &params);
    assert!(refused["error"].to_string().contains("create the object again"), "{refused}");
    let answer = raw.ask("call", &json!({"function": "echo", "args": [1]}));
    let mut released: Vec<_> = answer["result"]["released"].as_array().unwrap().iter().collect();
    released.sort_by_key(|range| range["offset"].as_u64());
    let offsets: Vec<_> = released.iter().map(|range| range["offset"].as_u64().unwrap()).collect();
    assert_eq!(offsets, [0, 64, 128, 192, 256], "{answer}");
}

#[test]
fn callers_that_stop_midway_or_do_not_read_block_no_other() {
    let running = Running::start(|_| {});
    let provider = echoing(&running);
    let (half, _) = Raw::connect(&running);
    rustix::io::write(&half.socket, &[200, 0, 0, 0, 0, 0, 0, 0, b'{']).unwrap();
    let (garbage, _) = Raw::connect(&running);
    rustix::io::write(&garbage.socket, &[255; 64]).unwrap();
    let (mut reader, _) = Raw::connect(&running);
    let (deaf, _) = Raw::connect(&running);
    // Far more answers than any socket takes, for one who reads none.
    let long = json!({"jsonrpc": "2.0", "id": 1, "method": "call", "params": {"function": "echo", "args": ["x".repeat(1 << 20)]}}).to_string();
    deaf.socket.set_nonblocking(true).unwrap();
    for _ in 0..100 {
        if send_all(deaf.socket.as_fd(), &Frame::new(long.as_bytes().to_vec())).is_err() {
            break;
        }
        assert_eq!(reader.ask("call", &json!({"function": "echo", "args": [1]}))["result"]["value"], 1);
    }
    assert_eq!(reader.ask("call", &json!({"function": "echo", "args": [2]}))["result"]["value"], 2);
    drop((half, garbage, deaf));
    let start = Instant::now();
    while provider.callers() > 1 {
        assert!(start.elapsed() < Duration::from_secs(60), "{} callers", provider.callers());
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(reader.ask("call", &json!({"function": "echo", "args": [3]}))["result"]["value"], 3);
}
