//! The daemon's memory while calls over HTTP wait for their functions.

use crate::functions_by_name::Served;
use crate::support::http::send;
use crate::support::until;

/// The number of calls.
const CALLS: usize = 16;
/// The bytes of a call's text.
const TEXT_BYTES: usize = 4 << 20;
/// More bytes than a call occupies. As values of `serde_json`, its numbers occupy 150 MiB.
const BYTES_MAX: usize = 24 << 20;

#[test]
fn numbers_of_arguments_occupy_little_more_than_their_text() {
    let served = Served::start();
    // Two bytes for each number.
    let numbers = format!("[{}0]", "0,".repeat(TEXT_BYTES / 2 - 100));
    let tensor = format!(r#"[{{"$tensor":{{"data":{numbers},"dtype":"uint8"}}}}]"#);
    // A message has at most 2^20 values.
    let list = format!("[[{}0]]", "0,".repeat((1 << 20) - 100));
    for params in [tensor, list] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"wait","params":{params}}}"#);
        let headers = "Content-Type: application/json\r\n";
        let request = || send(served.http.address, "POST /jsonrpc", &served.token, headers, body.as_bytes());
        let waiting: Vec<_> = (0..CALLS).map(|_| request()).collect();
        until("all calls run", || served.provider.as_ref().unwrap().callers() == CALLS);
        let peak = peak_bytes(served.processes.server());
        assert!(peak < CALLS * BYTES_MAX, "{} MiB", peak >> 20);
        drop(waiting);
        until("the calls have ended", || served.provider.as_ref().unwrap().callers() == 0);
    }
}

/// The most memory that a process has occupied.
fn peak_bytes(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}
