//! Who is waited for after the server was replaced, and what that costs the others meanwhile.

use crate::support::processes::{Processes, content, put};
use crate::support::{none, until};
use cotensor_client::{ClientStore, protocol as p};
use cotensor_core::ErrorKind;
use cotensor_functions::{Functions, Options, Provider};
use cotensor_store::{CopyReason, Retention, TensorStore};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };
/// Far longer than it takes when everybody is back, and far shorter than somebody is waited for who is not.
const BACK: Duration = Duration::from_secs(20);

/// A daemon that has room for a large tensor and its metadata, but for the page of a slab of a process that is gone.
fn nearly_full() -> Processes {
    let processes = Processes::start_with(|_| vec![(7 * MIB + 3000).to_string().into()]);
    drop(put(&processes.connect("gone"), "small", &content(1, 100), KEPT));
    processes
}

/// Whether there is room for a tensor that needs nearly all of the memory.
fn has_room(store: &Arc<ClientStore>) -> cotensor_core::Result<()> {
    let mut large = store.reserve(crate::support::spec("large", 7 * MIB), &store.holder(""))?;
    large.write(&content(2, 7 * MIB), CopyReason::Put)?;
    large.publish().map(drop)
}

/// Waits until there is room: the memory that a removed tensor lay in is free as soon as nobody is missing.
fn until_there_is_room(store: &Arc<ClientStore>) {
    let start = Instant::now();
    while let Err(error) = has_room(store) {
        assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
        assert!(start.elapsed() < BACK, "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_provider_is_back_with_all_its_sessions() {
    let processes = nearly_full();
    let one = processes.connect("one");
    let builder = Provider::builder(processes.connect("provider"));
    let provider = builder.function("answer", Options::default(), |_, _| Ok(42.into())).start().unwrap();
    let functions = Functions::new(Arc::clone(&one));
    for kill in 0..3 {
        processes.kill_server();
        until("the function is offered again", || functions.call("answer", &none()).is_ok());
        if kill == 0 {
            one.remove("small").unwrap();
        }
        until_there_is_room(&one);
    }
    // A daemon that knows nothing of it takes it as a new one.
    let processes = processes.start_anew();
    until("there is a daemon again", || ClientStore::connect(Some(&processes.socket), "two").is_ok());
    let functions = Functions::new(processes.connect("two"));
    until("the function is offered to it", || functions.call("answer", &none()).is_ok());
    drop(provider);
}

#[test]
fn over_budget_error_names_clients_that_have_not_reconnected() {
    let processes = nearly_full();
    let one = processes.connect("one");
    // A client that never reconnects.
    let silent = cotensor_client::connect(&processes.socket, Box::new(|_, _, _| {})).unwrap();
    let hello = p::HelloParams { protocol: p::PROTOCOL, client: "silent".into(), resume: None };
    silent.call::<p::Hello>(&hello, Vec::new(), None).unwrap();
    processes.kill_server();
    one.remove("small").unwrap();
    let error = has_room(&one).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    let waiting = format!("at most: {}", std::process::id());
    assert!(
        error.message().contains("until these processes are back") && error.message().contains(&waiting),
        "{error}"
    );
}
