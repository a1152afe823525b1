//! Reconnection after a takeover: the server keeps leases for clients that have not reconnected.

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
/// Far longer than all clients need to reconnect, and far shorter than the server waits for a missing one.
const RECONNECT_LIMIT: Duration = Duration::from_secs(20);

/// A daemon whose budget fits a large tensor and its metadata only without the slab of a process that has ended.
fn nearly_full() -> Processes {
    let processes = Processes::start_with(|_| vec![(7 * MIB + 3000).to_string().into()]);
    drop(put(&processes.connect("ended"), "small", &content(1, 100), KEPT));
    processes
}

/// Publishes a tensor that needs nearly the whole budget.
fn publish_large(store: &Arc<ClientStore>) -> cotensor_core::Result<()> {
    let mut large = store.reserve(crate::support::spec("large", 7 * MIB), &store.holder(""))?;
    large.write(&content(2, 7 * MIB), CopyReason::Put)?;
    large.publish().map(drop)
}

/// Waits until the large tensor fits: the slab is freed when no session is missing.
fn until_large_fits(store: &Arc<ClientStore>) {
    let start = Instant::now();
    while let Err(error) = publish_large(store) {
        assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
        assert!(start.elapsed() < RECONNECT_LIMIT, "{error}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn provider_resumes_all_its_sessions() {
    let processes = nearly_full();
    let one = processes.connect("one");
    let builder = Provider::builder(processes.connect("provider"));
    let provider = builder.function("answer", Options::default(), |_, _| Ok(42.into())).start().unwrap();
    let functions = Functions::new(Arc::clone(&one));
    for kill in 0..3 {
        processes.kill_server();
        until("the function is registered again", || functions.call("answer", &none()).is_ok());
        if kill == 0 {
            one.remove("small").unwrap();
        }
        until_large_fits(&one);
    }
    // A daemon without its session accepts the provider as a new client.
    let processes = processes.start_anew();
    until("the new daemon answers", || ClientStore::connect(Some(&processes.socket), "two").is_ok());
    let functions = Functions::new(processes.connect("two"));
    until("the function is registered there", || functions.call("answer", &none()).is_ok());
    drop(provider);
}

#[test]
fn over_budget_error_names_clients_that_have_not_reconnected() {
    let processes = nearly_full();
    let one = processes.connect("one");
    // A client that never reconnects.
    let silent = cotensor_client::connect(&processes.socket, Box::new(|_, _, _| {})).unwrap();
    let hello = p::HelloParams { protocol: p::PROTOCOL, client: "silent".into(), ..Default::default() };
    silent.call::<p::Hello>(&hello, Vec::new(), None).unwrap();
    processes.kill_server();
    one.remove("small").unwrap();
    let error = publish_large(&one).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    let waiting = format!("at most: {}", std::process::id());
    assert!(
        error.message().contains("until these processes have reconnected") && error.message().contains(&waiting),
        "{error}"
    );
}
