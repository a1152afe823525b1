//! Daemons that commands start in the background.

use crate::support::{Daemon, until};
use cotensor::core::{DType, ErrorKind};
use cotensor::store::{CopyReason, TensorSpec, TensorStore};
use cotensor_client::{ClientStore, ClientStoreBuilder, DaemonProgram};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A place for a daemon, which ends with this value.
struct Place(Daemon);

impl Place {
    fn new() -> Self {
        let daemon = Daemon::stopped();
        std::fs::write(daemon.path("x.raw"), [7; 8]).unwrap();
        Self(daemon)
    }

    /// A command that may start a daemon.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.0.command(arguments);
        command.env("COTENSOR_AUTOSTART", "1");
        command
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.ok(&["status", "--json"])).unwrap()
    }

    fn put(&self, name: &str) -> Command {
        self.command(&["put", name, "x.raw", "--dtype", "uint8", "--shape", "8"])
    }

    fn wait_for_end(&self) {
        let start = Instant::now();
        // A connection would keep it running.
        while self.0.socket().exists() {
            assert!(start.elapsed() < Duration::from_secs(60), "the daemon does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.command(&["stop"]).output());
    }
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn read(pid: &Value, file: &str) -> Vec<u8> {
    std::fs::read(format!("/proc/{pid}/{file}")).unwrap()
}

#[test]
fn first_command_starts_a_daemon_that_has_nothing_of_it() {
    let place = Place::new();
    // A descriptor that the command inherits, and that the daemon must not have.
    let open = std::fs::File::create(place.0.path("inherited")).unwrap();
    let mut put = place.put("x");
    put.env("HF_TOKEN", "secret").env("LD_LIBRARY_PATH", "/nowhere").stdin(Stdio::from(open));
    assert!(put.output().unwrap().status.success());
    let status = place.status();
    assert_eq!((&status["running"], &status["tensors"], &status["clients"]), (&true.into(), &1.into(), &0.into()));
    for process in ["supervisor", "server"] {
        let pid = &status[process];
        let environment = String::from_utf8_lossy(&read(pid, "environ")).into_owned();
        assert!(!environment.contains("HF_TOKEN") && !environment.contains("LD_LIBRARY_PATH"), "{environment}");
        assert!(environment.contains("COTENSOR_SOCKET="), "{environment}");
        assert_eq!(std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), std::path::Path::new("/"));
        let stat = String::from_utf8(read(pid, "stat")).unwrap();
        let session = stat.rsplit(')').next().unwrap().split_whitespace().nth(3).unwrap().to_owned();
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert_ne!(Some(session.as_str()), own.rsplit(')').next().unwrap().split_whitespace().nth(3));
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let open: Vec<_> = open.filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
        assert!(!open.iter().any(|file| file.ends_with("inherited")), "{open:?}");
    }
    assert!(place.ok(&["logs"]).contains("listening on"));
    assert!(place.ok(&["ls"]).contains('x'), "the same daemon");
    assert!(place.ok(&["stop"]).contains("freed 1 tensor ("));
    for process in ["supervisor", "server"] {
        // A process that has ended has no command line, also before its parent has read its status.
        let line = std::fs::read(format!("/proc/{}/cmdline", status[process])).unwrap_or_default();
        assert!(line.is_empty(), "the {process} has not ended");
    }
    let stopped = place.command(&["status"]).output().unwrap();
    assert_eq!(stopped.status.code(), Some(1), "{}", error(&stopped));
    assert!(place.command(&["stop"]).output().unwrap().status.success(), "nothing is left to do");
}

/// Gives itself attributes that a daemon must not inherit, and runs its arguments.
const STARTER: &str = r#"
import os, resource, signal, sys
for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
os.nice(7)
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
open("/proc/self/oom_score_adj", "w").write("500")
os.umask(0)
for limit in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE):
    resource.setrlimit(limit, (1 << 34, resource.getrlimit(limit)[1]))
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.execv(sys.argv[1], sys.argv[1:])
"#;

#[test]
fn shared_processes_inherit_no_attribute_of_the_starter() {
    let place = Place::new();
    let mut put = Command::new("python3");
    put.args(["-c", STARTER, env!("CARGO_BIN_EXE_cotensor")]);
    let like = place.put("x");
    put.args(like.get_args()).current_dir(like.get_current_dir().unwrap());
    put.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = put.output().unwrap();
    assert!(output.status.success(), "{}", error(&output));
    place.ok(&["models", "load", concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny/bert")]);
    let status = place.status();
    let line = |pid: &Value, file: &str, name: &str| {
        let text = String::from_utf8(read(pid, file)).unwrap();
        text.lines().find(|line| line.starts_with(name)).unwrap().to_owned()
    };
    for process in ["supervisor", "server", "models"] {
        let pid = &status[process];
        assert!(pid.is_u64(), "{process}: {status}");
        let ignored =
            u64::from_str_radix(line(pid, "status", "SigIgn").split_whitespace().nth(1).unwrap(), 16).unwrap();
        // The daemon itself ignores SIGPIPE (13) and SIGXFSZ (25), and the C library's posix_spawn its own 32 and 33.
        assert_eq!(ignored & !(1 << 12 | 1 << 24 | 3 << 31), 0, "{process}: {ignored:x}");
        assert_eq!(line(pid, "status", "SigBlk"), "SigBlk:\t0000000000000000", "{process}");
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        let cpus = own.lines().find(|line| line.starts_with("Cpus_allowed:")).unwrap().to_owned();
        assert_eq!(line(pid, "status", "Cpus_allowed:"), cpus, "{process}");
        let stat = String::from_utf8(read(pid, "stat")).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        // proc_pid_stat(5): nice is field 19, the policy field 41; these begin with field 3.
        assert_eq!((fields[16], fields[38]), ("0", "0"), "{process}: nice and policy");
        assert_eq!(read(pid, "oom_score_adj"), b"0\n", "{process}");
        for limit in ["Max cpu time", "Max address space", "Max data size", "Max file size"] {
            let found = line(pid, "limits", limit);
            assert!(!found.contains("17179869184"), "{process}: {found}");
        }
    }
    // Signals reach it.
    let supervisor = status["supervisor"].to_string();
    assert!(Command::new("kill").arg(&supervisor).status().unwrap().success());
    place.wait_for_end();
}

#[test]
fn client_whose_daemon_was_stopped_starts_the_next_one_when_it_calls() {
    let place = Place::new();
    let program = DaemonProgram::new(env!("CARGO_BIN_EXE_cotensor"), Vec::new());
    let socket = place.0.socket();
    let connect = |builder: ClientStoreBuilder| builder.socket(&socket).start(program.clone()).connect().unwrap();
    let store = connect(ClientStore::builder("one"));
    let idle = connect(ClientStore::builder("idle"));
    let reserve = |name: &str| {
        let mut reserved = store.reserve(TensorSpec::new(name, DType::U8, &[4]), &store.holder("")).unwrap();
        reserved.write(&[1, 2, 3, 4], CopyReason::Put).unwrap();
        reserved
    };
    let before = reserve("before").publish().unwrap();
    // A tensor between two daemons: its range is in a slab that the second one does not know.
    let between = reserve("between");
    let first = store.epoch();
    place.ok(&["stop"]);
    assert!(!socket.exists(), "idle clients start no daemon");
    let _between = between.publish().unwrap();
    assert_ne!(store.epoch(), first);
    assert_eq!(store.get("between", &store.holder("")).unwrap().bytes(), Some(&[1, 2, 3, 4][..]));
    assert_eq!(before.bytes(), Some(&[1, 2, 3, 4][..]), "mappings outlive the daemon");
    assert_eq!(store.get("before", &store.holder("")).unwrap_err().kind(), ErrorKind::NotFound);
    // An idle client finds the next daemon by itself.
    until("the idle client reconnects", || idle.epoch() == store.epoch());
    // Both processes die at once.
    let status = place.status();
    let kill = |process: &str| Command::new("kill").args(["-9", &status[process].to_string()]).status().unwrap();
    assert!(kill("supervisor").success() && kill("server").success());
    let _after = reserve("after").publish().unwrap();
    assert_eq!(idle.get("after", &idle.holder("")).unwrap().bytes(), Some(&[1, 2, 3, 4][..]));
    // A client that may start none says so.
    place.ok(&["stop"]);
    let error = ClientStore::connect(Some(&socket), "other").err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[test]
fn many_commands_at_once_start_one_daemon() {
    let place = Place::new();
    let names: Vec<String> = (0..20).map(|index| format!("x{index}")).collect();
    let started: Vec<_> = names
        .iter()
        .map(|name| place.put(name).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    for child in started {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", error(&output));
    }
    assert_eq!(place.status()["tensors"], 20, "a second daemon would have some of them");
}

#[test]
fn daemon_ends_without_clients_and_tensors_and_another_starts() {
    let place = Place::new();
    let run = |mut command: Command| assert!(command.env("COTENSOR_IDLE_EXIT", "1").status().unwrap().success());
    run(place.put("x"));
    let first = place.status()["server"].clone();
    run(place.command(&["rm", "x"]));
    place.wait_for_end();
    assert!(place.ok(&["logs"]).contains("no client and no tensor"));
    run(place.put("y"));
    assert_ne!(place.status()["server"], first);
}

#[test]
fn autostart_can_be_forbidden() {
    let place = Place::new();
    for (arguments, variable) in [(&["ls"][..], "0"), (&["ls", "--autostart", "false"], "1")] {
        let output = place.command(arguments).env("COTENSOR_AUTOSTART", variable).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", error(&output));
        assert!(error(&output).contains("cotensor serve"), "{}", error(&output));
    }
    assert!(!place.0.socket().exists());
}

#[test]
fn daemon_that_cannot_start_says_why() {
    let place = Place::new();
    std::fs::write(place.0.path("file"), "").unwrap();
    let output = place.command(&["ls"]).env("COTENSOR_SPILL", place.0.path("file")).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", error(&output));
    assert!(error(&output).contains("did not start") && error(&output).contains("cotensor.log"), "{}", error(&output));
    // The next one starts.
    place.ok(&["ls"]);
}

#[test]
fn log_and_lock_that_are_no_files_are_refused_without_a_wait() {
    let place = Place::new();
    for (name, words) in [("cotensor.log", "the daemon's log"), ("cotensor.start", "the lock of a start")] {
        let path = place.0.path(name);
        // The lock is there after the first round.
        let _ = std::fs::remove_file(&path);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let output = place.command(&["ls"]).output().unwrap();
        assert!(error(&output).contains(words) && error(&output).contains("not a regular file"), "{output:?}");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(place.0.path("other"), &path).unwrap();
        let output = place.command(&["ls"]).output().unwrap();
        assert!(error(&output).contains("not a regular file"), "{output:?}");
        assert!(!place.0.path("other").exists());
        std::fs::remove_file(&path).unwrap();
    }
    assert!(Command::new("mkfifo").arg(place.0.path("cotensor.log")).status().unwrap().success());
    let output = place.command(&["logs"]).output().unwrap();
    assert!(error(&output).contains("not a regular file"), "{output:?}");
}

#[test]
fn serve_runs_in_the_background() {
    let place = Place::new();
    let status: Value = serde_json::from_str(&place.ok(&["serve", "-d", "--max-memory", "64MiB", "--json"])).unwrap();
    assert_eq!((&status["running"], &status["max_memory_bytes"]), (&true.into(), &(64 << 20).into()));
    assert_eq!(status["idle_exit_s"], Value::Null);
    let second = place.command(&["serve", "--detach"]).output().unwrap();
    assert_eq!(second.status.code(), Some(2), "{}", error(&second));
}

#[test]
fn results_and_weights_do_not_keep_a_daemon() {
    let place = Place::new();
    let run = |mut command: Command| assert!(command.env("COTENSOR_IDLE_EXIT", "1").output().unwrap().status.success());
    let bert = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/bert");
    let arguments =
        ["run", bert.to_str().unwrap(), "sentence-embedding", "--text", "gulls", "--engine", "rten", "--daemon"];
    run(place.command(&arguments));
    place.wait_for_end();
    assert!(place.ok(&["logs"]).contains("no client and no tensor"));
}

/// A daemon of another protocol: it refuses each hello, and ends on SIGTERM.
const OLD_DAEMON: &str = r#"
import json, signal, socket, sys
signal.signal(signal.SIGTERM, signal.SIG_DFL)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(8)
print("ready", flush=True)
while True:
    stream, _ = listener.accept()
    if len(head := stream.recv(8)) == 8:
        call = json.loads(stream.recv(int.from_bytes(head[:4], "little")))
        data = {"kind": "unsupported", "field": "protocol"}
        body = {"jsonrpc": "2.0", "id": call["id"], "error": {"code": -32005, "message": "protocol 2", "data": data}}
        body = json.dumps(body).encode()
        stream.sendall(len(body).to_bytes(4, "little") + bytes(4) + body)
    stream.close()
"#;

#[test]
fn daemon_of_another_version_is_named_and_can_be_stopped() {
    let daemon = Daemon::stopped();
    let mut old = Command::new("python3")
        .args(["-c", OLD_DAEMON])
        .args([daemon.path("cotensor.sock").as_os_str(), "serve".as_ref()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(old.stdout.take().unwrap()).read_line(&mut line).unwrap();
    daemon.expect_error(&["ls"], 2, &["cotensor.sock", "protocol 2"]);
    let stopped = String::from_utf8(daemon.ok(&["stop"])).unwrap();
    assert_eq!(stopped, format!("stopped process {}, a daemon of another version\n", old.id()));
    assert_eq!(old.wait().unwrap().signal(), Some(15));
}
