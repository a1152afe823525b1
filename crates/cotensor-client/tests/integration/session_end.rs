//! A client that ends while no daemon runs: the next daemon receives the end of the session and does not wait for it.

use cotensor_client::{ClientStore, protocol as p};
use cotensor_functions::Provider;
use cotensor_rpc::{self as rpc, Decoder, Frame, send_all};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::value::to_raw_value;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

/// The longest wait of these tests.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits for a connection and accepts it.
fn accept(listener: &UnixListener) -> UnixStream {
    let timeout = Timespec::try_from(TIMEOUT).unwrap();
    assert_eq!(poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout)), Ok(1), "no client connects");
    listener.accept().unwrap().0
}

/// Accepts a client and answers its `session.hello` with session `number`. Returns the session that it resumes.
fn greet(listener: &UnixListener, number: u64) -> (UnixStream, Option<p::Resume>) {
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
    let hello: p::HelloParams = serde_json::from_str(call.params.unwrap().get()).unwrap();
    let result = p::HelloResult {
        protocol: p::PROTOCOL,
        version: String::new(),
        session: number,
        token: format!("token {number}"),
        epoch: 1,
        index_slots: 0,
        small_bytes_max: 0,
        sharing: p::Sharing { enable_shared_tensors: true, allowed_types: None, max_shared_tensor_size_bytes: None },
        resumed: Vec::new(),
        tickets: Vec::new(),
    };
    let answer = rpc::Response::new(call.id.unwrap(), Ok(to_raw_value(&result).unwrap()));
    send_all(socket.as_fd(), &Frame::new(serde_json::to_vec(&answer).unwrap())).unwrap();
    (socket, hello.resume)
}

#[test]
fn session_end_is_reported_to_the_next_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cotensor.sock");
    let listener = UnixListener::bind(&path).unwrap();
    // Repeated, because a client may notice the end of the daemon first and reconnect. A provider has a session of its
    // own.
    for providers in [0, 1].into_iter().cycle().take(40) {
        let client = std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let store = ClientStore::connect(Some(&path), "ending").unwrap();
                let provider = (providers > 0).then(|| Provider::builder(store.clone()).start().unwrap());
                (provider, store)
            });
            let sessions: Vec<_> = (0..=providers).map(|number| greet(&listener, number)).collect();
            assert!(sessions.iter().all(|(_, resume)| resume.is_none()));
            let client = client.join().unwrap();
            // The daemon ends.
            drop(sessions);
            client
        });
        drop(client);
        let greeted: Vec<_> = (0..=providers).map(|number| greet(&listener, 10 + number)).collect();
        let ended = greeted.into_iter().map(|(mut socket, resume)| {
            // Until the client closes the connection.
            drop(socket.read_to_end(&mut Vec::new()));
            resume.expect("a session to resume")
        });
        let mut ended: Vec<_> = ended.collect();
        ended.sort_by_key(|resume| resume.session);
        for (resume, session) in ended.iter().zip(0..) {
            assert_eq!((resume.session, &resume.token), (session, &format!("token {session}")));
            assert!(resume.leases.is_empty() && resume.claims.is_empty());
        }
    }
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
        let (_session, resume) = greet(&listener, 1);
        assert!(resume.is_none());
        client.join().unwrap().unwrap();
    });
}
