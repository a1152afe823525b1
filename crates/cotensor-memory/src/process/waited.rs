//! The processes that a caller waits for, as reports name them.

use super::procfs::read;
use super::status::state;
use cotensor_core::waiting::WaitReport;

/// A report of a wait for processes: "waiting for process 12 (python3), which computes x", and what keeps them from their work.
/// `what` follows their numbers. `none` names the process whose number is not known, as in another container.
pub fn wait_report(pids: &[u32], none: &str, what: &str, is_expected: bool) -> WaitReport {
    let names: Vec<String> = pids.iter().copied().map(process_name).collect();
    let named = if names.is_empty() { none.to_owned() } else { names.join(" and ") };
    let halted: Vec<String> = pids.iter().copied().filter_map(halted).collect();
    let is_expected = is_expected && halted.is_empty();
    let text = [vec![format!("waiting for {named}{what}")], halted].concat().join("; ");
    WaitReport { text, is_expected }
}

/// A process as messages name it: its number and the name of its program.
pub(super) fn process_name(pid: u32) -> String {
    match read(&format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim_end()),
        Err(_) => format!("process {pid}"),
    }
}

/// Why a process does nothing, and what continues it; none for a process that runs, and for one that is not found.
fn halted(pid: u32) -> Option<String> {
    match state(pid)? {
        'T' => Some(format!("process {pid} is stopped: `kill -CONT {pid}` continues it")),
        't' => Some(format!("process {pid} is stopped by a debugger")),
        'Z' | 'X' => Some(format!("process {pid} has ended")),
        _ => None,
    }
}

/// The process of a client, by its name and process as the daemon shows them: `name[12]`, or `name[12]/holder`. None for a name
/// without a process.
pub fn client_process(client: &str) -> Option<u32> {
    let name = match client.split_once("]/") {
        Some((name, _)) => name,
        None => client.strip_suffix(']')?,
    };
    name.rsplit_once('[')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn client_names_have_processes() {
        let known = |client| client_process(client);
        assert_eq!((known("a[12]"), known("a[12]/b"), known("a[1][12]/b[3]")), (Some(12), Some(12), Some(12)));
        assert_eq!((known("a"), known("a[x]"), known("a/b[3] "), known("http")), (None, None, None, None));
    }

    #[test]
    fn stopped_process_is_reported_with_its_name() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        let stopped = rustix::process::WaitIdOptions::STOPPED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(pid), stopped).unwrap();
        let number = child.id();
        let report = wait_report(&[number], "a process", ", which computes x", true);
        let text = format!(
            "waiting for process {number} (cat), which computes x; process {number} is stopped: `kill -CONT {number}` \
             continues it"
        );
        assert_eq!(report, WaitReport { text, is_expected: false });
        child.kill().unwrap();
        child.wait().unwrap();
        let report = wait_report(&[number], "a process", "", true);
        assert_eq!(report, WaitReport { text: format!("waiting for process {number}"), is_expected: true });
        assert_eq!(wait_report(&[], "a process", " to end", false).text, "waiting for a process to end");
    }
}
