//! Results and arguments that are too long for a message: long bytes and texts become tensors, other values fail their
//! call only.

use crate::support::{Door, int, none};
use cotensor_core::{DType, ErrorKind};
use cotensor_daemon::testing::Running;
use cotensor_functions::{Arguments, Functions, Options, Provider, Value};
use cotensor_store::StoreReports;
use std::sync::Arc;

/// Texts that stay in the message. Each byte takes six bytes of JSON, together 18 MB.
fn long_list() -> Value {
    Value::List(vec![Value::from("\u{1}".repeat(60_000)); 50])
}

fn provide(running: &Running, door: &Arc<Door>) -> Provider {
    let at = Arc::clone(door);
    Provider::builder(running.connect("provider"))
        .function("long", Options::default(), |_, _| Ok(long_list()))
        .function("numbers", Options::default(), |_, _| Ok(Value::List(vec![Value::Int(i64::MAX); (1 << 20) - 8])))
        .function("task", Options::default().task(), |_, _| Ok(long_list()))
        .function("echo", Options::default(), |arguments, _| Ok(arguments.get(0, "value")?.clone()))
        .function("object", Options::default().managed(), |_, _| Ok(7.into()))
        .function("both", Options::default(), |_, context| {
            let tensor = context.tensor("large", DType::U8, &[40 << 20], &vec![3; 40 << 20])?;
            Ok(Value::List(vec![tensor.into(), long_list()]))
        })
        .function("wait", Options::default(), move |_, _| {
            at.pass();
            Ok(5.into())
        })
        .start()
        .unwrap()
}

#[test]
fn result_that_is_too_long_fails_only_its_call() {
    let (running, door) = (Running::start(|_| {}), Arc::new(Door::default()));
    let provider = provide(&running, &door);
    let functions = Functions::new(running.connect("caller"));
    let object = functions.call("object", &none()).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| functions.call("wait", &none()));
        door.waits_for(1);
        for name in ["long", "numbers", "task"] {
            let error = functions.call(name, &none()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
            assert!(error.to_string().contains("result") && error.to_string().contains("tensor"), "{name}: {error}");
        }
        door.open();
        assert_eq!(int(waiting.join().unwrap()), 5, "a concurrent call");
    });
    let task = functions.submit("long", &none()).unwrap();
    task.wait(None).unwrap();
    assert_eq!(task.result().unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(task.status().unwrap().state.is_final(), "the task has ended");
    assert_eq!(int(functions.call("echo", &none().arg(object))), 7, "the caller's object is valid");
    assert_eq!(provider.callers(), 1, "one connection for all");
}

#[test]
fn argument_that_is_too_long_fails_only_its_call() {
    let (running, door) = (Running::start(|_| {}), Arc::new(Door::default()));
    let provider = provide(&running, &door);
    let functions = Functions::new(running.connect("caller"));
    let numbers = Value::List(vec![Value::Int(i64::MAX); (1 << 20) - 8]);
    for long in [long_list(), numbers, Value::List(vec![Value::from("x".repeat(60_000)); 300])] {
        let error = functions.call("echo", &none().arg(long)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("argument") && error.to_string().contains("tensor"), "{error}");
    }
    assert_eq!(int(functions.call("echo", &none().arg(3))), 3);
    assert_eq!(provider.callers(), 1);
}

#[test]
fn long_bytes_and_texts_travel_as_tensors() {
    let (running, door) = (Running::start(|_| {}), Arc::new(Door::default()));
    let _provider = provide(&running, &door);
    let functions = Functions::new(running.connect("caller"));
    for len in [64 << 10, (64 << 10) + 1, 20 << 20] {
        let (bytes, text) = (vec![0xa5; len], "é".repeat(len / 2));
        let value = Value::List(vec![Value::Bytes(bytes.clone()), text.as_str().into()]);
        let echoed = functions.call("echo", &Arguments::new().arg(value)).unwrap();
        let [Value::Bytes(back), Value::String(text_back)] = echoed.as_list().unwrap() else {
            panic!("{}", echoed.kind())
        };
        assert!(*back == bytes && *text_back == text, "{len} bytes");
    }
    running.settles_at(0);
}

#[test]
fn arena_ranges_of_an_unsent_result_are_reclaimed() {
    let (running, door) = (Running::start(|_| {}), Arc::new(Door::default()));
    let _provider = provide(&running, &door);
    let functions = Functions::new(running.connect("caller"));
    // Together more than the arena holds.
    for _ in 0..5 {
        assert_eq!(functions.call("both", &none()).unwrap_err().kind(), ErrorKind::Unsupported);
    }
    let echoed = functions.call("echo", &none().arg(Value::Bytes(vec![1; 1 << 20]))).unwrap();
    assert_eq!(echoed.kind(), "bytes");
    assert_eq!(running.daemon.store().stats().peak_memory_bytes, 0, "all of them were in the arena");
}
