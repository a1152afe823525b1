//! Signals: SIGHUP, and the limit of file sizes (SIGXFSZ).

use crate::support::processes::{PROGRAM, Processes, content, put, signal};
use crate::support::until;
use cotensor_core::ErrorKind;
use cotensor_store::{CopyReason, Retention, TensorStore};
use rustix::process::Signal;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };

/// The daemon's program, started by a shell that runs `first` first.
fn by_shell(first: &str) -> impl FnOnce(&Path) -> Vec<OsString> {
    let script = format!("{first}; exec \"$0\" \"$@\"");
    |_| vec!["sh".into(), "-c".into(), script.into(), PROGRAM.into()]
}

#[test]
fn sighup_stops_the_daemon_cleanly() {
    let mut processes = Processes::start_by(by_shell(":"), |_| Vec::new());
    drop(put(&processes.connect("one"), "x", &content(1, 5000), KEPT));
    let ignored = std::fs::read_to_string(format!("/proc/{}/status", std::process::id())).unwrap();
    let ignored = ignored.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    if u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 == 1 {
        return eprintln!("not tested: this process and its children ignore SIGHUP");
    }
    signal(processes.supervisor(), Signal::HUP);
    assert!(processes.wait_for_success());
    assert!(!processes.socket.exists() && processes.running().is_empty());
}

#[test]
fn ignored_sighup_does_not_stop_the_daemon() {
    let mut processes = Processes::start_by(by_shell("trap '' HUP"), |_| Vec::new());
    let one = processes.connect("one");
    drop(put(&one, "x", &content(1, 5000), KEPT));
    let both = [processes.supervisor(), processes.server()];
    both.iter().for_each(|pid| signal(*pid, Signal::HUP));
    assert_eq!(one.get("x", &one.holder("")).unwrap().bytes().unwrap(), content(1, 5000));
    assert_eq!([processes.supervisor(), processes.server()], both);
    drop(one);
    assert!(processes.stop());
}

#[test]
fn file_size_limit_is_an_error_and_does_not_end_the_server() {
    const MIB: usize = 1 << 20;
    let limited = by_shell("ulimit -f 4096");
    let processes =
        Processes::start_by(limited, |folder| vec![(13 * MIB).to_string().into(), folder.join("spill").into()]);
    let one = processes.connect("one");
    let server = processes.server();
    // Longer than the limit, in units of 512 or of 1024 bytes.
    drop(put(&one, "long", &content(1, 6 * MIB), KEPT));
    let held = put(&one, "held", &content(2, 6 * MIB), KEPT);
    let spec = cotensor_store::TensorSpec { retention: KEPT, ..crate::support::spec("next", 6 * MIB) };
    let next = one.reserve(spec, &one.holder("")).and_then(|mut reservation| {
        reservation.write(&content(3, 6 * MIB), CopyReason::Put)?;
        reservation.publish()
    });
    let error = next.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
    assert!(error.message().contains("File too large"), "{error}");
    assert_eq!(processes.server(), server);
    assert_eq!(one.get("long", &one.holder("")).unwrap().bytes().unwrap(), content(1, 6 * MIB));
    drop(held);
    until("the server is still there", || processes.server() == server);
}
