use super::*;
use crate::protocol::{Empty, Ping};

/// Answers every call, in the order of `turn`, after `count` of them came.
fn answer(socket: &UnixStream, count: usize, turn: impl Fn(Vec<u64>) -> Vec<u64>) {
    let mut decoder = Decoder::default();
    let mut ids = Vec::new();
    while ids.len() < count {
        while let Some(frame) = decoder.take().unwrap() {
            let rpc::Message::Single(call) = rpc::parse(&frame.body) else { panic!("a call") };
            let Some(Id::Number(id)) = call.id else { panic!("a number") };
            ids.push(id);
        }
        if ids.len() < count {
            assert!(decoder.fill(socket.as_fd()).unwrap() > 0);
        }
    }
    for id in turn(ids) {
        let value = RawValue::from_string("{}".into()).unwrap();
        let body = serde_json::to_vec(&rpc::Response::new(Id::Number(id), Ok(value))).unwrap();
        send_all(socket.as_fd(), &Frame::new(body)).unwrap();
    }
}

fn connection() -> (Arc<Connection>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Arc::new(Connection::over(ours, Box::new(|_, _, _| {}))), theirs)
}

#[test]
fn callers_get_their_own_answers_whatever_the_order() {
    let (connection, other) = connection();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    connection.call::<Ping>(&Empty {}, Vec::new(), Some(Duration::from_secs(30))).unwrap();
                }
            });
        }
        for _ in 0..50 {
            answer(&other, 8, |mut ids| {
                ids.reverse();
                ids
            });
        }
    });
}

#[test]
fn a_group_gets_its_answers_as_they_come_and_others_get_theirs() {
    let (connection, other) = connection();
    let group = Arc::new(Group::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            answer(&other, 100, |mut ids| {
                ids.reverse();
                ids
            });
        });
        let mut asked: Vec<_> = (0..99).map(|_| connection.ask_into::<Ping>(&Empty {}, &group).unwrap()).collect();
        connection.call::<Ping>(&Empty {}, Vec::new(), Some(Duration::from_secs(30))).unwrap();
        while !asked.is_empty() {
            for (id, answer) in connection.wait_for(&group, &|| true).unwrap() {
                answer.response.outcome().unwrap();
                asked.retain(|asked| *asked != id);
            }
        }
    });
    assert!(connection.wait_for(&group, &|| false).unwrap().is_empty(), "nobody wants to wait");
    connection.ask_into::<Ping>(&Empty {}, &group).unwrap();
    drop(other);
    assert_eq!(connection.wait_for(&group, &|| true).err().unwrap().kind(), ErrorKind::Io);
}

#[test]
fn the_end_reaches_everyone_who_waits() {
    let (connection, other) = connection();
    std::thread::scope(|scope| {
        let calls: Vec<_> =
            (0..3).map(|_| scope.spawn(|| connection.call::<Ping>(&Empty {}, Vec::new(), None))).collect();
        answer(&other, 3, |_| Vec::new());
        drop(other);
        for call in calls {
            assert_eq!(call.join().unwrap().unwrap_err().kind(), ErrorKind::Io);
        }
    });
    assert!(connection.closed().is_some());
    assert!(connection.call::<Ping>(&Empty {}, Vec::new(), None).is_err());
}

#[test]
fn an_end_that_nobody_read_is_seen_all_the_same() {
    let (connection, other) = connection();
    assert!(!connection.has_ended());
    drop(other);
    assert!(connection.has_ended() && connection.closed().is_none());
    assert!(connection.call::<Ping>(&Empty {}, Vec::new(), None).is_err());
    assert!(connection.closed().is_some());
}

#[test]
fn silence_ends_in_a_timeout() {
    let (connection, _other) = connection();
    let error = connection.call::<Ping>(&Empty {}, Vec::new(), Some(Duration::from_millis(20))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(connection.closed().is_some());
}

#[test]
fn notices_are_heard_while_an_answer_is_awaited() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&heard);
    let on_notice: OnNotice =
        Box::new(move |method, params, fds| lock(&listener).push(format!("{method} {params} {}", fds.len())));
    let connection = Connection::over(ours, on_notice);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let body = br#"{"jsonrpc":"2.0","method":"slab.freed","params":[1]}"#.to_vec();
            let fds = vec![theirs.try_clone().unwrap().into()];
            send_all(theirs.as_fd(), &Frame { body, fds }).unwrap();
            answer(&theirs, 1, |ids| ids);
        });
        connection.call::<Ping>(&Empty {}, Vec::new(), None).unwrap();
    });
    assert_eq!(*lock(&heard), ["slab.freed [1] 1"]);
}

#[test]
fn a_listener_reads_for_the_callers_and_hears_the_end() {
    let (connection, other) = connection();
    std::thread::scope(|scope| {
        let listening = scope.spawn(|| connection.listen());
        for _ in 0..10 {
            let call = scope.spawn(|| connection.call::<Ping>(&Empty {}, Vec::new(), None));
            answer(&other, 1, |ids| ids);
            call.join().unwrap().unwrap();
        }
        connection.close();
        assert_eq!(listening.join().unwrap().kind(), ErrorKind::Io);
    });
}
