//! Client and daemon in different PID namespaces, as in containers, with a shared folder for the socket. The client in
//! the container is this test program, started again with a variable.

mod container;

use crate::support::processes::{PROGRAM, Processes, children, content, put, settles_empty, signal};
use crate::support::{none, until};
use container::{Container, INSIDE};
use cotensor_client::ClientStore;
use cotensor_functions::{Functions, Options, Provider};
use cotensor_store::{Lease, Retention, TensorStore};
use rustix::process::Signal;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SIZES: [usize; 3] = [0, 100, 1 << 20];
/// Set in the client in a container: the path of the socket.
const SOCKET: &str = "COTENSOR_TEST_SOCKET";

fn put_all(store: &Arc<ClientStore>, prefix: &str, number: u64) -> Vec<Lease> {
    let each =
        |bytes: &usize| put(store, &format!("{prefix} {bytes}"), &content(number, *bytes), Retention::WhileLeased);
    SIZES.iter().map(each).collect()
}

fn assert_all(store: &Arc<ClientStore>, prefix: &str, number: u64) {
    for bytes in SIZES {
        let found = store.get(&format!("{prefix} {bytes}"), &store.holder("")).unwrap();
        assert_eq!(found.bytes().unwrap(), content(number, bytes), "{prefix} {bytes}");
    }
}

fn print_line(word: &str) {
    println!("\n{word}");
    std::io::stdout().flush().unwrap();
}

fn wait_for_line() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// The client in the container: it reads tensors from outside, publishes tensors, provides a function, and reads again
/// after a takeover.
fn client_inside(socket: &Path) {
    let store = ClientStore::connect(Some(socket), "inside").unwrap();
    assert_all(&store, "outside", 1);
    let held = put_all(&store, "inside", 2);
    let provider = Provider::builder(Arc::clone(&store));
    let _provider = provider.function("answer", Options::default(), |_, _| Ok(42.into())).start().unwrap();
    print_line("published");
    wait_for_line();
    assert_all(&store, "outside", 1);
    assert_all(&store, "inside", 2);
    print_line("resumed");
    wait_for_line();
    drop(held);
}

#[test]
fn client_in_a_container_shares_with_a_daemon_outside() {
    if let Some(socket) = std::env::var_os(SOCKET) {
        return client_inside(&PathBuf::from(socket));
    }
    let processes = Processes::start();
    let one = processes.connect("outside");
    let held = put_all(&one, "outside", 1);
    let test = "namespaces::client_in_a_container_shares_with_a_daemon_outside";
    let program = std::env::current_exe().unwrap();
    let environment = [(SOCKET, format!("{INSIDE}/cotensor.sock"))];
    let arguments = ["--exact", test, "--nocapture"];
    let Some(mut inside) = Container::start(processes.folder.path(), &program, &arguments, &environment) else {
        return;
    };
    inside.wait_for("published");
    assert_all(&one, "inside", 2);
    let functions = Functions::new(Arc::clone(&one));
    assert_eq!(functions.call("answer", &none()).unwrap().as_int().unwrap(), 42);

    processes.kill_server();
    inside.send_line();
    inside.wait_for("resumed");
    assert_all(&one, "inside", 2);
    // The end of its connection releases its leases.
    inside.kill();
    drop((held, functions, one));
    settles_empty(&processes);
}

#[test]
fn client_outside_shares_with_a_daemon_in_a_container() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [&format!("{INSIDE}/cotensor.sock")[..]];
    let Some(mut inside) = Container::start(folder.path(), Path::new(PROGRAM), &arguments, &[]) else { return };
    let socket = folder.path().join("cotensor.sock");
    until("the daemon answers", || ClientStore::connect(Some(&socket), "first").is_ok());
    let connect = |name: &str| ClientStore::connect(Some(&socket), name).unwrap();
    let (one, two, ended) = (connect("one"), connect("two"), connect("ended"));
    let held = put_all(&one, "one", 1);
    assert_all(&two, "one", 1);

    // The server is the child of the container's first process.
    let supervisor = inside.first_process();
    let server = children(supervisor)[0];
    // The daemon does not know the process of this session. The lock tells that the session is over.
    signal(server, Signal::STOP);
    drop(ended);
    signal(server, Signal::KILL);
    until("there is another server", || children(supervisor).first().is_some_and(|next| *next != server));
    assert_all(&two, "one", 1);
    let more = put_all(&two, "two", 2);
    assert_all(&one, "two", 2);
    drop((held, one));
    until("the tensors of the first client are freed", || two.get("one 100", &two.holder("")).is_err());
    drop((more, two));
    signal(supervisor, Signal::TERM);
    assert!(inside.wait());
    assert!(!socket.exists());
}
