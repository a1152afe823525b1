//! Connections that end although their client lives. The client still has its mappings, so its leases stay until it has resumed them or
//! has released the lock of its session.

use crate::blocks::{BYTES, KEPT, LEASED, get, put};
use crate::support::processes::{Processes, content};
use crate::support::{Running, segments_since, until};
use cotensor_client::{ClientStore, protocol as p};
use cotensor_core::{ErrorKind, Memory};
use cotensor_daemon::testing::WAIT_TIMEOUT;
use cotensor_rpc::{Connection, Decoder, Frame, Method, send_all};
use cotensor_store::{Lease, StoreReports, TensorStore};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than a new server waits before it looks which sessions of the former one are over. It reports no event then.
pub(crate) const LOOKED: Duration = Duration::from_millis(700);

/// A client that has mapped a tensor, and that never connects again by itself.
struct Reader {
    hello: p::HelloResult,
    connection: Option<Connection>,
    lock: Option<OwnedFd>,
    tensor: p::Descriptor,
    memory: File,
}

fn hello(socket: &Path, lock: bool, resume: Option<p::Resume>) -> (Connection, p::HelloResult, Option<OwnedFd>) {
    let connection = cotensor_client::connect(socket, Box::new(|_, _, _| {})).unwrap();
    let params = p::HelloParams { protocol: p::PROTOCOL, client: "reader".into(), resume, lock };
    let (hello, mut fds) = connection.call::<p::Hello>(&params, Vec::new(), None).unwrap();
    assert_eq!(hello.locked, lock);
    let lock = lock.then(|| fds.remove(1));
    (connection, hello, lock)
}

impl Reader {
    fn of(socket: &Path, name: &str, lock: bool) -> Self {
        let (connection, hello, lock) = hello(socket, lock, None);
        let params = p::GetParams { name: name.to_owned(), holder: String::new() };
        let (tensor, mut fds) = connection.call::<p::Get>(&params, Vec::new(), None).unwrap();
        Self { hello, connection: Some(connection), lock, tensor, memory: fds.remove(0).into() }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        self.memory.read_exact_at(&mut bytes, self.tensor.offset_bytes as u64).unwrap();
        bytes
    }

    /// The session with its one lease, to resume.
    fn resume(&self, name: &str) -> p::Resume {
        let lease = p::Resumed { name: name.to_owned(), version: self.tensor.id.version, holder: String::new() };
        let (session, token) = (self.hello.session, self.hello.token.clone());
        p::Resume { session, token, leases: vec![lease], claims: Vec::new(), devices: Vec::new() }
    }
}

/// Publishes version `number` of the tensor "frame".
fn publish(producer: &ClientStore, number: u64) {
    drop(put(producer, "frame", &content(number, BYTES), KEPT).unwrap());
}

/// Waits until the daemon has ended all sessions of readers that have no connection.
fn noticed(store: &ClientStore) {
    until("the daemon has noticed the end of the connection", || {
        let sessions = store.request::<p::Sessions>(&p::Empty {}).unwrap().sessions;
        !sessions.iter().any(|session| session.client.starts_with("reader"))
    });
}

/// Publishes versions until the memory of the first one would be used again.
fn publish_many(producer: &ClientStore) {
    (1..12).for_each(|number| publish(producer, number));
}

/// The bytes of one version.
fn one() -> u64 {
    BYTES.next_multiple_of(rustix::param::page_size()) as u64
}

#[test]
fn leases_stay_while_the_client_has_the_lock() {
    let running = Running::start(|_| {});
    let producer = running.connect("producer");
    publish(&producer, 0);
    let mut reader = Reader::of(&running.socket, "frame", true);
    reader.connection = None;
    noticed(&producer);
    publish_many(&producer);
    assert!(reader.bytes() == content(0, BYTES), "a mapped tensor keeps its bytes");
    running.settles_at(2 * one());
    reader.lock = None;
    running.settles_at(one());
}

#[test]
fn leases_of_a_client_without_a_lock_end_with_the_connection() {
    let running = Running::start(|_| {});
    let producer = running.connect("producer");
    publish(&producer, 0);
    let mut reader = Reader::of(&running.socket, "frame", false);
    publish(&producer, 1);
    running.settles_at(2 * one());
    reader.connection = None;
    running.settles_at(one());
}

#[test]
fn next_server_keeps_the_leases_of_a_client_that_had_no_connection() {
    let processes = Processes::start();
    let producer = processes.connect("producer");
    publish(&producer, 0);
    let mut reader = Reader::of(&processes.socket, "frame", true);
    reader.connection = None;
    noticed(&producer);
    publish_many(&producer);
    processes.kill_server();
    std::thread::sleep(LOOKED);
    publish_many(&producer);
    assert!(reader.bytes() == content(0, BYTES), "a mapped tensor keeps its bytes");
    reader.lock = None;
    until("the lease has ended", || producer.stats().memory_usage_bytes == one());
}

/// The newest version of a name, which is cached: without a lease, a newer one frees it.
#[test]
fn next_server_keeps_the_leases_of_newest_versions() {
    let processes = Processes::start();
    let producer = processes.connect("producer");
    publish(&producer, 0);
    let mut reader = Reader::of(&processes.socket, "frame", true);
    reader.connection = None;
    processes.kill_server();
    std::thread::sleep(LOOKED);
    publish_many(&producer);
    assert!(reader.bytes() == content(0, BYTES), "a mapped tensor keeps its bytes");
    reader.lock = None;
    until("the lease has ended", || producer.stats().memory_usage_bytes == one());
}

/// A closed store with one array keeps that array only.
#[test]
fn next_server_evicts_beside_a_client_that_had_no_connection() {
    let processes = Processes::start_with(|_| vec![(16 * BYTES).to_string().into()]);
    let producer = processes.connect("producer");
    let name = |number: u64| format!("frame {number}");
    let publish = |number| put(&producer, &name(number), &content(number, BYTES), KEPT).map(drop);
    (0..8).for_each(|number| publish(number).unwrap());
    let mut reader = Reader::of(&processes.socket, &name(3), true);
    reader.connection = None;
    noticed(&producer);
    for round in 1..4 {
        processes.kill_server();
        for number in 0..40 {
            until("a tensor is published", || publish(100 * round + number).is_ok());
        }
        assert!(reader.bytes() == content(3, BYTES), "a mapped tensor keeps its bytes");
    }
    let find = |number| producer.get(&name(number), &producer.holder(""));
    assert!(find(3).is_ok() && find(2).is_err());
    reader.lock = None;
    until("the tensor is evicted", || {
        (500..520).for_each(|number| publish(number).unwrap());
        find(3).is_err()
    });
}

/// The daemon refuses the next session of a process that has closed many stores, and not the leases that it has.
#[test]
fn stores_that_disconnect_keep_their_leases_at_the_limit() {
    let running = Running::start(|config| config.connections_max = 4);
    let producer = running.connect("producer");
    let mut held: Vec<(Lease, u64)> = Vec::new();
    for number in 0.. {
        publish(&producer, number);
        let reader = match ClientStore::connect(Some(&running.socket), "reader") {
            Ok(reader) => reader,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
                break;
            }
        };
        held.push((get(&reader, "frame"), number));
        reader.disconnect();
        until("the leases are kept without a connection", || running.left_sessions() == held.len());
    }
    assert_eq!(held.len(), 4);
    running.shut_down("producer");
    publish_many(&producer);
    for (held, number) in &held {
        assert!(held.bytes().unwrap() == content(*number, BYTES), "{number}");
    }
    drop(held.pop());
    until("the next store connects", || ClientStore::connect(Some(&running.socket), "reader").is_ok());
}

#[test]
fn resumed_lease_replaces_the_one_that_was_kept() {
    let running = Running::start(|_| {});
    let producer = running.connect("producer");
    publish(&producer, 0);
    let mut reader = Reader::of(&running.socket, "frame", true);
    reader.connection = None;
    noticed(&producer);
    publish_many(&producer);
    let (connection, answer, lock) = hello(&running.socket, true, Some(reader.resume("frame")));
    assert_eq!(answer.resumed, [Some(reader.tensor.id)]);
    publish_many(&producer);
    assert!(reader.bytes() == content(0, BYTES), "the lease is that of the new session");
    let leases = vec![p::LeaseParams { id: reader.tensor.id, holder: String::new() }];
    connection.call::<p::Release>(&p::ReleaseParams { leases }, Vec::new(), None).unwrap();
    running.settles_at(one());
    drop((lock, reader));
}

/// The client waits for the end of its connection before it resumes its session, so the daemon cannot wait for the client before.
#[test]
fn connection_that_the_daemon_ends_is_closed_while_leases_are_kept() {
    let running = Running::start(|_| {});
    let producer = running.connect("producer");
    publish(&producer, 0);
    let mut socket = UnixStream::connect(&running.socket).unwrap();
    socket.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    let mut decoder = Decoder::default();
    let mut call = |method: &str, params: serde_json::Value| {
        let call = serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        send_all(socket.as_fd(), &Frame::new(call.to_string().into_bytes())).unwrap();
        loop {
            if let Some(frame) = decoder.take().unwrap() {
                return frame;
            }
            assert!(decoder.fill(socket.as_fd()).unwrap() > 0, "the daemon ended the connection");
        }
    };
    let hello = call(p::Hello::NAME, serde_json::json!({"protocol": p::PROTOCOL, "client": "raw", "lock": true}));
    let tensor = call(p::Get::NAME, serde_json::json!({"name": "frame"}));
    assert_eq!((hello.fds.len(), tensor.fds.len()), (2, 1));
    std::io::Write::write_all(&mut socket, &[0xff; 64]).unwrap();
    let end = std::io::Read::read(&mut socket, &mut [0; 64]).map_err(|error| error.kind());
    assert!(matches!(end, Ok(0) | Err(std::io::ErrorKind::ConnectionReset)), "{end:?}");
    publish(&producer, 1);
    running.settles_at(2 * one());
    drop(hello);
    running.settles_at(one());
}

/// The daemon may notice the end of a connection after the client has resumed its session in another one.
#[test]
fn resumed_session_has_its_slabs_while_the_former_connection_exists() {
    let running = Running::start(|_| {});
    let producer = running.connect("producer");
    publish(&producer, 0);
    let reader = Reader::of(&running.socket, "frame", true);
    let slab = cotensor_memory::Slab::create(1 << 20).unwrap();
    let open = |connection: &Connection| {
        let params = p::SlabParams { bytes: 1 << 20, block: false, device: slab.device(), reservation: None };
        let fd = slab.fd().try_clone_to_owned().unwrap();
        connection.call::<p::OpenSlab>(&params, vec![fd], None).map(drop)
    };
    open(reader.connection.as_ref().unwrap()).unwrap();
    let (second, ..) = hello(&running.socket, true, Some(reader.resume("frame")));
    open(&second).unwrap();
    // The answer to the second hello was lost.
    let (third, answer, _lock) = hello(&running.socket, true, Some(reader.resume("frame")));
    assert_eq!(answer.resumed, [Some(reader.tensor.id)]);
    open(&third).unwrap();
    assert!(second.call::<p::Ping>(&p::Empty {}, Vec::new(), None).is_err());
    publish_many(&producer);
    assert!(reader.bytes() == content(0, BYTES), "a mapped tensor keeps its bytes");
}

/// The daemon may read a hello after the client has ended that connection, and has resumed the session in another one.
#[test]
fn late_hello_does_not_end_the_session_that_came_first() {
    let running = Running::start(|_| {});
    let producer = running.connect("producer");
    publish(&producer, 0);
    let mut reader = Reader::of(&running.socket, "frame", true);
    reader.connection = None;
    let (connection, _, lock) = hello(&running.socket, true, Some(reader.resume("frame")));
    reader.lock = lock;
    drop(connection);
    noticed(&producer);
    drop(hello(&running.socket, true, Some(reader.resume("frame"))));
    noticed(&producer);
    publish_many(&producer);
    assert!(reader.bytes() == content(0, BYTES), "a mapped tensor keeps its bytes");
    reader.lock = None;
    running.settles_at(one());
}

/// A client may lose the answer to the hello that resumed its session. It then has the lock of the session before, and resumes that one.
#[test]
fn session_is_resumed_again_when_the_answer_was_lost() {
    let running = Running::start(|_| {});
    let producer = running.connect("producer");
    publish(&producer, 0);
    let mut reader = Reader::of(&running.socket, "frame", true);
    reader.connection = None;
    for _ in 0..3 {
        drop(hello(&running.socket, true, Some(reader.resume("frame"))));
        noticed(&producer);
        publish_many(&producer);
        assert!(reader.bytes() == content(0, BYTES), "a mapped tensor keeps its bytes");
    }
    reader.lock = None;
    running.settles_at(one());
}

#[test]
fn store_whose_socket_is_shut_down_keeps_its_leases() {
    let running = Running::start(|_| {});
    let producer = running.connect("producer");
    let reader = running.connect("reader");
    publish(&producer, 0);
    let held = get(&reader, "frame");
    let mut others: Vec<(u64, Lease)> = Vec::new();
    for round in 0..20 {
        running.shut_down("reader");
        (1..6).for_each(|number| publish(&producer, 10 * round + number));
        others.push((10 * round + 5, get(&reader, "frame")));
        assert!(held.bytes().unwrap() == content(0, BYTES), "{round}");
        assert!(others.iter().all(|(number, lease)| lease.bytes().unwrap() == content(*number, BYTES)), "{round}");
    }
    drop((held, others));
    running.settles_at(one());
}

#[test]
fn producer_publishes_in_its_memory_after_a_lost_connection() {
    let running = Running::start(|_| {});
    let before = segments_since(&Default::default());
    let producer = running.connect("producer");
    let held = put(&producer, "held", &content(7, BYTES), LEASED).unwrap();
    for round in 0..10 {
        running.shut_down("producer");
        (0..5).for_each(|number| publish(&producer, 10 * round + number));
    }
    assert!(held.bytes().unwrap() == content(7, BYTES));
    assert!(segments_since(&before).len() <= 5, "blocks are used again: {:?}", segments_since(&before));
}

#[test]
fn store_that_disconnects_keeps_its_leases_until_they_are_dropped() {
    let running = Running::start(|_| {});
    let producer = running.connect("producer");
    publish(&producer, 0);
    let reader = running.connect("reader");
    let held = get(&reader, "frame");
    reader.disconnect();
    noticed(&producer);
    publish_many(&producer);
    assert!(held.bytes().unwrap() == content(0, BYTES), "a mapped tensor keeps its bytes");
    drop(held);
    running.settles_at(one());
    drop(reader);
}

#[test]
fn daemon_stops_while_it_keeps_leases() {
    let running = Running::start(|_| {});
    let producer: Arc<ClientStore> = running.connect("producer");
    publish(&producer, 0);
    let mut reader = Reader::of(&running.socket, "frame", true);
    reader.connection = None;
    noticed(&producer);
    let start = Instant::now();
    drop(running);
    assert!(start.elapsed() < Duration::from_secs(20), "no thread waits for the client");
}
