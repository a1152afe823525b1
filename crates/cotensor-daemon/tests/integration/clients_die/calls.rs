//! Steps of a client that calls functions, and of one that offers them.

use super::steps::hold;
use super::{Step, reached};
use crate::support::none;
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
    Step("called and done with it", |socket| {
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
        hangs(&functions);
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
        hangs(&functions);
        hold(&functions);
    }),
    Step("offering", |socket| hold(&offering(socket))),
    Step("offering no more", |socket| {
        let provider = offering(socket);
        provider.remove("doomed").unwrap();
        hold(&provider);
    }),
    Step("called", |socket| served(socket, "call")),
    Step("running a task", |socket| served(socket, "submit")),
    Step("an object of its kept", |socket| served(socket, "keep")),
];

fn functions(socket: &Path) -> Functions {
    Functions::new(ClientStore::connect(Some(socket), "doomed").unwrap())
}

/// Waits until the survivor's `hang` runs.
fn hangs(functions: &Functions) {
    while functions.call("hanging", &none()).unwrap().as_int().unwrap() == 0 {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

struct Thing;

impl Managed for Thing {
    /// The one method stops here.
    fn call(&self, _: &str, _: &Arguments, _: &Context) -> Result<Value, Failure> {
        reached()
    }
}

fn offering(socket: &Path) -> Provider {
    let store = ClientStore::connect(Some(socket), "doomed").unwrap();
    let builder = Provider::builder(store).function("doomed", Options::default(), |_, context| {
        let _made = context.tensor("doomed", DType::U8, &[1 << 20], &vec![5; 1 << 20])?;
        reached()
    });
    builder.function("thing", Options::default(), |_, _| Ok(Object::new(Thing).into())).start().unwrap()
}

/// Has the survivor make use of what this offers.
fn served(socket: &Path, how: &str) {
    let _provider = offering(socket);
    println!("\n{how}");
    loop {
        std::thread::park();
    }
}
