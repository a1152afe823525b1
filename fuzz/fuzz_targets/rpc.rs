//! Messages of one session, one per line: the daemon answers with JSON-RPC, and frees the session's resources at its end.
#![no_main]

use cotensor_daemon::fuzzing::Unconnected;
use serde_json::Value;
use std::cell::OnceCell;

thread_local! {
    static DAEMON: OnceCell<Unconnected> = const { OnceCell::new() };
}

fn check(answer: &Value) {
    assert_eq!(answer["jsonrpc"], "2.0");
    let error = answer.get("error");
    assert!(answer.get("id").is_some() && error.is_some() != answer.get("result").is_some(), "{answer}");
    assert!(error.is_none_or(|error| error["code"].is_i64() && error["message"].is_string()), "{answer}");
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let [fds, lines @ ..] = bytes else { return };
    let messages: Vec<&[u8]> = lines.split(|byte| *byte == b'\n').take(16).collect();
    DAEMON.with(|daemon| {
        let daemon = daemon.get_or_init(|| Unconnected::new().expect("a daemon"));
        for answer in daemon.answers(&messages, usize::from(fds % 3)).expect("descriptors").into_iter().flatten() {
            match serde_json::from_slice(&answer).expect("a response is JSON") {
                Value::Array(answers) => {
                    assert!(!answers.is_empty());
                    answers.iter().for_each(check);
                }
                answer => check(&answer),
            }
        }
        daemon.check_budget();
    });
});
