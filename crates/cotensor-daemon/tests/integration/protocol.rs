//! The protocol of docs/reference/protocol.md, for clients in other languages.

use crate::support::Running;
use cotensor_client::protocol::{METHODS, PROTOCOL};
use cotensor_core::DType;
use cotensor_functions::{Options, Provider};
use cotensor_memory::testing::refuse_executable_memfds;
use cotensor_rpc::{Decoder, Frame, send_all};
use serde_json::{Value as Json, json};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Raw(UnixStream, Decoder);

impl Raw {
    fn connect(running: &Running) -> Self {
        Self(UnixStream::connect(&running.socket).unwrap(), Decoder::default())
    }

    fn call(&mut self, id: &Json, method: &str, params: &Json) -> Json {
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string().into_bytes();
        send_all(self.0.as_fd(), &Frame::new(body)).unwrap();
        loop {
            if let Some(frame) = self.1.take().unwrap() {
                return serde_json::from_slice(&frame.body).unwrap();
            }
            assert!(self.1.fill(self.0.as_fd()).unwrap() > 0, "the daemon ended the connection");
        }
    }
}

#[test]
fn hello_comes_before_every_other_method() {
    let running = Running::start(|_| {});
    let mut raw = Raw::connect(&running);
    let others = || METHODS.iter().map(|method| method.name).filter(|name| *name != "session.hello");
    assert!(others().count() > 20);
    for method in others() {
        let answer = raw.call(&json!(1), method, &json!({}));
        assert!(answer["error"]["message"].as_str().unwrap().contains("session.hello"), "{method}: {answer}");
    }
    let wrong = raw.call(&json!(1), "session.hello", &json!({"protocol": PROTOCOL + 1, "client": "raw"}));
    assert_eq!(wrong["error"]["data"]["field"], "protocol");
    assert!(raw.call(&json!(1), "ping", &json!({}))["error"].is_object(), "a refused hello does not count");
    let hello = raw.call(&json!(1), "session.hello", &json!({"protocol": PROTOCOL, "client": "raw"}));
    assert_eq!(hello["result"]["protocol"], PROTOCOL);
    assert_eq!(raw.call(&json!(1), "ping", &json!({}))["result"], json!({}));
}

#[test]
fn numbers_and_short_texts_are_valid_ids() {
    let running = Running::start(|_| {});
    let mut raw = Raw::connect(&running);
    raw.call(&json!(0), "session.hello", &json!({"protocol": PROTOCOL, "client": "raw"}));
    for id in [json!(-7), json!(1.5), json!(u64::MAX), json!("a text"), json!(null)] {
        let answer = raw.call(&id, "ping", &json!({}));
        assert_eq!((&answer["id"], &answer["result"]), (&id, &json!({})), "{id}");
    }
    assert_eq!(raw.call(&json!("x".repeat(300)), "ping", &json!({}))["error"]["code"], -32600);
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn python(arguments: &[&std::ffi::OsStr], folder: &Path) -> String {
    let Output { status, stdout, stderr } =
        Command::new("python3").args(arguments).current_dir(folder).output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

#[test]
fn minimal_python_client_works() {
    let running = Running::start(|_| {});
    // As in a sandbox. Without seccomp filters the client is tested without one.
    let _ = refuse_executable_memfds();
    let script = repository().join("examples/clients/minimal.py");
    assert!(std::fs::read_to_string(&script).unwrap().lines().count() < 160);
    let run = || python(&[script.as_os_str(), running.socket.as_os_str()], &repository());
    assert_eq!(run().lines().last().unwrap(), "function \"double\" not found: no client provides it");
    for in_arena in [true, false] {
        let double = |arguments: &cotensor_functions::Arguments, context: &cotensor_functions::Context| {
            let given = arguments.get(0, "x")?.as_tensor()?.bytes().unwrap_or_default().to_vec();
            let twice: Vec<u8> = given
                .chunks_exact(4)
                .flat_map(|four| (2.0 * f32::from_le_bytes([four[0], four[1], four[2], four[3]])).to_le_bytes())
                .collect();
            Ok(context.tensor("twice", DType::F32, &[twice.len() / 4], &twice)?.into())
        };
        // The result of a shared run is published. Any other small result is in the connection arena.
        let options = Options { singleflight: !in_arena, ..Options::default() };
        let builder = Provider::builder(running.connect("provider")).function("double", options, double);
        let provider = builder.start().unwrap();
        assert_eq!(run(), "got [1.0, 2.0, 3.0]\ndouble [2.0, 4.0, 6.0]\n");
        drop(provider);
        crate::support::until("the function is removed", || {
            run().ends_with("function \"double\" not found: no client provides it\n")
        });
    }
    cotensor_store::TensorStore::remove(&*running.connect("last"), "minimal/x").unwrap();
    running.settles_at(0);
}

#[test]
fn reader_of_the_protocol_document_accepts_notifications_and_errors() {
    let document = std::fs::read_to_string(repository().join("docs/reference/protocol.md")).unwrap();
    let code = document.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let running = Running::start(|_| {});
    let client = running.connect("publisher");
    let floats: Vec<u8> = [1.0_f32, 2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let spec = cotensor_store::TensorSpec::new("query", DType::F32, &[2]);
    let holder = cotensor_store::TensorStore::holder(&*client, "");
    let mut reservation = cotensor_store::TensorStore::reserve(&*client, spec, &holder).unwrap();
    reservation.write(&floats, cotensor_store::CopyReason::Put).unwrap();
    let _lease = reservation.publish().unwrap();
    // The client registers a function, so that another client's lookup sends it a notification.
    let more = "
function = {\"name\": \"f\", \"summary\": \"\", \"task\": False, \"managed\": False}
call(\"function.register\", {\"function\": function, \"epoch\": 1})
import subprocess, sys
subprocess.run([sys.executable, sys.argv[1], \"cotensor.sock\"], check=True)
try:
    call(\"tensor.get\", {\"name\": \"missing\"})
except RuntimeError as error:
    print(error)
print(call(\"ping\", {}))
";
    let folder = running.socket.parent().unwrap();
    let other = folder.join("lookup.py");
    std::fs::write(&other, format!("{code}\ncall(\"function.lookup\", {{\"name\": \"f\"}})\n")).unwrap();
    let script = folder.join("reader.py");
    std::fs::write(&script, format!("{code}{more}")).unwrap();
    let output = python(&[script.as_os_str(), other.as_os_str()], folder);
    let lines: Vec<_> = output.lines().filter(|line| !line.starts_with("[2]")).collect();
    assert!(lines.len() == 2 && lines[0].contains("missing") && lines[1] == "({}, [])", "{output}");
}
