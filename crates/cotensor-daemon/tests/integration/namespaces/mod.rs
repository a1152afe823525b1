//! Client and daemon in different PID namespaces, as containers have them, with the socket's folder shared between both.
//! The client inside is this test's own program, started again with its part in the environment.

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
/// The presence of this variable says that this process is the client in a container; it has the socket's path.
const SOCKET: &str = "COTENSOR_TEST_SOCKET";

fn put_all(store: &Arc<ClientStore>, who: &str, number: u64) -> Vec<Lease> {
    let each = |bytes: &usize| put(store, &format!("{who} {bytes}"), &content(number, *bytes), Retention::WhileLeased);
    SIZES.iter().map(each).collect()
}

fn assert_all(store: &Arc<ClientStore>, who: &str, number: u64) {
    for bytes in SIZES {
        let found = store.get(&format!("{who} {bytes}"), &store.holder("")).unwrap();
        assert_eq!(found.bytes().unwrap(), content(number, bytes), "{who} {bytes}");
    }
}

fn say(word: &str) {
    println!("\n{word}");
    std::io::stdout().flush().unwrap();
}

fn wait_for_a_line() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// The client in the container: it reads tensors from outside, publishes its own, offers a function, and reads again after
/// the daemon's server was replaced.
fn client_inside(socket: &Path) {
    let store = ClientStore::connect(Some(socket), "inside").unwrap();
    assert_all(&store, "outside", 1);
    let held = put_all(&store, "inside", 2);
    let provider = Provider::builder(Arc::clone(&store));
    let _provider = provider.function("answer", Options::default(), |_, _| Ok(42.into())).start().unwrap();
    say("published");
    wait_for_a_line();
    assert_all(&store, "outside", 1);
    assert_all(&store, "inside", 2);
    say("resumed");
    wait_for_a_line();
    drop(held);
}

#[test]
fn a_client_in_a_container_shares_with_a_daemon_outside() {
    if let Some(socket) = std::env::var_os(SOCKET) {
        return client_inside(&PathBuf::from(socket));
    }
    let processes = Processes::start();
    let one = processes.connect("outside");
    let held = put_all(&one, "outside", 1);
    let test = "namespaces::a_client_in_a_container_shares_with_a_daemon_outside";
    let program = std::env::current_exe().unwrap();
    let environment = [(SOCKET, format!("{INSIDE}/cotensor.sock"))];
    let arguments = ["--exact", test, "--nocapture"];
    let Some(mut inside) = Container::start(processes.folder.path(), &program, &arguments, &environment) else {
        return;
    };
    inside.says("published");
    assert_all(&one, "inside", 2);
    let functions = Functions::new(Arc::clone(&one));
    assert_eq!(functions.call("answer", &none()).unwrap().as_int().unwrap(), 42);

    processes.kill_server();
    inside.line();
    inside.says("resumed");
    assert_all(&one, "inside", 2);
    // The end of its connection ends its leases, as anywhere.
    inside.kill();
    drop((held, functions, one));
    settles_empty(&processes);
}

#[test]
fn a_client_outside_shares_with_a_daemon_in_a_container() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [&format!("{INSIDE}/cotensor.sock")[..]];
    let Some(mut inside) = Container::start(folder.path(), Path::new(PROGRAM), &arguments, &[]) else { return };
    let socket = folder.path().join("cotensor.sock");
    until("the daemon answers", || ClientStore::connect(Some(&socket), "first").is_ok());
    let connect = |name: &str| ClientStore::connect(Some(&socket), name).unwrap();
    let (one, two) = (connect("one"), connect("two"));
    let held = put_all(&one, "one", 1);
    assert_all(&two, "one", 1);

    // The server is the child of the container's first process.
    let supervisor = inside.first_process();
    let server = children(supervisor)[0];
    signal(server, Signal::KILL);
    until("there is another server", || children(supervisor).first().is_some_and(|next| *next != server));
    assert_all(&two, "one", 1);
    let more = put_all(&two, "two", 2);
    assert_all(&one, "two", 2);
    drop((held, one));
    until("what the first client leased is gone", || two.get("one 100", &two.holder("")).is_err());
    drop((more, two));
    signal(supervisor, Signal::TERM);
    assert!(inside.wait());
    assert!(!socket.exists());
}
