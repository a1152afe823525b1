//! Lists of functions and tasks at the daemon, and discovery documents.

use crate::support::{Door, none, until};
use cotensor_client::ClientStore;
use cotensor_client::protocol::provider::TaskState;
use cotensor_client::protocol::{self as p, FUNCTIONS};
use cotensor_core::ErrorKind;
use cotensor_daemon::testing::Running;
use cotensor_functions::{Functions, Object, Options, Provider, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A provider whose function waits at the door.
fn waiting(running: &Running, name: &str, door: &Arc<Door>) -> Provider {
    let at = Arc::clone(door);
    let function = format!("{name}.wait");
    Provider::builder(running.connect(name))
        .function(&function, Options::new("Waits.").task(), move |_, _| {
            at.pass();
            Ok(Value::Null)
        })
        .start()
        .unwrap()
}

/// The tasks of all providers. Retried, because on a busy machine a provider may answer too late once.
fn tasks(store: &ClientStore, state: Option<TaskState>) -> BTreeMap<String, p::ProviderTasks> {
    let name = |provider: &p::ProviderTasks| provider.provider.client.split('[').next().unwrap().to_owned();
    let mut providers = BTreeMap::new();
    until("all providers but the silent one answer", || {
        let found = store.request::<p::ListAllTasks>(&p::AllTasksParams { state, limit: 2 }).unwrap();
        let found: BTreeMap<_, _> = found.providers.into_iter().map(|provider| (name(&provider), provider)).collect();
        let well = found.iter().all(|(name, provider)| name == "silent" || provider.error.is_none());
        providers = found;
        well
    });
    providers
}

#[test]
fn daemon_lists_tasks_of_all_providers() {
    let running = Running::start(|_| {});
    let door = Arc::new(Door::default());
    let (one, _two) = (waiting(&running, "one", &door), waiting(&running, "two", &door));
    let store = running.connect("caller");
    let functions = Functions::new(store.clone());
    let first = functions.submit("one.wait", &none()).unwrap();
    for _ in 0..3 {
        functions.submit("two.wait", &none()).unwrap();
    }
    door.waits_for(2);
    let found = tasks(&store, None);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["one", "two"]);
    let (task, epoch) = (&found["one"].tasks[0], found["one"].provider.epoch);
    assert_eq!((&*task.function, task.task, epoch), ("one.wait", first.number(), one.epoch()));
    assert!(task.client.starts_with("caller["), "{}", task.client);
    assert_eq!((found["two"].tasks.len(), found["two"].left_off), (2, 1));
    door.open();
    assert_eq!(first.wait(None).unwrap().state, TaskState::Completed);
    let completed = tasks(&store, Some(TaskState::Completed));
    assert_eq!(completed["one"].tasks.len(), 1);
    assert_eq!(tasks(&store, Some(TaskState::Failed))["one"].tasks.len(), 0);

    // A provider that never answers does not delay the others' tasks.
    let silent = cotensor_client::connect(&running.socket, Box::new(|_, _, _| {})).unwrap();
    let hello = p::HelloParams { protocol: p::PROTOCOL, client: "silent".into(), ..Default::default() };
    silent.call::<p::Hello>(&hello, Vec::new(), None).unwrap();
    let function = p::FunctionInfo { name: "silent.f".into(), summary: String::new(), task: false, managed: false };
    silent
        .call::<p::RegisterFunction>(
            &p::RegisterFunctionParams { function, epoch: 5, group: None, standby: false },
            Vec::new(),
            None,
        )
        .unwrap();
    for _ in 0..2 {
        let found = tasks(&store, None);
        assert!(found["silent"].error.is_some() && found["silent"].tasks.is_empty());
        assert_eq!((found["one"].tasks.len(), &found["one"].error), (1, &None));
    }
    drop((silent, one));
    until("closed providers are not listed", || tasks(&store, None).keys().eq(["two"]));
}

#[test]
fn long_errors_are_truncated_in_lists() {
    let running = Running::start(|_| {});
    let _provider = Provider::builder(running.connect("provider"))
        .function("fails", Options::default(), |_, _| Err(cotensor_functions::Failure::new("Long", "é".repeat(40_000))))
        .start()
        .unwrap();
    let store = running.connect("caller");
    let functions = Functions::new(store.clone());
    let submitted: Vec<_> = (0..1000).map(|_| functions.submit("fails", &none()).unwrap()).collect();
    submitted.iter().for_each(|task| drop(task.wait(None).unwrap()));
    let mut found = Vec::new();
    until("the provider answers", || {
        let params = p::AllTasksParams { state: None, limit: usize::MAX };
        found = store.request::<p::ListAllTasks>(&params).unwrap().providers;
        found[0].error.is_none()
    });
    assert_eq!(found[0].tasks.len(), 1000);
    let error = found[0].tasks[0].error.as_ref().unwrap();
    assert!(error.starts_with("Long: éé") && error.len() <= 600, "{} bytes", error.len());
    let whole = submitted[0].result().unwrap_err();
    assert!(whole.failure().unwrap().message.len() > 60_000, "the result has the whole error");
}

#[test]
fn discover_lists_registered_functions() {
    let running = Running::start(|_| {});
    let store = running.connect("caller");
    let discover = || store.request::<p::Discover>(&p::Empty {}).unwrap().fields;
    assert_eq!(discover()[FUNCTIONS], serde_json::json!([]));
    let door = Arc::new(Door::default());
    let provider = waiting(&running, "one", &door);
    let document = discover();
    let function = &document[FUNCTIONS][0];
    assert_eq!(function["function"]["name"], "one.wait");
    assert_eq!((&function["function"]["summary"], &function["function"]["task"]), (&"Waits.".into(), &true.into()));
    assert_eq!(function["provider"]["epoch"], provider.epoch());
    let mut plain = document.clone();
    plain.remove(FUNCTIONS);
    assert_eq!(serde_json::Value::Object(plain), p::openrpc(), "the other fields are the protocol");
    drop(provider);
    until("the function is removed", || discover()[FUNCTIONS] == serde_json::json!([]));
}

/// An object without methods.
struct Thing;

impl cotensor_functions::Managed for Thing {
    fn call(
        &self,
        method: &str,
        _: &cotensor_functions::Arguments,
        _: &cotensor_functions::Context,
    ) -> Result<Value, cotensor_functions::Failure> {
        Err(cotensor_functions::Failure::no_method(method))
    }
}

#[test]
fn object_is_valid_for_its_provider_and_connection_only() {
    let running = Running::start(|_| {});
    let _one = Provider::builder(running.connect("one"))
        .function("thing", Options::default(), |_, _| Ok(Object::new(Thing).into()))
        .function("take", Options::default(), |arguments, _| {
            Ok(arguments.get(0, "thing")?.as_object::<Thing>().map(|_| 1)?.into())
        })
        .start()
        .unwrap();
    let onwards = Functions::new(running.connect("two calls one"));
    let _two = Provider::builder(running.connect("two"))
        .function("other.take", Options::default(), |_, _| Ok(Value::Null))
        .function("pass.on", Options::default(), move |_, _| Ok(onwards.call("thing", &none()).unwrap()))
        .start()
        .unwrap();
    let store = running.connect("caller");
    let functions = Functions::new(store.clone());
    let thing = functions.call("thing", &none()).unwrap();
    let error = functions.call("other.take", &none().arg(thing.clone())).unwrap_err();
    assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("belongs to one["), "{error}");
    let error = functions.call("pass.on", &none()).unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("another provider"), "{error}");
    let error = Functions::new(store).call("take", &none().arg(thing.clone())).unwrap_err();
    assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("another connection"), "{error}");
    assert_eq!(functions.call("take", &none().arg(thing)).unwrap().as_int().unwrap(), 1, "the reference stays valid");
}
