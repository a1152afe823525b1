use super::*;
use crate::frame::send_all;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Instant;

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Empty {}

struct Ping;

impl Method for Ping {
    const NAME: &'static str = "ping";
    const SUMMARY: &'static str = "Answers.";
    type Params = Empty;
    type Result = Empty;
}

/// Answers every call, in the order of `turn`, after `count` of them came.
fn answer(socket: &UnixStream, count: usize, turn: impl Fn(Vec<u64>) -> Vec<u64>) {
    let mut decoder = Decoder::default();
    let mut ids = Vec::new();
    while ids.len() < count {
        while let Some(frame) = decoder.take().unwrap() {
            let rpc::Message::Single(call) = rpc::parse(&frame.body) else { panic!("a call") };
            ids.push(call.id.and_then(|id| id.as_u64()).expect("a number"));
        }
        if ids.len() < count {
            assert!(decoder.fill(socket.as_fd()).unwrap() > 0);
        }
    }
    for id in turn(ids) {
        let value = RawValue::from_string("{}".into()).unwrap();
        let body = serde_json::to_vec(&rpc::Response::new(id.into(), Ok(value))).unwrap();
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
        let mut asked: Vec<_> =
            (0..99).map(|_| connection.ask_into::<Ping>(&Empty {}, &group, &Until::default()).unwrap()).collect();
        connection.call::<Ping>(&Empty {}, Vec::new(), Some(Duration::from_secs(30))).unwrap();
        while !asked.is_empty() {
            for (id, answer) in connection.wait_for(&group, &Until::default()).unwrap() {
                answer.response.outcome().unwrap();
                asked.retain(|asked| *asked != id);
            }
        }
    });
    assert!(
        connection.wait_for(&group, &Until { wanted: Some(&|| false), ..Until::default() }).unwrap().is_empty(),
        "nobody wants to wait"
    );
    connection.ask_into::<Ping>(&Empty {}, &group, &Until::default()).unwrap();
    drop(other);
    assert_eq!(connection.wait_for(&group, &Until::default()).err().unwrap().kind(), ErrorKind::Io);
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

#[test]
fn an_answer_that_is_late_goes_to_those_who_take_late_answers() {
    let (connection, other) = connection();
    let late = Arc::new(Group::default());
    let until = Until { deadline: Some(Instant::now()), wanted: None };
    let asked = connection.ask::<Ping>(&Empty {}, Vec::new(), &Until::default()).unwrap();
    let Ok(Err(id)) = asked.wait(&until) else { panic!("nothing came yet") };
    connection.abandon(id, &late);
    assert!(connection.closed().is_none(), "one call that is late ends no other");
    answer(&other, 1, |ids| ids);
    let arrived = connection.wait_for(&late, &Until::default()).unwrap();
    assert_eq!(arrived.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id]);
}

#[test]
fn nobody_waits_for_an_end_that_does_not_read() {
    let (connection, other) = connection();
    let body = || Frame::new(vec![b' '; 1 << 20]);
    let soon = || Until { deadline: Some(Instant::now() + Duration::from_millis(5)), wanted: None };
    assert!(connection.sending.send(&connection.socket, body(), &soon()).unwrap(), "begun: the rest follows");
    assert!(!connection.sending.send(&connection.socket, body(), &soon()).unwrap(), "not begun");
    for _ in 0..10 {
        connection.notify::<Ping>(&Empty {}).unwrap();
    }
    let mut decoder = Decoder::default();
    std::thread::scope(|scope| {
        scope.spawn(|| connection.sending.send(&connection.socket, Frame::new(b"last".to_vec()), &Until::default()));
        let mut next = || loop {
            match decoder.take().unwrap() {
                Some(frame) => break frame.body,
                None => assert!(decoder.fill(other.as_fd()).unwrap() > 0),
            }
        };
        assert_eq!(next().len(), 1 << 20, "whole, though its sender left");
        for _ in 0..10 {
            assert!(next().starts_with(b"{"), "notices in their order");
        }
        assert_eq!(next(), b"last");
    });
}

#[test]
fn notices_arrive_though_nothing_follows_them() {
    const COUNT: usize = 20_000;
    let (connection, other) = connection();
    let heard = std::thread::spawn(move || {
        let mut decoder = Decoder::default();
        let mut count = 0;
        while count < COUNT {
            // Slower than they are said, so that more wait than may.
            if count % 500 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            match decoder.take().unwrap() {
                Some(frame) => {
                    assert!(frame.body.ends_with(format!("[{count}]}}").as_bytes()), "{count}: in their order");
                    count += 1;
                }
                None => assert!(decoder.fill(other.as_fd()).unwrap() > 0, "{count} came"),
            }
        }
    });
    for index in 0..COUNT {
        let body = format!(r#"{{"jsonrpc":"2.0","method":"told","params":[{index}]}}"#);
        connection.say(Frame::new(body.into_bytes())).unwrap();
    }
    heard.join().unwrap();
}

#[test]
fn what_waits_does_not_keep_a_connection() {
    let (connection, other) = connection();
    for _ in 0..3000 {
        connection.notify::<Ping>(&Empty {}).unwrap();
    }
    drop(connection);
    let mut decoder = Decoder::default();
    while decoder.fill(other.as_fd()).unwrap() > 0 {}
}
