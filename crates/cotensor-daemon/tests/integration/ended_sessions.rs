//! Sessions that their program ends while no server can notice it. The next server does not wait for them, although
//! their process lives.

use crate::support::processes::{Processes, content, put, signal};
use crate::support::until;
use cotensor_client::{ClientStore, DeviceNeeds, DeviceShare, protocol as p};
use cotensor_functions::{Options, Provider};
use cotensor_memory::process::state;
use cotensor_store::{Retention, TensorStore};
use rustix::process::Signal;
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Far longer than all clients need to reconnect, and far shorter than the server waits for an open session.
const RELEASE_LIMIT: Duration = Duration::from_secs(20);

/// What is ended, at a daemon with the store of the test.
type Client = Box<dyn Any>;

/// A second store of this process, with a tensor.
fn store(processes: &Processes) -> Client {
    let store = processes.connect("second");
    let lease = put(&store, "second", &content(2, 100), Retention::WhileLeased);
    Box::new((lease, store))
}

/// A client that did not use the answer to its first hello.
fn silent(processes: &Processes) -> Client {
    let connection = cotensor_client::connect(&processes.socket, Box::new(|_, _, _| {})).unwrap();
    let hello = p::HelloParams { protocol: p::PROTOCOL, client: "silent".into(), resume: None, lock: true };
    let answer = connection.call::<p::Hello>(&hello, Vec::new(), None).unwrap();
    Box::new((answer, connection))
}

fn provider(processes: &Processes) -> Client {
    let builder = Provider::builder(processes.connect("provider"));
    Box::new(builder.function("answer", Options::default(), |_, _| Ok(42.into())).start().unwrap())
}

fn device_share(processes: &Processes) -> Client {
    let needs = DeviceNeeds { demand_bytes: 1000, smallest_bytes: 100 };
    Box::new(DeviceShare::join(&processes.socket, "program", "GPU-5c1e", 1000, needs).unwrap())
}

/// Checks that a taken over tensor is freed with its last lease: the server waits for no session.
fn waits_for_none(store: &Arc<ClientStore>, end: impl FnOnce()) {
    let held = put(store, "held", &content(1, 100), Retention::WhileLeased);
    let id = held.id();
    end();
    assert!(store.has(id), "the store has resumed its lease");
    drop(held);
    let start = Instant::now();
    until("the tensor is freed", || {
        assert!(start.elapsed() < RELEASE_LIMIT, "a session that has ended is waited for");
        !store.has(id)
    });
}

/// Ends the client after the server has handled its last message. The server is killed without a look at the end.
fn ended_at_the_death_of_the_server(make: impl FnOnce(&Processes) -> Client) {
    let processes = Processes::start();
    let client = make(&processes);
    waits_for_none(&processes.connect("first"), || {
        signal(processes.server(), Signal::STOP);
        drop(client);
        processes.kill_server();
    });
}

/// Calls `meanwhile` between two servers.
fn between_servers(processes: &Processes, meanwhile: impl FnOnce()) {
    let server = processes.server();
    signal(processes.supervisor(), Signal::STOP);
    signal(server, Signal::KILL);
    until("the server is dead", || state(server).is_none_or(|state| state == 'Z'));
    meanwhile();
    signal(processes.supervisor(), Signal::CONT);
}

/// Ends the client between two servers.
fn ended_between_servers(make: impl FnOnce(&Processes) -> Client) {
    let processes = Processes::start();
    let client = make(&processes);
    waits_for_none(&processes.connect("first"), || between_servers(&processes, || drop(client)));
}

#[test]
fn store_dropped_at_the_death_of_the_server_is_not_waited_for() {
    ended_at_the_death_of_the_server(store);
}

#[test]
fn store_dropped_between_servers_is_not_waited_for() {
    ended_between_servers(store);
}

#[test]
fn client_that_never_resumes_is_not_waited_for() {
    ended_at_the_death_of_the_server(silent);
    ended_between_servers(silent);
}

#[test]
fn provider_dropped_at_the_death_of_the_server_is_not_waited_for() {
    ended_at_the_death_of_the_server(provider);
}

#[test]
fn provider_dropped_between_servers_is_not_waited_for() {
    ended_between_servers(provider);
}

#[test]
fn device_share_dropped_at_the_death_of_the_server_is_not_waited_for() {
    ended_at_the_death_of_the_server(device_share);
}

#[test]
fn device_share_dropped_between_servers_is_not_waited_for() {
    ended_between_servers(device_share);
}

/// The number of sockets of this process.
fn sockets() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|file| file.to_string_lossy().starts_with("socket:")))
        .count()
}

#[test]
fn store_disconnected_while_it_reconnects_has_no_session() {
    let processes = Processes::start();
    let (first, second) = (processes.connect("first"), processes.connect("second"));
    let lease = put(&second, "second", &content(2, 100), Retention::WhileLeased);
    let (before, id) = (sockets(), lease.id());
    between_servers(&processes, || {
        until("both stores wait for the next server", || sockets() == before + 2);
        second.disconnect();
        drop(lease);
    });
    until("the daemon has released the lease", || !first.has(id));
}
