//! A daemon whose address space is limited.

use crate::support::http::{begin, receive};
use crate::support::processes::{PROGRAM, Processes, content, put};
use cotensor_client::protocol::{HttpListen, HttpListenParams};
use cotensor_store::Retention;
use std::io::Write;

/// The server maps about 430 MB at its start.
const LIMIT_KB: u64 = 600_000;
const CLIENTS: usize = 60;
const BODY_BYTES: usize = 4_000_000;

/// An allocation that fails ends a process. Requests that do not fit are refused before.
#[test]
fn requests_beyond_the_address_space_are_refused() {
    let limited = format!("ulimit -v {LIMIT_KB}; exec \"$0\" \"$@\"");
    let command = ["sh", "-c", &limited, PROGRAM].map(Into::into).into();
    let processes = Processes::start_by(|_| command, |_| Vec::new());
    let store = processes.connect("one");
    let held = put(&store, "kept", &content(1, 1000), Retention::WhileLeased);
    let server = processes.server();
    let http = store.request::<HttpListen>(&HttpListenParams::default()).unwrap();
    let token = std::fs::read_to_string(&http.token_file).unwrap();
    let mut body = br#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":""#.to_vec();
    body.resize(BODY_BYTES, b'x');
    body.extend_from_slice(br#""}}"#);
    // All are in the daemon at the same time: the last byte of each comes at the end.
    let (most, last) = body.split_at(body.len() - 1);
    let begun: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let headers = "Content-Type: application/json\r\n";
            let mut stream = begin(http.address, "POST /jsonrpc", token.trim(), headers, body.len());
            let _ = stream.write_all(most);
            stream
        })
        .collect();
    let statuses: Vec<u16> = begun
        .into_iter()
        .map(|mut stream| {
            let _ = stream.write_all(last);
            receive(stream).status
        })
        .collect();
    assert!(statuses.iter().all(|status| [200, 503, 507].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&507) && statuses.contains(&200), "{statuses:?}");
    assert_eq!(processes.server(), server, "the server lives");
    assert_eq!(held.bytes().unwrap(), content(1, 1000));
}
