//! Frames that are too long, half sent, dripping, or no frames at all.

use cotensor_attacks::{Raw, SHORT, Target};
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

fn header(body: u32, fds: u8, zeros: [u8; 3]) -> Vec<u8> {
    [&body.to_le_bytes()[..], &[fds], &zeros].concat()
}

#[test]
fn headers_past_the_limits_end_the_connection() {
    let target = Target::start(|_| {});
    let wrong = [
        header(u32::MAX, 0, [0; 3]),
        header((16 << 20) + 1, 0, [0; 3]),
        header(10, 65, [0; 3]),
        header(10, 255, [0; 3]),
        header(10, 0, [0, 0, 1]),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        vec![255; 4096],
        vec![0; 1],
    ];
    for bytes in wrong {
        let mut raw = target.raw();
        raw.bytes(&bytes);
        drop(raw.socket.shutdown(std::net::Shutdown::Write));
        raw.is_ended();
    }
    target.is_unharmed();
}

#[test]
fn half_a_frame_is_waited_for_no_longer_than_a_whole_one_takes() {
    let target = Target::start(|config| config.patience = SHORT);
    let mut silent = Raw::connect(&target.socket);
    let (mut half_a_header, mut half_a_body) = (target.raw(), target.raw());
    half_a_header.bytes(&[1, 0]);
    // As much as a frame may have, but for the last byte.
    half_a_body.bytes(&header(16 << 20, 0, [0; 3]));
    half_a_body.bytes(&vec![b' '; (16 << 20) - 1]);
    for raw in [&mut silent, &mut half_a_header, &mut half_a_body] {
        raw.is_ended();
    }
    drop((silent, half_a_header, half_a_body));
    target.is_unharmed();
}

#[test]
fn frames_of_many_connections_that_do_not_end_are_bounded_together() {
    const CONNECTIONS: usize = 40;
    let target = Target::start(|config| config.patience = Duration::from_secs(5));
    let begun: Vec<Raw> = (0..CONNECTIONS).map(|_| target.raw()).collect();
    // Each sends as much as a frame may have, but for the last byte. What the daemon does not read stays with its sender.
    let body = vec![b' '; (16 << 20) - 1];
    let (held, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for mut raw in begun {
            let (body, held, most) = (&body, &held, &most);
            scope.spawn(move || {
                if raw.bytes(&header(16 << 20, 0, [0; 3])) && raw.bytes(body) {
                    most.fetch_max(held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    raw.is_ended();
                    held.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    // Four at a time; some more where the senders of the last four have not seen their connections' ends yet.
    let most = most.into_inner();
    assert!((1..CONNECTIONS / 2).contains(&most), "{most} of {CONNECTIONS} at a time");
    target.is_unharmed();
}

#[test]
fn a_frame_that_drips_is_late_all_the_same() {
    let target = Target::start(|config| config.patience = SHORT);
    let raw = target.raw();
    let start = Instant::now();
    raw.bytes(&header(1 << 20, 0, [0; 3]));
    // Far below what it may wait between two bytes, and for ever.
    while raw.bytes(b" ") {
        assert!(start.elapsed() < Duration::from_secs(30), "it is waited for still");
        std::thread::sleep(SHORT / 30);
    }
    drop(raw);
    target.is_unharmed();
}

#[test]
fn who_is_silent_between_frames_is_left_alone() {
    let target = Target::start(|config| config.patience = SHORT);
    let mut raw = target.raw();
    for _ in 0..3 {
        std::thread::sleep(SHORT * 2);
        assert_eq!(raw.call("ping", json!({}), &[]), Ok(json!({})));
    }
    // Two frames in one piece, the second in two: the time of each is its own.
    let frame = [header(PING.len() as u32, 0, [0; 3]), PING.as_bytes().to_vec()].concat();
    for _ in 0..4 {
        raw.bytes(&[&frame[..], &frame[..20]].concat());
        raw.hear();
        std::thread::sleep(SHORT / 2);
        raw.bytes(&frame[20..]);
        raw.hear();
    }
    drop(raw);
    target.is_unharmed();
}

#[test]
fn what_is_no_call_is_answered_and_the_next_is_a_call_again() {
    let target = Target::start(|_| {});
    let mut raw = target.raw();
    for (text, code) in [
        ("", -32700),
        ("\0\0\0", -32700),
        ("\u{feff}{}", -32700),
        ("nonsense", -32700),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping""#, -32700),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":1,"method":"ping"}"#, -32700),
        (r#"{"jsonrpc":"2.0","id":[1],"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"system.exec"}"#, -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping\u0000"}"#, -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tensor.get","params":{"name":7}}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tensor.get","params":{"name":"\ud800"}}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tensor.has","params":{"id":{"slot":-1,"version":1e99}}}"#, -32602),
    ] {
        raw.say(text);
        let (answer, _) = raw.hear();
        assert_eq!(answer["error"]["code"], code, "{text:?}: {answer}");
    }
    assert_eq!(raw.call("ping", json!({}), &[]), Ok(json!({})));
    drop(raw);
    target.is_unharmed();
}
