//! Steps of callers and of providers of functions.

use super::steps::hold;
use super::{Step, reached};
use crate::support::{none, until};
use cotensor_client::ClientStore;
use cotensor_core::DType;
use cotensor_functions::{Arguments, Context, Failure, Functions, Managed, Object, Options, Provider, Value};
use std::path::Path;
use std::sync::Arc;

pub(super) const STEPS: &[Step] = &[
    Step("looked up", |socket| {
        let functions = functions(socket);
        functions.describe("tensor").unwrap();
        hold(&functions);
    }),
    Step("called and holding the result", |socket| {
        let functions = functions(socket);
        hold(&functions.call("tensor", &none()).unwrap());
    }),
    Step("called and result dropped", |socket| {
        let functions = functions(socket);
        drop(functions.call("tensor", &none()).unwrap());
        hold(&functions);
    }),
    Step("holding objects", |socket| {
        let functions = functions(socket);
        hold(&[(); 10].map(|()| functions.call("object", &none()).unwrap()));
    }),
    Step("calling with a tensor", |socket| {
        let functions = Arc::new(functions(socket));
        let given = functions.call("tensor", &none()).unwrap();
        let calling = Arc::clone(&functions);
        let arguments = none().arg(given.clone());
        std::thread::spawn(move || calling.call("hang", &arguments).map(drop));
        wait_for_hang(&functions);
        hold(&given);
    }),
    Step("a task submitted", |socket| {
        let functions = functions(socket);
        hold(&functions.submit("tensor", &none()).unwrap());
    }),
    Step("a task's result taken", |socket| {
        let functions = functions(socket);
        let task = functions.submit("tensor", &none()).unwrap();
        task.wait(None).unwrap();
        hold(&(task.result().unwrap(), task));
    }),
    Step("waiting for a task", |socket| {
        let functions = Arc::new(functions(socket));
        let task = functions.submit("hang", &none()).unwrap();
        std::thread::spawn(move || task.wait(None).map(drop));
        wait_for_hang(&functions);
        hold(&functions);
    }),
    Step("providing", |socket| hold(&provider(socket))),
    Step("function removed", |socket| {
        let provider = provider(socket);
        provider.remove("victim").unwrap();
        hold(&provider);
    }),
    Step("called", |socket| serve(socket, "call")),
    Step("running a task", |socket| serve(socket, "submit")),
    Step("an object kept by the survivor", |socket| serve(socket, "keep")),
];

fn functions(socket: &Path) -> Functions {
    Functions::new(ClientStore::connect(Some(socket), "victim").unwrap())
}

/// Waits until the survivor's `hang` runs.
fn wait_for_hang(functions: &Functions) {
    until("`hang` runs", || functions.call("hanging", &none()).unwrap().as_int().unwrap() > 0);
}

struct Thing;

impl Managed for Thing {
    /// The call stops at the step.
    fn call(&self, _: &str, _: &Arguments, _: &Context) -> Result<Value, Failure> {
        reached()
    }
}

fn provider(socket: &Path) -> Provider {
    let store = ClientStore::connect(Some(socket), "victim").unwrap();
    let builder = Provider::builder(store).function("victim", Options::default(), |_, context| {
        let _made = context.tensor("victim", DType::U8, &[1 << 20], &vec![5; 1 << 20])?;
        reached()
    });
    builder.function("thing", Options::default(), |_, _| Ok(Object::new(Thing).into())).start().unwrap()
}

/// Provides functions and lets the survivor use them by printing `how`.
fn serve(socket: &Path, how: &str) {
    let _provider = provider(socket);
    println!("\n{how}");
    loop {
        std::thread::park();
    }
}
