//! Frames that are too long, incomplete, slow or invalid.

use cotensor_attacks::{Raw, SHORT_TIMEOUT, Target};
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
        let _ = raw.socket.shutdown(std::net::Shutdown::Write);
        raw.assert_ended();
    }
    target.assert_unharmed();
}

#[test]
fn incomplete_frame_times_out() {
    let target = Target::start(|config| config.message_timeout = SHORT_TIMEOUT);
    let mut silent = Raw::connect(&target.socket);
    let (mut half_a_header, mut half_a_body) = (target.raw(), target.raw());
    half_a_header.bytes(&[1, 0]);
    // The maximum length of a frame without the last byte.
    half_a_body.bytes(&header(16 << 20, 0, [0; 3]));
    half_a_body.bytes(&vec![b' '; (16 << 20) - 1]);
    for raw in [&mut silent, &mut half_a_header, &mut half_a_body] {
        raw.assert_ended();
    }
    drop((silent, half_a_header, half_a_body));
    target.assert_unharmed();
}

#[test]
fn incomplete_frames_of_many_connections_are_bounded_together() {
    const CONNECTIONS: usize = 40;
    let target = Target::start(|config| config.message_timeout = Duration::from_secs(5));
    let begun: Vec<Raw> = (0..CONNECTIONS).map(|_| target.raw()).collect();
    // Each sends the maximum length of a frame without the last byte. Unread bytes stay in the sender's buffer.
    let body = vec![b' '; (16 << 20) - 1];
    let (held, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for mut raw in begun {
            let (body, held, most) = (&body, &held, &most);
            scope.spawn(move || {
                if raw.bytes(&header(16 << 20, 0, [0; 3])) && raw.bytes(body) {
                    most.fetch_max(held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    raw.assert_ended();
                    held.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    // Four at a time, plus senders that have not noticed the end of their connections.
    let most = most.into_inner();
    assert!((1..CONNECTIONS / 2).contains(&most), "{most} of {CONNECTIONS} at a time");
    target.assert_unharmed();
}

#[test]
fn slow_frame_times_out() {
    let target = Target::start(|config| config.message_timeout = SHORT_TIMEOUT);
    let raw = target.raw();
    let start = Instant::now();
    raw.bytes(&header(1 << 20, 0, [0; 3]));
    // Short pauses between bytes, without an end.
    while raw.bytes(b" ") {
        assert!(start.elapsed() < Duration::from_secs(30), "the daemon still waits");
        std::thread::sleep(SHORT_TIMEOUT / 30);
    }
    drop(raw);
    target.assert_unharmed();
}

#[test]
fn idle_connection_stays_open() {
    // Long enough that a busy machine does not exceed it within one frame.
    let timeout = SHORT_TIMEOUT * 4;
    let target = Target::start(|config| config.message_timeout = timeout);
    let mut raw = target.raw();
    std::thread::sleep(timeout * 3 / 2);
    assert_eq!(raw.call("ping", json!({}), &[]), Ok(json!({})));
    // Two frames in one write, the second in two: each has its own time-out, and together they take longer than one.
    let frame = [header(PING.len() as u32, 0, [0; 3]), PING.as_bytes().to_vec()].concat();
    for _ in 0..6 {
        raw.bytes(&[&frame[..], &frame[..20]].concat());
        raw.receive();
        std::thread::sleep(timeout / 4);
        raw.bytes(&frame[20..]);
        raw.receive();
    }
    drop(raw);
    target.assert_unharmed();
}

#[test]
fn invalid_messages_get_an_error_and_the_connection_stays_usable() {
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
        (r#"{"jsonrpc":"2.0","id":1,"method":"tensor.has","params":{"id":{"name_id":-1,"version":1e99}}}"#, -32602),
    ] {
        raw.send_frame(text);
        let (answer, _) = raw.receive();
        assert_eq!(answer["error"]["code"], code, "{text:?}: {answer}");
    }
    assert_eq!(raw.call("ping", json!({}), &[]), Ok(json!({})));
    drop(raw);
    target.assert_unharmed();
}
