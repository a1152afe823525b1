//! Many calls in few messages.

use super::*;
use std::collections::VecDeque;

struct Echo;

impl Method for Echo {
    const NAME: &'static str = "echo";
    const SUMMARY: &'static str = "Returns a text.";
    type Params = [String; 1];
    type Result = Empty;
}

#[test]
fn call_each_sends_all_requests_before_it_waits() {
    let (connection, other) = connection();
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let params: Vec<_> = (0..200).map(|_| Empty {}).collect();
            connection.call_each::<Ping>(&params, single(128), |_| 0, Duration::from_secs(30))
        });
        // Answers only after it has read so many.
        for count in [128, 72] {
            answer(&other, count, |mut ids| {
                ids.reverse();
                ids
            });
        }
        let results = calls.join().unwrap();
        assert!(results.len() == 200 && results.iter().all(Result::is_ok));
        let calls = scope
            .spawn(|| connection.call_each::<Ping>(&[Empty {}, Empty {}], single(2), |_| 0, Duration::from_secs(30)));
        answer(&other, 2, |ids| ids[..1].to_vec());
        drop(other);
        let results = calls.join().unwrap();
        assert!(results[0].is_ok() && results[1].as_ref().is_err_and(|error| error.kind() == ErrorKind::Io));
    });
}

#[test]
fn hundreds_of_requests_are_sent_before_the_first_answer() {
    let (connection, other) = connection();
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| are_answered(&connection, 400, 512));
        answer(&other, 400, |mut ids| {
            ids.reverse();
            ids
        });
        assert_eq!(calls.join().unwrap(), [true; 400]);
    });
}

#[test]
fn each_answer_lets_another_request_be_sent() {
    let (connection, other) = connection();
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| are_answered(&connection, 300, 128));
        let mut decoder = Decoder::default();
        let mut ids = VecDeque::from(read_calls(&mut decoder, &other, 128));
        for _ in 128..300 {
            send_answers(&other, ids.pop_front());
            ids.extend(read_calls(&mut decoder, &other, 1));
        }
        send_answers(&other, ids);
        assert_eq!(calls.join().unwrap(), [true; 300]);
    });
}

#[test]
fn end_of_the_connection_is_the_error_of_calls_without_an_answer() {
    let (connection, other) = connection();
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| are_answered(&connection, 3, 2));
        let mut decoder = Decoder::default();
        let ids = read_calls(&mut decoder, &other, 2);
        send_answers(&other, ids.into_iter().take(1));
        read_calls(&mut decoder, &other, 1);
        drop(other);
        assert_eq!(calls.join().unwrap(), [true, false, false]);
    });
}

/// One call in each message.
fn single(unanswered: usize) -> CallsMax {
    CallsMax { in_message: 1, unanswered }
}

/// Calls `count` times at once. Returns which calls were answered.
fn are_answered(connection: &Connection, count: usize, unanswered_max: usize) -> Vec<bool> {
    let params: Vec<_> = (0..count).map(|_| Empty {}).collect();
    let results = connection.call_each::<Ping>(&params, single(unanswered_max), |_| 0, Duration::from_secs(30));
    results.iter().map(Result::is_ok).collect()
}

/// A tensor's length, which is that of the file of its descriptor.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Found {
    bytes: u64,
    fd: bool,
}

struct Find;

impl Method for Find {
    const NAME: &'static str = "find";
    const SUMMARY: &'static str = "Finds a file by its length.";
    type Params = [u64; 1];
    type Result = Found;
}

/// Answers a batch in the reversed order. Each answer has a descriptor, but for those with an odd number, and every seventh is an error.
fn answer_batch(socket: &UnixStream, calls: Vec<Result<crate::Call, Response>>) {
    let (mut body, mut fds) = (Vec::new(), Vec::new());
    for call in calls.into_iter().rev() {
        let call = call.unwrap();
        let bytes: u64 = call.params.unwrap().get().trim_matches(['[', ']']).parse().unwrap();
        let fd = bytes.is_multiple_of(2);
        let outcome = if bytes.is_multiple_of(7) {
            Err(crate::to_object(&Error::not_found("no such file")))
        } else {
            if fd {
                let file = tempfile::tempfile().unwrap();
                file.set_len(bytes).unwrap();
                fds.push(OwnedFd::from(file));
            }
            Ok(serde_json::value::to_raw_value(&Found { bytes, fd }).unwrap())
        };
        body.push(Response::new(call.id.unwrap(), outcome));
    }
    send_all(socket.as_fd(), &Frame { body: serde_json::to_vec(&body).unwrap(), fds }).unwrap();
}

#[test]
fn calls_of_one_message_get_their_own_answers_and_descriptors() {
    const COUNT: u64 = 400;
    let (connection, other) = connection();
    let max = CallsMax { in_message: 64, unanswered: 512 };
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let params: Vec<[u64; 1]> = (0..COUNT).map(|bytes| [bytes]).collect();
            connection.call_each::<Find>(&params, max, |found| usize::from(found.fd), Duration::from_secs(30))
        });
        // All are sent before the first answer, in as few messages as possible.
        let messages = read_messages(&mut Decoder::default(), &other, (COUNT as usize).div_ceil(64));
        for message in messages {
            let Message::Batch(calls) = message else { panic!("a batch") };
            answer_batch(&other, calls);
        }
        for (bytes, found) in (0..).zip(calls.join().unwrap()) {
            if bytes % 7 == 0 {
                assert_eq!(found.unwrap_err().kind(), ErrorKind::NotFound);
                continue;
            }
            let (found, fds) = found.unwrap();
            let lengths: Vec<u64> =
                fds.into_iter().map(|fd| std::fs::File::from(fd).metadata().unwrap().len()).collect();
            assert_eq!((found.bytes, lengths), (bytes, if bytes % 2 == 0 { vec![bytes] } else { vec![] }));
        }
    });
}

/// The descriptors after a result that is not of the method's type could belong to any call.
#[test]
fn unreadable_result_of_a_batch_ends_the_use_of_its_descriptors() {
    let (connection, other) = connection();
    let max = CallsMax { in_message: 3, unanswered: 3 };
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| connection.call_each::<Find>(&[[1], [2], [3]], max, |_| 1, Duration::from_secs(30)));
        let messages = read_messages(&mut Decoder::default(), &other, 1);
        let Some(Message::Batch(calls_read)) = messages.into_iter().next() else { panic!("a batch") };
        let answers = calls_read.into_iter().zip(["{\"bytes\":1,\"fd\":true}", "7", "{\"bytes\":3,\"fd\":true}"]);
        let answers = answers.map(|(call, value)| {
            Response::new(call.unwrap().id.unwrap(), Ok(RawValue::from_string(value.to_owned()).unwrap()))
        });
        let body = serde_json::to_vec(&answers.collect::<Vec<_>>()).unwrap();
        let fds = (0..3).map(|_| OwnedFd::from(tempfile::tempfile().unwrap())).collect();
        send_all(other.as_fd(), &Frame { body, fds }).unwrap();
        let results = calls.join().unwrap();
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, false]);
    });
}

#[test]
fn long_calls_are_sent_in_messages_of_their_own() {
    let (connection, other) = connection();
    let max = CallsMax { in_message: 8, unanswered: 8 };
    let long = vec![["x".repeat(600 << 10)]; 4];
    std::thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let sent = connection.call_each::<Echo>(&long, max, |_| 0, Duration::from_secs(30));
            sent.iter().map(Result::is_err).collect::<Vec<_>>()
        });
        let calls_of = |message: &Message| match message {
            Message::Batch(calls) => calls.len(),
            _ => 1,
        };
        let messages = read_messages(&mut Decoder::default(), &other, 1);
        assert_eq!(messages.iter().map(calls_of).collect::<Vec<_>>(), [2]);
        drop(other);
        assert_eq!(calls.join().unwrap(), [true; 4]);
    });
}
