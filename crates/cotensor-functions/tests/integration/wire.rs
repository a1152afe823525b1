//! A provider's answers to raw frames, including invalid ones.

use cotensor_client::protocol::{self as p, provider};
use cotensor_daemon::testing::{Running, until};
use cotensor_functions::{Options, Provider, Value};
use cotensor_memory::Slab;
use cotensor_memory::process::create_memfd;
use cotensor_rpc::{Decoder, Frame, send_all};
use serde_json::{Value as Json, json};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

struct Raw {
    socket: UnixStream,
    decoder: Decoder,
}

impl Raw {
    /// A socket to the provider of `echo`, from the daemon.
    fn connect(running: &Running) -> (Self, p::FoundFunction) {
        let connection = cotensor_client::connect(&running.socket, Box::new(|_, _, _| {})).unwrap();
        let hello = p::HelloParams { protocol: p::PROTOCOL, client: "raw".into(), ..Default::default() };
        connection.call::<p::Hello>(&hello, Vec::new(), None).unwrap();
        let params = p::LookupFunctionParams { name: "echo".into(), connected: Vec::new() };
        let (found, fds) = connection.call::<p::LookupFunction>(&params, Vec::new(), None).unwrap();
        let known = p::LookupFunctionParams { name: "echo".into(), connected: vec![found.provider.epoch] };
        let (_, none) = connection.call::<p::LookupFunction>(&known, Vec::new(), None).unwrap();
        assert!(none.is_empty(), "a connected caller gets no second socket");
        let socket = UnixStream::from(fds.into_iter().next().unwrap());
        (Self { socket, decoder: Decoder::default() }, found)
    }

    fn send(&self, text: &str) {
        send_all(self.socket.as_fd(), &Frame::new(text.as_bytes().to_vec())).unwrap();
    }

    fn open_slab(&mut self, slab: u64, bytes: u64, fds: Vec<OwnedFd>) -> Json {
        let params = json!({"slab": slab, "bytes": bytes});
        let body =
            json!({"jsonrpc": "2.0", "id": 1, "method": "arena.open", "params": params}).to_string().into_bytes();
        send_all(self.socket.as_fd(), &Frame { body, fds }).unwrap();
        self.receive()
    }

    fn receive(&mut self) -> Json {
        loop {
            if let Some(frame) = self.decoder.take().unwrap() {
                return serde_json::from_slice(&frame.body).unwrap();
            }
            assert!(self.decoder.fill(self.socket.as_fd()).unwrap() > 0, "the provider ended the connection");
        }
    }

    fn call(&mut self, method: &str, params: &Json) -> Json {
        self.send(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string());
        let answer = self.receive();
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
    raw.send(&call(7, json!([1, 2.5, {"a": null}])).to_string());
    assert_eq!(raw.receive(), json!({"jsonrpc": "2.0", "id": 7, "result": {"value": [1, 2.5, {"a": null}]}}));
    for (text, code) in
        [("{", -32700), ("[]", -32600), ("1", -32600), (r#"{"jsonrpc":"2.0","id":1,"method":"os.system"}"#, -32601)]
    {
        raw.send(text);
        assert_eq!(raw.receive()["error"]["code"], code, "{text}");
    }
    let notification = json!({"jsonrpc": "2.0", "method": "call", "params": {"function": "echo", "args": [0]}});
    raw.send(&notification.to_string());
    raw.send(&json!([call(1, json!(1)), notification, 5, call(2, json!("two"))]).to_string());
    let answers = raw.receive();
    let answers = answers.as_array().unwrap();
    assert_eq!(answers.len(), 3, "the notification has no answer: {answers:?}");
    assert!(answers.iter().any(|answer| answer["id"] == 2 && answer["result"]["value"] == "two"));
    raw.send(&json!([notification, notification]).to_string());
    raw.send(&call(9, json!(9)).to_string());
    assert_eq!(raw.receive()["id"], 9, "a batch of notifications is not answered");
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
    raw.send(&batch.to_string());
    let answers = raw.receive();
    let answer = |id: u64| answers.as_array().unwrap().iter().find(|answer| answer["id"] == id).unwrap().clone();
    assert!(answer(1)["error"]["message"].as_str().unwrap().contains("tensor"), "{}", answer(1)["error"]);
    assert_eq!(answer(2)["result"]["value"], "short");
    assert_eq!(answer(3)["result"]["value"].as_array().unwrap().len(), 140);
    // Both answers fit alone, but not together.
    raw.send(&json!([1, 2].map(|id| call(id, json!({"function": "half"})))).to_string());
    let answers = raw.receive();
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
        let error = raw.call(method.name, &json!({"nonsense": true}));
        // These methods need no parameters.
        let fine = match method.name {
            "task.list" => error["result"]["tasks"] == json!([]),
            "rpc.discover" => error["result"]["openrpc"].is_string(),
            _ => false,
        };
        assert!(fine || error["error"]["code"] == -32602, "{}: {error}", method.name);
    }
    let epoch = found.provider.epoch;
    let forged = json!({"$object": {"id": 1, "epoch": epoch}});
    let object = raw.call("call", &json!({"function": "kept"}))["result"]["value"]["$object"].clone();
    for (value, names) in [
        (json!({"$tensor": {"id": {"name_id": 99, "version": 1}, "dtype": "float32", "shape": [1]}}), "version"),
        (json!({"$tensor": {"id": {"name_id": 99, "version": 1}, "dtype": "float99", "shape": [1]}}), "float99"),
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
        let answer = raw.call("call", &json!({"function": "echo", "args": [value]}));
        assert!(answer["error"].to_string().contains(names), "{value}: {answer}");
    }
    // As a float, the number would lose digits.
    for number in ["18446744073709551616", "-9223372036854775809", "[{\"a\": 99999999999999999999}]"] {
        raw.send(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"call","params":{{"function":"echo","args":[{number}]}}}}"#
        ));
        assert!(raw.receive()["error"]["message"].to_string().contains("64 bits"), "{number}");
    }
    let deep = "[".repeat(100) + &"]".repeat(100);
    raw.send(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"call","params":{{"function":"echo","args":[{deep}]}}}}"#));
    assert!(raw.receive()["error"]["message"].to_string().contains("deeper"));
    // An object reference belongs to one caller.
    let (mut other, _) = Raw::connect(&running);
    assert!(other.call("object.call", &json!({"object": object, "method": "get"}))["error"].is_object());
    assert_eq!(raw.call("object.call", &json!({"object": object, "method": "get"}))["result"]["value"], 1);
    assert!(raw.call("object.release", &json!({"object": object}))["result"].is_object());
    assert!(raw.call("object.release", &json!({"object": object}))["error"].is_object(), "once");
    assert!(raw.call("call", &json!({"function": "echo", "args": [forged]}))["error"].is_object());
}

#[test]
fn arena_accepts_only_sealed_slabs_and_ranges_within_them() {
    let running = Running::start(|_| {});
    let _provider = echoing(&running);
    let (mut raw, _) = Raw::connect(&running);
    let slab = |bytes| Slab::create(bytes).unwrap().fd().try_clone_to_owned().unwrap();
    let unsealed = || create_memfd("unsealed").unwrap();
    for (bytes, fds, names) in [
        (4096, Vec::new(), "descriptor"),
        (0, vec![unsealed()], "seals"),
        (8192, vec![slab(4096)], "4096"),
        (4096, vec![OwnedFd::from(tempfile::tempfile().unwrap())], "memfd"),
    ] {
        let answer = raw.open_slab(0, bytes, fds);
        assert!(answer["error"]["message"].to_string().contains(names), "{names}: {answer}");
    }
    for number in 0..288 {
        assert!(raw.open_slab(number, 4096, vec![slab(4096)])["result"].is_object());
    }
    assert!(raw.open_slab(0, 4096, vec![slab(4096)])["error"].to_string().contains("open"), "once");
    assert!(raw.open_slab(288, 4096, vec![slab(4096)])["error"].to_string().contains("288"), "more than 288 slabs");
    raw.send(&json!({"jsonrpc": "2.0", "method": "arena.close", "params": {"slabs": [287, 287, 7777]}}).to_string());
    assert_eq!(raw.receive()["method"], "arena.close", "the provider closes slabs, too");
    assert!(raw.open_slab(288, 4096, vec![slab(4096)])["result"].is_object(), "room for another one");
    let tensor = |slab: u64, offset: u64, shape: Json| json!({"$arena": {"slab": slab, "offset": offset, "name": "x", "dtype": "uint8", "shape": shape}});
    for (value, names) in [
        (tensor(999, 0, json!([1])), "999"),
        (tensor(0, 4096, json!([1])), "4096"),
        (tensor(0, 64, json!([4096])), "4096"),
        (tensor(0, u64::MAX, json!([2])), "18446744073709551615"),
        (tensor(0, 1, json!([1])), "multiple"),
        (tensor(0, 0, json!([1_u64 << 40, 1_u64 << 40])), ""),
        (json!({"$arena": {"slab": 0, "offset": 0, "name": "x", "dtype": "float99", "shape": [1]}}), "float99"),
        (json!({"$arena": 1}), "$arena"),
    ] {
        let answer = raw.call("call", &json!({"function": "echo", "args": [value]}));
        assert!(answer["error"].to_string().contains(names) && answer["error"].is_object(), "{value}: {answer}");
    }
    // Releases ranges that were never sent.
    let ranges = json!([{"slab": 0, "offset": 0}, {"slab": 7777, "offset": 1}]);
    assert!(raw.call("arena.release", &json!({"ranges": ranges}))["result"].is_object());
    let params = json!({"function": "echo", "args": [tensor(0, 64, json!([2]))], "released": ranges});
    let answer = raw.call("call", &params);
    assert_eq!(
        answer["result"]["value"]["$tensor"]["shape"],
        json!([2]),
        "a tensor from the caller's arena is published: {answer}"
    );
    assert_eq!(raw.call("call", &json!({"function": "echo", "args": [5]}))["result"]["value"], 5);
}

#[test]
fn arena_ranges_of_an_invalid_message_are_released() {
    let running = Running::start(|_| {});
    let _provider = echoing(&running);
    let (mut raw, _) = Raw::connect(&running);
    let fd = Slab::create(4096).unwrap().fd().try_clone_to_owned().unwrap();
    assert!(raw.open_slab(0, 4096, vec![fd])["result"].is_object());
    let tensor =
        |offset: u64| json!({"$arena": {"slab": 0, "offset": offset, "name": "x", "dtype": "uint8", "shape": [1]}});
    let missing = json!({"$object": {"epoch": 1, "id": 12345, "type": "", "methods": []}});
    let args =
        json!([tensor(0), {"first": tensor(64), "missing": missing, "lost": [tensor(128)]}, {"$tuple": [tensor(192)]}]);
    let params = json!({"function": "echo", "args": args, "kwargs": {"more": {"$map": [["$x", tensor(256)]]}}});
    let refused = raw.call("call", &params);
    assert!(refused["error"].to_string().contains("create the object again"), "{refused}");
    let answer = raw.call("call", &json!({"function": "echo", "args": [1]}));
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
    let (unread, _) = Raw::connect(&running);
    // More answers than the socket's buffer holds, for a caller that reads none.
    let long = json!({"jsonrpc": "2.0", "id": 1, "method": "call", "params": {"function": "echo", "args": ["x".repeat(1 << 20)]}}).to_string();
    unread.socket.set_nonblocking(true).unwrap();
    for _ in 0..100 {
        if send_all(unread.socket.as_fd(), &Frame::new(long.as_bytes().to_vec())).is_err() {
            break;
        }
        assert_eq!(reader.call("call", &json!({"function": "echo", "args": [1]}))["result"]["value"], 1);
    }
    assert_eq!(reader.call("call", &json!({"function": "echo", "args": [2]}))["result"]["value"], 2);
    drop((half, garbage, unread));
    until("one caller is left", || provider.callers() <= 1);
    assert_eq!(reader.call("call", &json!({"function": "echo", "args": [3]}))["result"]["value"], 3);
}
