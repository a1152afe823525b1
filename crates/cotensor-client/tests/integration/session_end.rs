//! The lock of a session, which tells the next daemon whether to wait for the session.

use cotensor_client::{ClientStore, protocol as p};
use cotensor_core::testing::until;
use cotensor_functions::Provider;
use cotensor_memory::process::{LockTable, duplicate_fd};
use cotensor_rpc::{self as rpc, Decoder, Frame, send_all};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::value::to_raw_value;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The longest wait of these tests.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits for a connection and accepts it.
fn accept(listener: &UnixListener) -> UnixStream {
    let timeout = Timespec::try_from(TIMEOUT).unwrap();
    assert_eq!(poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout)), Ok(1), "no client connects");
    listener.accept().unwrap().0
}

/// A client that waits for the answer to its `session.hello`.
struct Greeting {
    socket: UnixStream,
    call: rpc::Id,
    hello: p::HelloParams,
}

impl Greeting {
    fn of_next(listener: &UnixListener) -> Self {
        let socket = accept(listener);
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut decoder = Decoder::default();
        let frame = loop {
            if let Some(frame) = decoder.take().unwrap() {
                break frame;
            }
            assert!(decoder.fill(socket.as_fd()).unwrap() > 0);
        };
        let rpc::Message::Single(call) = rpc::parse(&frame.body) else { panic!("a call") };
        let hello = serde_json::from_str(call.params.unwrap().get()).unwrap();
        Self { socket, call: call.id.unwrap(), hello }
    }

    /// Opens session `number`, and takes its lock. Returns the session to resume.
    fn answer(self, number: u64, locks: &LockTable) -> (UnixStream, Option<p::Resume>) {
        assert!(self.hello.lock);
        let result = p::HelloResult {
            pid: None,
            protocol: p::PROTOCOL,
            version: String::new(),
            session: number,
            token: format!("token {number}"),
            epoch: 1,
            index_slots: 0,
            small_bytes_max: 0,
            block_bytes_max: 0,
            sharing: p::Sharing {
                enable_shared_tensors: true,
                allowed_types: None,
                max_shared_tensor_size_bytes: None,
            },
            resumed: Vec::new(),
            tickets: Vec::new(),
            shares: Vec::new(),
            locked: true,
        };
        let answer = rpc::Response::new(self.call, Ok(to_raw_value(&result).unwrap()));
        // The table itself takes the place of the index.
        let fds = vec![duplicate_fd(locks).unwrap(), locks.lock(number).unwrap()];
        send_all(self.socket.as_fd(), &Frame { body: serde_json::to_vec(&answer).unwrap(), fds }).unwrap();
        (self.socket, self.hello.resume)
    }
}

fn until_unlocked(locks: &LockTable, number: u64) {
    until("the client gives its lock back", || !locks.is_locked(number).unwrap());
}

/// A store and `providers` providers, and the connections of their sessions, numbered from 0.
fn connected(
    path: &Path,
    listener: &UnixListener,
    providers: u64,
    locks: &LockTable,
) -> ((Vec<Provider>, Arc<ClientStore>), Vec<UnixStream>) {
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let store = ClientStore::connect(Some(path), "ending").unwrap();
            let start = |_| Provider::builder(Arc::clone(&store)).start().unwrap();
            ((0..providers).map(start).collect(), store)
        });
        let greet = |number| {
            let (socket, resume) = Greeting::of_next(listener).answer(number, locks);
            assert!(resume.is_none());
            socket
        };
        let sessions = (0..=providers).map(greet).collect();
        (client.join().unwrap(), sessions)
    })
}

#[test]
fn lock_is_released_at_the_end_of_a_session_without_a_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let locks = LockTable::create().unwrap();
    // Repeated, because a client may notice the end of the daemon first and try to reconnect.
    for (round, providers) in [0, 1, 0, 1, 0, 1].into_iter().enumerate() {
        let path = folder.path().join(format!("{round}.sock"));
        let listener = UnixListener::bind(&path).unwrap();
        let (client, sessions) = connected(&path, &listener, providers, &locks);
        assert!((0..=providers).all(|number| locks.is_locked(number).unwrap()));
        drop((listener, sessions));
        drop(client);
        (0..=providers).for_each(|number| until_unlocked(&locks, number));
    }
}

#[test]
fn lock_is_kept_until_the_session_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cotensor.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let locks = LockTable::create().unwrap();
    let (client, sessions) = connected(&path, &listener, 1, &locks);
    drop(sessions);
    let greetings = [Greeting::of_next(&listener), Greeting::of_next(&listener)];
    assert!(locks.is_locked(0).unwrap() && locks.is_locked(1).unwrap(), "the clients wait for the answers");
    let mut resumed = Vec::new();
    for (greeting, number) in greetings.into_iter().zip(10..) {
        let (socket, resume) = greeting.answer(number, &locks);
        let resume = resume.expect("a session to resume");
        assert_eq!(resume.token, format!("token {}", resume.session));
        until_unlocked(&locks, resume.session);
        assert!(locks.is_locked(number).unwrap());
        resumed.push((resume.session, socket));
    }
    resumed.sort_unstable_by_key(|(session, _)| *session);
    assert!(matches!(resumed[..], [(0, _), (1, _)]));
    drop((client, resumed));
}

#[test]
fn client_that_connects_while_the_daemon_ends_reaches_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cotensor.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| ClientStore::connect(Some(&path), "early"));
        // The daemon accepts the connection and ends before it answers.
        drop(accept(&listener));
        let (_session, resume) = Greeting::of_next(&listener).answer(1, &LockTable::create().unwrap());
        assert!(resume.is_none());
        client.join().unwrap().unwrap();
    });
}
