//! Functions of clients as JSON-RPC methods over HTTP.

use crate::support::http::{receive, send};
use crate::support::processes::Processes;
use cotensor_client::protocol::{HttpEndpoint, HttpListen, HttpListenParams};
use cotensor_core::DType;
use cotensor_functions::{Arguments, Context, Failure, Managed, Object, Options, Provider, Value};
use cotensor_store::{CopyReason, StoreReports, TensorSpec, TensorStore};
use serde_json::{Value as Json, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) struct Served {
    pub(crate) processes: Processes,
    pub(crate) http: HttpEndpoint,
    pub(crate) token: String,
    pub(crate) provider: Option<Provider>,
    /// Whether the function `wait` was started, and whether it was cancelled.
    started: Arc<AtomicBool>,
    cancelled: Arc<AtomicBool>,
}

/// An object that stays with its provider.
struct Kept;

impl Managed for Kept {
    fn call(&self, method: &str, _: &Arguments, _: &Context) -> Result<Value, Failure> {
        Err(Failure::no_method(method))
    }
}

impl Served {
    pub(crate) fn start() -> Self {
        let processes = Processes::start();
        let http = processes.connect("test").request::<HttpListen>(&HttpListenParams::default()).unwrap();
        let token = std::fs::read_to_string(&http.token_file).unwrap().trim().to_owned();
        let cancelled = Arc::new(AtomicBool::new(false));
        let started = Arc::new(AtomicBool::new(false));
        let (starts, cancels) = (Arc::clone(&started), Arc::clone(&cancelled));
        let provider = Provider::builder(processes.connect("provider"))
            .function("subtract", Options::new(""), |arguments, _| {
                let number = |at: usize, name: &str| {
                    arguments.args.get(at).or_else(|| arguments.kwargs.get(name)).unwrap().as_int().unwrap()
                };
                Ok(Value::Int(number(0, "minuend") - number(1, "subtrahend")))
            })
            .function("double", Options::new(""), |arguments, context| {
                let tensor = arguments.args[0].as_tensor()?;
                let doubled: Vec<u8> =
                    tensor.typed::<f32>()?.iter().flat_map(|number| (2.0 * number).to_ne_bytes()).collect();
                let doubled = context.tensor("doubled", DType::F32, tensor.shape(), &doubled)?;
                Ok(Value::Tuple(vec![doubled.into(), tensor.name().into()]))
            })
            .function("ones", Options::new(""), |arguments, context| {
                let count = usize::try_from(arguments.args[0].as_int()?).unwrap();
                let ones: Vec<u8> = (0..count).flat_map(|_| 1f32.to_ne_bytes()).collect();
                Ok(context.tensor("ones", DType::F32, &[count], &ones)?.into())
            })
            .function("echo", Options::new(""), |arguments, _| Ok(arguments.args[0].clone()))
            .function("fail", Options::new(""), |_, _| Err(Failure::new("ZeroDivisionError", "by zero")))
            .function("keep", Options::new(""), |_, _| Ok(Object::new(Kept).into()))
            .function("wait", Options::new(""), move |_, context| {
                starts.store(true, Ordering::Relaxed);
                while context.check().is_ok() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                cancels.store(true, Ordering::Relaxed);
                Ok(Value::Null)
            })
            .start()
            .unwrap();
        Self { processes, http, token, provider: Some(provider), started, cancelled }
    }

    fn send(&self, body: &Json) -> Json {
        let answer = receive(send(
            self.http.address,
            "POST /jsonrpc",
            &self.token,
            "Content-Type: application/json\r\n",
            body.to_string().as_bytes(),
        ));
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    fn call(&self, name: &str, params: &Json) -> Json {
        self.send(&json!({"jsonrpc": "2.0", "id": 1, "method": name, "params": params}))
    }

    fn result(&self, name: &str, params: &Json) -> Json {
        let mut answer = self.call(name, params);
        assert!(answer.get("error").is_none(), "{name}{params}: {answer}");
        answer["result"].take()
    }

    fn error(&self, name: &str, params: &Json) -> Json {
        let mut answer = self.call(name, params);
        assert!(answer.get("result").is_none(), "{name}{params}: {answer}");
        answer["error"].take()
    }
}

#[test]
fn functions_are_called_by_name_alone_and_in_batches() {
    let served = Served::start();
    assert_eq!(served.result("subtract", &json!([42, 23])), 19);
    assert_eq!(served.result("subtract", &json!({"subtrahend": 23, "minuend": 42})), 19);
    let call = |id: u64, name: &str| json!({"jsonrpc": "2.0", "id": id, "method": name, "params": [id, 1]});
    let batch = served.send(&json!([call(1, "subtract"), call(2, "none"), call(3, "subtract")]));
    let mut answers: Vec<_> = batch.as_array().unwrap().clone();
    answers.sort_by_key(|answer| answer["id"].as_u64());
    assert_eq!((&answers[0]["result"], &answers[2]["result"]), (&0.into(), &2.into()));
    assert_eq!(answers[1]["error"]["code"], -32601);
    let nested = json!({"list": [1, 2.5, null, true, "ä"], "map": {"$map": [["$key", 1]]}, "nan": {"$float": "nan"}});
    assert_eq!(served.result("echo", &json!([nested])), nested);
    assert_eq!(served.result("echo", &json!([{"$tuple": [1, 2]}])), json!([1, 2]));
    assert_eq!(served.result("echo", &json!([{"$bytes": "c0ffee"}])), json!({"$bytes": "c0ffee"}));
    let short = json!({"$tensor": {"base64": "wP/u", "dtype": "uint8", "shape": [3]}});
    assert_eq!(served.result("echo", &json!([{"$bytes": short}])), json!({"$bytes": "c0ffee"}));
    let long = json!({"base64": "wP/u".repeat(30_000), "dtype": "uint8", "shape": [90_000]});
    let mut echoed = served.result("echo", &json!([{"$bytes": {"$tensor": long}}]));
    assert!(echoed["$bytes"]["$tensor"].as_object_mut().unwrap().remove("name").is_none_or(|name| name.is_string()));
    assert_eq!(echoed["$bytes"]["$tensor"], long);
    let long = "x".repeat(100_000);
    assert_eq!(served.result("echo", &json!([long])), long.as_str());
}

#[test]
fn tensors_are_lists_base64_and_names() {
    let served = Served::start();
    let doubled = |tensor: Json| {
        let result = served.result("double", &json!([{"$tensor": tensor}]));
        let tensor = result[0]["$tensor"].clone();
        assert_eq!((&tensor["dtype"], &tensor["shape"]), (&"float32".into(), &json!([2, 2])));
        (tensor["data"].clone(), result[1].as_str().unwrap().to_owned())
    };
    let expected = json!([[2.0, 4.0], [6.0, 8.0]]);
    assert_eq!(doubled(json!({"data": [[1, 2], [3, 4]], "dtype": "float32"})).0, expected);
    assert_eq!(doubled(json!({"data": [[1, 2], [3, 4.0]]})).0, expected);
    // Four numbers of float32.
    let base64 = "AACAPwAAAEAAAEBAAACAQA==";
    assert_eq!(doubled(json!({"base64": base64, "dtype": "float32", "shape": [2, 2]})).0, expected);
    let store = served.processes.connect("client");
    let spec = TensorSpec::new("numbers", DType::F32, &[2, 2]);
    let mut reservation = store.reserve(spec, &store.holder("")).unwrap();
    let bytes: Vec<u8> = [1f32, 2.0, 3.0, 4.0].iter().flat_map(|number| number.to_ne_bytes()).collect();
    reservation.write(&bytes, CopyReason::Put).unwrap();
    let kept = reservation.publish().unwrap();
    assert_eq!(doubled(json!("numbers")).0, expected);
    assert_eq!(doubled(json!({"name": "numbers"})), (expected, "numbers".to_owned()));

    let many = served.result("ones", &json!([5000]));
    assert!(many["$tensor"]["data"].is_null() && many["$tensor"]["base64"].as_str().unwrap().starts_with("AACAPwAA"));
    let large = served.error("ones", &json!([3 << 20]));
    assert!(large["code"] == -32005 && large["message"].as_str().unwrap().contains("8 MiB"), "{large}");
    let used = served.result("ones", &json!([1 << 20]));
    assert_eq!(used["$tensor"]["shape"], json!([1 << 20]));
    // Arguments and results are freed with the calls.
    drop(kept);
    crate::support::until("nothing is leased", || store.stats().total_tensors == 0);
}

#[test]
fn wrong_arguments_and_failures_are_errors_with_their_place() {
    let served = Served::start();
    for (params, code, field) in [
        (json!([{"$tensor": {"data": [[1], [2, 3]]}}]), -32602, "params.0.data"),
        (json!({"x": [{"$tensor": {"name": "none"}}]}), -32001, "params.x.0"),
        (json!([{"$tensor": {"base64": "!", "dtype": "uint8", "shape": [1]}}]), -32602, "params.0.base64"),
        (json!([{"$tensor": {"base64": "AAA=", "dtype": "uint8", "shape": [1]}}]), -32602, "params.0.shape"),
        (json!([{"$tensor": {"base64": "AAA=", "shape": [2]}}]), -32602, "params.0.dtype"),
        (json!([{"$tensor": {"data": 1, "name": "x"}}]), -32602, "params.0"),
        (json!([{"$tensor": {"date": 1}}]), -32602, "params.0"),
        (json!([{"x": [1, {"$float": 1}]}]), -32602, "params.0.x.1"),
        (json!([{"$tuple": "x"}]), -32602, "params.0"),
        (json!([{"$tuple": [], "x": 1}]), -32602, "params.0"),
        (json!([{"x": 1, "$tuple": []}]), -32602, "params.0"),
        (json!([{"$bytes": {"$tuple": []}}]), -32602, "params.0"),
        (json!({"$tensor": {"data": 1}}), -32602, "params"),
        (vec![json!({"$tensor": {"data": 1}}); 1025].into(), -32602, "params.1024"),
        (json!([{"$object": {"id": 1, "epoch": 1}}]), -32602, "params.0"),
        (json!([{"$arena": {"slab": 1, "offset": 0}}]), -32602, "params.0"),
    ] {
        let error = served.error("echo", &params);
        assert_eq!((&error["code"], &error["data"]["field"]), (&code.into(), &field.into()), "{params}: {error}");
    }
    let failed = served.error("fail", &json!([]));
    assert_eq!((&failed["code"], &failed["data"]["type"]), (&(-32050).into(), &"ZeroDivisionError".into()));
    assert!(served.error("keep", &json!([]))["message"].as_str().unwrap().contains("stays with its provider"));
    assert_eq!(served.error("none", &json!([]))["code"], -32601);
}

#[test]
fn client_that_vanishes_cancels_its_call_and_a_provider_that_ends_is_an_error() {
    let mut served = Served::start();
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "wait"}).to_string();
    let headers = "Content-Type: application/json\r\n";
    let request = || send(served.http.address, "POST /jsonrpc", &served.token, headers, body.as_bytes());
    let runs = || crate::support::until("the call runs", || served.started.swap(false, Ordering::Relaxed));
    let stream = request();
    runs();
    drop(stream);
    crate::support::until("the run is cancelled", || served.cancelled.load(Ordering::Relaxed));
    let stream = request();
    runs();
    drop(served.provider.take());
    let answer = receive(stream).json();
    assert!(answer["error"]["code"].as_i64().is_some(), "{answer}");
    assert_eq!(served.error("subtract", &json!([1, 1]))["code"], -32601);
}

#[test]
fn calls_that_a_provider_does_not_answer_delay_no_other_provider() {
    let served = Served::start();
    let _other = Provider::builder(served.processes.connect("other"))
        .function("answer", Options::new(""), |_, _| Ok(Value::Int(42)))
        .start()
        .unwrap();
    let waits: Vec<_> = (0..300).map(|id| json!({"jsonrpc": "2.0", "id": id, "method": "wait"})).collect();
    let headers = "Content-Type: application/json\r\n";
    let waits = json!(waits).to_string();
    let waiting = send(served.http.address, "POST /jsonrpc", &served.token, headers, waits.as_bytes());
    crate::support::until("a call runs", || served.started.load(Ordering::Relaxed));
    assert_eq!(served.result("answer", &json!([])), 42);
    assert_eq!(served.error("none", &json!([]))["code"], -32601);
    drop(waiting);
    crate::support::until("the runs are cancelled", || served.cancelled.load(Ordering::Relaxed));
}
