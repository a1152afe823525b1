//! A daemon and its clients in a control group with a memory limit.

use crate::support::http::{receive, send};
use crate::support::processes::{Processes, content, put};
use crate::support::{spec, until};
use cotensor_client::ClientStore;
use cotensor_client::protocol::{HttpListen, HttpListenParams, ListHolders, NameParams};
use cotensor_core::ErrorKind;
use cotensor_memory::process::{MemoryGroup, charged_group, memory_groups};
use cotensor_store::{CopyReason, Lease, Retention, TensorStore};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIMIT_BYTES: usize = 300 << 20;
const TOO_LARGE_BYTES: usize = 450 << 20;
const SMALL_BYTES: usize = 600_000;
/// Set in the test program that runs in the group.
const INSIDE: &str = "COTENSOR_TEST_GROUP";
const ENTER: &str = r#"echo $$ > "$1/cgroup.procs" && shift && exec "$@""#;

/// A group below the one of this process, of either version. Removed on drop, after its processes have ended.
struct Group(PathBuf);

impl Group {
    /// `None`, with the reason on standard error, where this process may not make groups with a memory limit.
    fn make() -> Option<Self> {
        let Some(parent) = charged_group(std::process::id()) else {
            eprintln!("not tested: no memory controller is mounted");
            return None;
        };
        let group = Self(parent.join(format!("cotensor-test-{}", std::process::id())));
        let limited = fs::create_dir(&group.0).and_then(|()| {
            let version_two = group.0.join("memory.max");
            let file = if version_two.exists() { version_two } else { group.0.join("memory.limit_in_bytes") };
            fs::OpenOptions::new().write(true).open(&file)?;
            fs::write(file, LIMIT_BYTES.to_string())
        });
        match limited {
            Ok(()) => Some(group),
            Err(error) => {
                eprintln!("not tested: no control group can be made in {}: {error}", parent.display());
                None
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn memory_beyond_the_limit_of_a_control_group_is_refused() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let Some(group) = Group::make() else { return };
    let test = "control_groups::memory_beyond_the_limit_of_a_control_group_is_refused";
    let mut command = Command::new("sh");
    command.args(["-c", ENTER, "sh"]).arg(&group.0).arg(std::env::current_exe().unwrap());
    let status = command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").status().unwrap();
    assert!(status.success(), "{status}");
}

fn try_put(store: &ClientStore, name: &str, bytes: &[u8]) -> cotensor_core::Result<Lease> {
    let mut reservation = store.reserve(spec(name, bytes.len()), &store.holder(""))?;
    reservation.write(bytes, CopyReason::Put)?;
    reservation.publish()
}

fn inside() {
    let processes = Processes::start();
    let store = processes.connect("producer");
    let refused = |outcome: cotensor_core::Result<Lease>| {
        let error = outcome.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
        assert!(error.message().contains("cotensor-test-"), "the group is named: {error}");
    };
    // Not backed by memory, unlike the tensor.
    let zeros = vec![0; TOO_LARGE_BYTES];
    refused(try_put(&store, "put", &zeros));
    // As `empty` of the Python package.
    let aliased = store.reserve_aliased(spec("empty", TOO_LARGE_BYTES), &store.holder(""));
    assert_eq!(aliased.err().unwrap().kind(), ErrorKind::OverBudget);

    let http = store.request::<HttpListen>(&HttpListenParams::default()).unwrap();
    let token = fs::read_to_string(&http.token_file).unwrap();
    let request = format!("PUT /tensors/upload?dtype=uint8&shape={TOO_LARGE_BYTES}");
    let answer = receive(send(http.address, &request, token.trim(), "", &zeros));
    assert_eq!(answer.status, 507, "{answer:?}");
    assert!(String::from_utf8_lossy(&answer.body).contains("cotensor-test-"), "{answer:?}");

    // The group is that of the process that filled the memory.
    let _small = try_put(&store, "charged", &content(1, SMALL_BYTES)).unwrap();
    let found = store.request::<ListHolders>(&NameParams { name: "charged".to_owned() }).unwrap();
    let charged_to = found.versions[0].charged_to.as_deref().unwrap();
    assert_eq!(Some(Path::new(charged_to)), charged_group(std::process::id()).as_deref());
    assert!(charged_to.contains("cotensor-test-"), "{charged_to}");

    // Tensors that fit one by one.
    let bytes = content(1, SMALL_BYTES);
    let mut held = Vec::new();
    let last = loop {
        match try_put(&store, &held.len().to_string(), &bytes) {
            Ok(lease) => held.push(lease),
            Err(error) => break error,
        }
        assert!(held.len() * SMALL_BYTES < LIMIT_BYTES, "more than the limit");
    };
    refused(Err(last));
    assert!(held.len() * SMALL_BYTES > LIMIT_BYTES / 2, "{} tensors", held.len());
    // Released memory is available again, when the daemon has freed it.
    drop(held);
    until("the tensors are freed", || {
        let own = |group: &&MemoryGroup| group.limit_bytes == LIMIT_BYTES as u64;
        memory_groups(None).iter().find(own).is_some_and(|group| group.used_bytes < LIMIT_BYTES as u64 / 2)
    });
    put(&store, "after", &content(2, 100 << 20), Retention::WhileLeased);
}
