//! `call` and `tasks` with a daemon, a provider and a command in separate processes.

use crate::support::{Daemon, until};
use cotensor::core::DType;
use cotensor_client::ClientStore;
use cotensor_functions::{Arguments, Context, Failure, Managed, Object, Options, Provider, Value};
use serde_json::{Value as Json, json};
use std::fs;
use std::time::Duration;

struct Thing;

impl Managed for Thing {
    fn call(&self, method: &str, _: &Arguments, _: &Context) -> Result<Value, Failure> {
        Err(Failure::no_method(method))
    }
}

/// A provider in this process.
fn provider(daemon: &Daemon) -> Provider {
    let store = ClientStore::connect(Some(&daemon.socket()), "provider").unwrap();
    Provider::builder(store)
        .function("echo", Options::new("Gives its arguments back."), |arguments, _| {
            let entries =
                [("args", Value::List(arguments.args.clone())), ("kwargs", Value::Map(arguments.kwargs.clone()))];
            Ok(Value::Map(entries.map(|(name, value)| (name.to_owned(), value)).into()))
        })
        .function("first", Options::default(), |arguments, _| Ok(arguments.get(0, "value")?.clone()))
        .function("sum", Options::default(), |arguments, _| {
            let bytes = arguments.get(0, "tensor")?.as_tensor()?.bytes().unwrap_or_default();
            Ok(bytes.iter().map(|&byte| i64::from(byte)).sum::<i64>().into())
        })
        .function("twice", Options::default(), |arguments, context| {
            let tensor = arguments.get(0, "tensor")?.as_tensor()?;
            let bytes: Vec<u8> = tensor.bytes().unwrap_or_default().iter().map(|byte| byte * 2).collect();
            Ok(context.tensor("twice", DType::U8, tensor.shape(), &bytes)?.into())
        })
        .function("thing", Options::default(), |_, _| Ok(Object::new(Thing).into()))
        .function("fails", Options::default(), |_, _| {
            Err(Failure { trace: "line 3".into(), ..Failure::new("ValueError", "no such luck") })
        })
        .function("forever", Options::new("Until it is cancelled.").task(), |_, context| {
            loop {
                context.check()?;
                std::thread::sleep(Duration::from_millis(1));
            }
        })
        .start()
        .unwrap()
}

fn text(output: Vec<u8>) -> String {
    String::from_utf8(output).unwrap()
}

#[test]
fn arguments_can_be_json_text_tensors_and_files() {
    let daemon = Daemon::start(&[]);
    let _provider = provider(&daemon);
    let words = [
        "echo",
        "1",
        "-2.5",
        "null",
        "[true, {\"a\": \"b\"}]",
        "plain text",
        "\"5\"",
        "2024-01-01",
        "x=y=z",
        "n=3",
        "_t=yes",
    ];
    let answer = daemon.json(&[&["call"][..], &words].concat());
    assert_eq!(answer["function"], "echo");
    let args = json!([1, -2.5, null, [true, {"a": "b"}], "plain text", "5", "2024-01-01"]);
    assert_eq!(answer["result"], json!({"args": args, "kwargs": {"x": "y=z", "n": 3, "_t": "yes"}}));
    assert_eq!(text(daemon.ok(&["call", "first", "hello"])), "hello\n");
    assert_eq!(text(daemon.ok(&["call", "first", "[1]"])), "[\n  1\n]\n");
    assert_eq!(daemon.json(&["call", "first", r#"{"$bytes": "00ff"}"#])["result"], json!({"$bytes": "00ff"}));

    fs::write(daemon.path("x.bin"), [1, 2, 3]).unwrap();
    daemon.ok(&["put", "stored", "x.bin", "--dtype", "uint8", "--shape", "3"]);
    daemon.ok(&["put", "other", "x.bin", "--dtype", "uint8", "--shape", "3,1"]);
    daemon.ok(&["get", "stored", "x.npy"]);
    daemon.ok(&["get", "--all", "", "two.safetensors"]);
    for tensor in ["@stored", "@x.npy", "@two.safetensors#stored", r#"{"$tensor": "stored"}"#, "tensor=@./x.npy"] {
        assert_eq!(daemon.json(&["call", "sum", tensor])["result"], 6, "{tensor}");
    }
    let handle = daemon.json(&["call", "first", r#"{"deep": [{"$tensor": "other"}]}"#])["result"]["deep"][0].take();
    let expected = json!({"name": "other", "version": 1, "dtype": "uint8", "shape": [3, 1], "bytes": 3});
    assert_eq!(handle, json!({ "$tensor": expected }));
    // Tensors of files are freed when the commands end.
    until("the arguments are freed", || daemon.json(&["ls", "call/"])["tensors"] == json!([]));

    for (words, complaint) in [
        (&["sum", "@nothing"][..], "nothing"),
        (&["sum", "@nothing.npy"], "nothing.npy"),
        (&["sum", "@two.safetensors"], "#NAME"),
        (&["sum", "@two.safetensors#none"], "none"),
        (&["sum", "[1"], "[1"),
        (&["sum", "18446744073709551615"], "64 bits"),
        (&["sum", "18446744073709551616"], "64 bits"),
        (&["sum", "a=[1, -9223372036854775809]"], "64 bits"),
        (&["sum", "a=1", "a=2"], "twice"),
        (&["sum", "1", "--timeout", "0"], "--timeout"),
        (&["sum", "--list", "--task"], "--list"),
        (&[], "NAME"),
    ] {
        daemon.expect_error(&[&["call"], words].concat(), 2, &[complaint]);
    }
}

#[test]
fn results_are_written_and_errors_give_advice() {
    let daemon = Daemon::start(&[]);
    daemon.expect_error(&["call", "f"], 2, &["no process offers functions"]);
    let provider = provider(&daemon);
    fs::write(daemon.path("x.bin"), [1, 2, 3]).unwrap();
    daemon.ok(&["put", "x", "x.bin", "--dtype", "uint8", "--shape", "3"]);
    assert_eq!(text(daemon.ok(&["call", "twice", "@x", "--output", "y.npy"])), "twice: uint8 [3], 3 B\n");
    let lost = daemon.run(&["call", "twice", "@x"]);
    assert!(
        lost.status.success() && text(lost.stderr).contains("--output"),
        "the notice names the option that keeps the result"
    );
    daemon.ok(&["put", "y", "y.npy"]);
    assert_eq!(daemon.ok(&["get", "y", "-", "--format", "raw"]), [2, 4, 6]);
    assert_eq!(daemon.ok(&["call", "twice", "@x", "-o", "-"]), fs::read(daemon.path("y.npy")).unwrap());
    daemon.ok(&["call", "echo", "@x", "again=@y", "--output", "both.safetensors"]);
    for (inner, bytes) in [("args.0", [1, 2, 3]), ("kwargs.again", [2, 4, 6])] {
        daemon.ok(&["put", "z", "both.safetensors", "--tensor", inner]);
        assert_eq!(daemon.ok(&["get", "z", "-", "--format", "raw"]), bytes);
    }
    daemon.expect_error(&["call", "first", "1", "--output", "z.npy"], 2, &["no tensor"]);
    daemon.expect_error(&["call", "echo", "@x", "@y", "--output", "z.npy"], 2, &["safetensors"]);
    assert!(!daemon.path("z.npy").exists());
    let object = daemon.run(&["call", "thing"]);
    assert!(text(object.stdout).contains("$object") && text(object.stderr).contains("released"));

    let listing = daemon.json(&["call", "--list", "e"]);
    let function = &listing["functions"][0];
    assert_eq!((&function["function"]["name"], listing["functions"].as_array().unwrap().len()), (&json!("echo"), 1));
    assert_eq!(
        function["provider"],
        json!({"client": format!("provider[{}]", std::process::id()), "epoch": provider.epoch(), "group": provider.epoch()})
    );
    let table = text(daemon.ok(&["call", "--list"]));
    assert!(
        table.contains("Gives its arguments back.") && table.contains("task") && table.lines().count() == 8,
        "{table}"
    );
    daemon.expect_error(&["call", "ecko"], 2, &["ecko", "did you mean echo?"]);
    daemon.expect_error(&["call", "zzz"], 2, &["--list"]);
    daemon.expect_error(&["call", "fails"], 1, &["fails", "ValueError: no such luck", "line 3"]);
    daemon.expect_error(&["call", "first"], 2, &["value", "missing"]);
    daemon.expect_error(&["call", "forever", "--timeout", "0.05"], 1, &["did not finish within 0.05 s"]);
    // An abandoned call leaves nothing behind.
    assert_eq!(text(daemon.ok(&["call", "first", "1"])), "1\n");
}

#[test]
fn tasks_can_be_submitted_listed_awaited_and_cancelled() {
    let daemon = Daemon::start(&[]);
    assert_eq!(daemon.json(&["tasks"]), json!({"tasks": [], "left_off": 0}));
    let provider = provider(&daemon);
    fs::write(daemon.path("x.bin"), [1, 2, 3]).unwrap();
    daemon.ok(&["put", "x", "x.bin", "--dtype", "uint8", "--shape", "3"]);
    let submit = |words: &[&str]| text(daemon.ok(&[&["call", "--task"], words].concat())).trim().to_owned();
    let twice = submit(&["twice", "@x"]);
    assert_eq!(daemon.json(&["tasks", &twice, "--wait"])["state"], "completed");
    assert_eq!(text(daemon.ok(&["tasks", &twice, "--wait", "--result", "-o", "y.npy"])), "twice: uint8 [3], 3 B\n");
    daemon.ok(&["put", "y", "y.npy"]);
    assert_eq!(daemon.ok(&["get", "y", "-", "--format", "raw"]), [2, 4, 6]);
    assert_eq!(daemon.json(&["tasks", &twice, "--result"])["result"]["$tensor"]["shape"], json!([3]));

    let failing = daemon.json(&["call", "--task", "fails"]);
    assert_eq!(failing["function"], "fails");
    let failing = failing["task"].as_str().unwrap();
    daemon.expect_error(&["tasks", failing, "--wait"], 1, &["no such luck"]);
    let waited = daemon.run(&["tasks", failing, "--wait"]);
    let both = text(waited.stdout) + &text(waited.stderr);
    assert_eq!(both.matches("no such luck").count(), 1, "a failure is printed once: {both}");
    let cancelled = daemon.run(&["tasks", &twice, "--cancel"]);
    assert!(text(cancelled.stderr).contains("already completed; nothing was cancelled"));
    daemon.expect_error(&["tasks", failing, "--result"], 1, &["ValueError"]);
    let forever = submit(&["forever"]);
    let state = |task: &str| daemon.json(&["tasks", task])["state"].as_str().unwrap().to_owned();
    until("the task runs", || state(&forever) == "running");
    daemon.expect_error(&["tasks", &forever, "--wait", "--timeout", "0.05"], 1, &[&forever, "still running"]);
    daemon.expect_error(&["tasks", &forever, "--result"], 2, &["wait for its end"]);

    let listed = |arguments: &[&str]| {
        let listing = daemon.json(&[&["tasks"], arguments].concat());
        let tasks = listing["tasks"].as_array().unwrap().clone();
        (tasks.iter().map(|task| task["task"].as_str().unwrap().to_owned()).collect::<Vec<_>>(), listing)
    };
    let (all, listing) = listed(&[]);
    assert_eq!(all, [forever.clone(), failing.to_owned(), twice.clone()]);
    let task: &Json = &listing["tasks"][0];
    assert_eq!((&task["function"], &task["state"]), (&json!("forever"), &json!("running")));
    assert_eq!(task["provider"], format!("provider[{}]", std::process::id()));
    assert!(task["client"].as_str().unwrap().starts_with("cotensor call["));
    assert_eq!(listed(&["--state", "failed"]).0, [failing]);
    assert_eq!(listed(&["--limit", "1"]).1["left_off"], 2);
    let table = text(daemon.ok(&["tasks", "--limit", "2"]));
    assert!(table.contains("no such luck") && table.contains("and 1 more"), "{table}");

    assert_eq!(daemon.json(&["tasks", &forever, "--cancel"])["state"], "cancelled");
    daemon.expect_error(&["tasks", &forever, "--wait"], 1, &["cancelled"]);
    assert!(text(daemon.ok(&["tasks", &forever])).contains("cancelled"));
    daemon.expect_error(&["tasks", "7"], 2, &["TASK"]);
    daemon.expect_error(&["tasks", &format!("{:x}-99", provider.epoch())], 2, &["99"]);
    daemon.expect_error(&["tasks", "1-1"], 2, &["provider has ended"]);
    daemon.expect_error(&["tasks", "--state", "tired"], 2, &["pending"]);
    drop(provider);
    daemon.expect_error(&["tasks", &twice], 2, &["provider has ended"]);
}
