mod call_each;

use super::*;
use crate::connection::sending::NOTIFICATIONS_MAX;
use crate::frame::send_all;
use crate::message::{Message, Response, parse};
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

/// Reads `count` messages with single calls. Returns their ids.
fn read_calls(decoder: &mut Decoder, socket: &UnixStream, count: usize) -> Vec<u64> {
    let number = |message| {
        let Message::Single(call) = message else { panic!("a call") };
        call.id.and_then(|id| id.as_u64()).expect("a number")
    };
    read_messages(decoder, socket, count).into_iter().map(number).collect()
}

fn read_messages(decoder: &mut Decoder, socket: &UnixStream, count: usize) -> Vec<Message> {
    let mut messages = Vec::new();
    while messages.len() < count {
        while let Some(frame) = decoder.take().unwrap() {
            messages.push(parse(&frame.body));
        }
        if messages.len() < count {
            assert!(decoder.fill(socket.as_fd()).unwrap() > 0);
        }
    }
    messages
}

fn send_answers(socket: &UnixStream, ids: impl IntoIterator<Item = u64>) {
    for id in ids {
        let value = RawValue::from_string("{}".into()).unwrap();
        let body = serde_json::to_vec(&Response::new(id.into(), Ok(value))).unwrap();
        send_all(socket.as_fd(), &Frame::new(body)).unwrap();
    }
}

/// Reads `count` calls and answers them in the order that `turn` returns.
fn answer(socket: &UnixStream, count: usize, turn: impl Fn(Vec<u64>) -> Vec<u64>) {
    send_answers(socket, turn(read_calls(&mut Decoder::default(), socket, count)));
}

fn connection() -> (Arc<Connection>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Arc::new(Connection::over(ours, Box::new(|_, _, _| {}))), theirs)
}

#[test]
fn callers_get_their_own_answers_in_any_order() {
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
fn group_gets_its_answers_in_order_of_arrival() {
    let (connection, other) = connection();
    let group = Arc::new(CallGroup::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            answer(&other, 100, |mut ids| {
                ids.reverse();
                ids
            });
        });
        let mut pending: Vec<_> = (0..99)
            .map(|_| connection.send_grouped::<Ping>(&Empty {}, &group, &WaitLimit::default()).unwrap())
            .collect();
        connection.call::<Ping>(&Empty {}, Vec::new(), Some(Duration::from_secs(30))).unwrap();
        while !pending.is_empty() {
            for (id, answer) in connection.wait_for(&group, &WaitLimit::default()).unwrap() {
                answer.response.outcome().unwrap();
                pending.retain(|pending| *pending != id);
            }
        }
    });
    assert!(
        connection
            .wait_for(&group, &WaitLimit { keep_waiting: Some(&|| false), ..WaitLimit::default() })
            .unwrap()
            .is_empty(),
        "the caller stopped waiting"
    );
    connection.send_grouped::<Ping>(&Empty {}, &group, &WaitLimit::default()).unwrap();
    drop(other);
    assert_eq!(connection.wait_for(&group, &WaitLimit::default()).err().unwrap().kind(), ErrorKind::Io);
}

#[test]
fn end_of_connection_reaches_all_callers() {
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
fn call_if_open_fails_only_once_the_request_was_sent() {
    let (connection, other) = connection();
    let call = || connection.call_if_open::<Ping>(&Empty {}, Duration::from_secs(30));
    std::thread::scope(|scope| {
        let answered = scope.spawn(call);
        answer(&other, 1, |ids| ids);
        assert!(answered.join().unwrap().unwrap().is_some());
        let sent = scope.spawn(call);
        answer(&other, 1, |_| Vec::new());
        drop(other);
        assert_eq!(sent.join().unwrap().unwrap_err().kind(), ErrorKind::Io);
    });
    assert!(call().unwrap().is_none(), "the end was read");
    let (connection, other) = self::connection();
    drop(other);
    assert!(connection.closed().is_none(), "the end was not read");
    assert!(connection.call_if_open::<Ping>(&Empty {}, Duration::from_secs(30)).unwrap().is_none());
}

#[test]
fn has_ended_sees_an_end_that_was_not_read() {
    let (connection, other) = connection();
    assert!(!connection.has_ended());
    drop(other);
    assert!(connection.has_ended() && connection.closed().is_none());
    assert!(connection.call::<Ping>(&Empty {}, Vec::new(), None).is_err());
    assert!(connection.closed().is_some());
}

#[test]
fn call_times_out_without_an_answer() {
    let (connection, _other) = connection();
    let error = connection.call::<Ping>(&Empty {}, Vec::new(), Some(Duration::from_millis(20))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(connection.closed().is_some());
}

#[test]
fn notifications_are_handled_while_a_caller_waits() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&heard);
    let on_notification: OnNotification =
        Box::new(move |method, params, fds| lock(&listener).push(format!("{method} {params} {}", fds.len())));
    let connection = Connection::over(ours, on_notification);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let body = br#"{"jsonrpc":"2.0","method":"slab.freed","params":[1]}"#.to_vec();
            let fds = vec![OwnedFd::from(theirs.try_clone().unwrap())];
            send_all(theirs.as_fd(), &Frame { body, fds }).unwrap();
            answer(&theirs, 1, |ids| ids);
        });
        connection.call::<Ping>(&Empty {}, Vec::new(), None).unwrap();
    });
    assert_eq!(*lock(&heard), ["slab.freed [1] 1"]);
}

#[test]
fn listener_reads_for_callers_and_returns_at_the_end() {
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
fn late_answer_of_an_abandoned_call_goes_to_the_group() {
    let (connection, other) = connection();
    let late = Arc::new(CallGroup::default());
    let limit = WaitLimit { deadline: Some(Instant::now()), ..WaitLimit::default() };
    let pending = connection.send_call::<Ping>(&Empty {}, Vec::new(), &WaitLimit::default()).unwrap();
    let Ok(Waited::LimitPassed(id)) = pending.wait(&limit) else { panic!("nothing came yet") };
    connection.abandon(id, &late);
    assert!(connection.closed().is_none(), "one call that is late ends no other");
    answer(&other, 1, |ids| ids);
    let arrived = connection.wait_for(&late, &WaitLimit::default()).unwrap();
    assert_eq!(arrived.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id]);
}

#[test]
fn send_returns_at_its_limit_while_the_peer_does_not_read() {
    let (connection, other) = connection();
    let body = || Frame::new(vec![b' '; 1 << 20]);
    let soon = || WaitLimit { deadline: Some(Instant::now() + Duration::from_millis(5)), ..WaitLimit::default() };
    assert!(connection.sending.send(&connection.socket, body(), &soon()).unwrap(), "a part is sent, the rest follows");
    assert!(!connection.sending.send(&connection.socket, body(), &soon()).unwrap(), "nothing is sent");
    for _ in 0..10 {
        connection.notify::<Ping>(&Empty {}).unwrap();
    }
    let mut decoder = Decoder::default();
    std::thread::scope(|scope| {
        scope
            .spawn(|| connection.sending.send(&connection.socket, Frame::new(b"last".to_vec()), &WaitLimit::default()));
        let mut next = || loop {
            match decoder.take().unwrap() {
                Some(frame) => break frame.body,
                None => assert!(decoder.fill(other.as_fd()).unwrap() > 0),
            }
        };
        assert_eq!(next().len(), 1 << 20, "whole, though its sender stopped waiting");
        for _ in 0..10 {
            assert!(next().starts_with(b"{"), "notifications in their order");
        }
        assert_eq!(next(), b"last");
    });
}

#[test]
fn queued_notifications_are_sent_without_a_further_message() {
    const COUNT: usize = 20_000;
    let (connection, other) = connection();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for index in 0..COUNT {
                let body = format!(r#"{{"jsonrpc":"2.0","method":"count","params":[{index}]}}"#);
                connection.send_notification(Frame::new(body.into_bytes())).unwrap();
            }
        });
        // The sender has to wait for room.
        while connection.sending.queued() < NOTIFICATIONS_MAX - 1 {
            std::thread::yield_now();
        }
        let mut decoder = Decoder::default();
        let mut count = 0;
        while count < COUNT {
            match decoder.take().unwrap() {
                Some(frame) => {
                    assert!(frame.body.ends_with(format!("[{count}]}}").as_bytes()), "{count}: in their order");
                    count += 1;
                }
                None => assert!(decoder.fill(other.as_fd()).unwrap() > 0, "{count} arrived"),
            }
        }
    });
}

#[test]
fn queued_notifications_do_not_keep_the_connection_open() {
    let (connection, other) = connection();
    for _ in 0..3000 {
        connection.notify::<Ping>(&Empty {}).unwrap();
    }
    drop(connection);
    let mut decoder = Decoder::default();
    while decoder.fill(other.as_fd()).unwrap() > 0 {}
}
