//! Providers and callers in other processes that are killed or stopped. The other process is this test program, started
//! again with a socket in its environment.

use crate::support::{Tracked, int, memory_files, none, until};
use cotensor_client::ClientStore;
use cotensor_core::waiting::{WaitReport, set_wait_reporter};
use cotensor_core::{ContentHash, DType, Device, ErrorKind};
use cotensor_daemon::testing::{Running, is_stopped, spec};
use cotensor_daemon::{Config, Embedded};
use cotensor_functions::{
    Arguments, CallError, Completion, Context, Failure, Functions, Object, Options, Provider, Value,
};
use cotensor_store::{
    BlobSource, BlobSpec, BlobStore, Claim, ComputationStore, CopyReason, Key, StoreReports, TensorStore,
};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// The daemon's socket. Set only in the other process.
const SOCKET: &str = "COTENSOR_TEST_SOCKET";

/// Another process, which is killed when this is dropped.
struct Other {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Other {
    /// Starts `test` again as the other process.
    fn start(test: &str, socket: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", &format!("processes::{test}"), "--nocapture"])
            .env(SOCKET, socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Waits until the other process has printed `word`.
    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while !line.ends_with(&format!("{word}\n")) {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the other process ended before it printed {word:?}");
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it, and waits until all its threads are stopped.
    fn stop(&self) {
        self.signal(Signal::STOP);
        until("every thread is stopped", || is_stopped(self.child.id()));
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The daemon's socket, in the other process.
fn other_process() -> Option<PathBuf> {
    std::env::var_os(SOCKET).map(PathBuf::from)
}

fn print_line(word: &str) {
    println!("\n{word}");
    std::io::stdout().flush().unwrap();
}

/// Blocks until this process is killed or its parent has ended.
fn block_until_killed() {
    drop(std::io::stdin().read_line(&mut String::new()));
}

fn hang(_: &Arguments, context: &Context) -> Result<Value, Failure> {
    print_line("hanging");
    while !context.is_cancelled() {
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(Failure::new("stopped", ""))
}

#[test]
fn stopped_provider_times_out_and_keeps_its_connection() {
    if let Some(socket) = other_process() {
        let store = ClientStore::connect(Some(&socket), "stopped").unwrap();
        let _provider = Provider::builder(store)
            .function("pid", Options::default(), |_, _| Ok(Value::Int(i64::from(std::process::id()))))
            .function("kept", Options::default().managed(), |_, _| Ok(Value::Int(1)))
            .function("tensor", Options::default(), |_, context| {
                Ok(context.tensor("t", DType::U8, &[2 << 20], &vec![5; 2 << 20])?.into())
            })
            .start()
            .unwrap();
        print_line("ready");
        return block_until_killed();
    }
    let running = Running::start(|_| {});
    let functions = Functions::new(running.connect("caller")).with_timeout(Duration::from_secs(60));
    let mut provider = Other::start("stopped_provider_times_out_and_keeps_its_connection", &running.socket);
    provider.wait_for("ready");
    let kept = functions.call("kept", &none()).unwrap();
    let Value::Remote(object) = kept else { panic!("an object") };
    functions.call("pid", &none()).unwrap();
    provider.stop();
    let brief = Some(Duration::from_millis(50));
    let times_out = |error: CallError| {
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("stopped[{}]", provider.child.id())) && !text.contains("daemon"), "{text}");
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| functions.call("pid", &none()));
        times_out(functions.call_within("tensor", &none(), brief).unwrap_err());
        times_out(object.call_within("get", &none(), brief).unwrap_err());
        times_out(functions.submit_within("pid", &none(), brief).err().unwrap());
        let pending = functions.completion_queue("pid").unwrap();
        pending.call(9, "pid", none(), brief).unwrap();
        let [(9, Completion::Call(Err(error)))] = &mut *pending.wait(&|| true) else { panic!("the call is late") };
        times_out(error.clone());
        // Two messages do not fit into the socket's buffer: the second call times out while sending.
        for _ in 0..2 {
            let long = Value::List(vec![Value::from("x".repeat(60_000)); 100]);
            times_out(functions.call_within("pid", &none().arg(long), brief).unwrap_err());
        }
        provider.signal(Signal::CONT);
        assert_eq!(int(other.join().unwrap()), i64::from(provider.child.id()), "a call at the same time");
    });
    assert_eq!(int(functions.call("pid", &none())), i64::from(provider.child.id()));
    assert_eq!(int(object.call("get", &none())), 1, "over the same connection");
    // The late result was released.
    running.settles_at(0);
}

#[test]
fn provider_is_killed_during_a_call() {
    if let Some(socket) = other_process() {
        let store = ClientStore::connect(Some(&socket), "doomed").unwrap();
        let _provider = Provider::builder(store)
            .function("hang", Options::default(), hang)
            .function("pid", Options::default(), |_, _| Ok(Value::Int(i64::from(std::process::id()))))
            .function("tensor", Options::default(), |_, context| {
                Ok(context.tensor("t", DType::U8, &[3 << 20], &vec![5; 3 << 20])?.into())
            })
            .start()
            .unwrap();
        print_line("ready");
        return block_until_killed();
    }
    let running = Running::start(|_| {});
    let store = running.connect("caller");
    let functions = Functions::new(store.clone());
    for round in 0..3 {
        let mut provider = Other::start("provider_is_killed_during_a_call", &running.socket);
        provider.wait_for("ready");
        // The same caller finds each new provider.
        let pid = functions.call("pid", &none()).unwrap().as_int().unwrap();
        assert_eq!(pid, i64::from(provider.child.id()), "round {round}: the new process answers");
        let kept = functions.call("tensor", &none()).unwrap();
        let sent = || none().arg(Value::Bytes(vec![round; 3 << 20]));
        drop(functions.call("pid", &sent()).unwrap());
        assert_eq!(memory_files(3 << 20), 2, "an argument and a result");
        std::thread::scope(|scope| {
            let call = scope.spawn(|| functions.call("hang", &sent()));
            let task = functions.submit("pid", &none()).unwrap();
            provider.wait_for("hanging");
            provider.kill();
            let error = call.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
            assert!(error.to_string().contains("doomed[") && error.to_string().contains("has ended"), "{error}");
            assert_eq!(task.wait(None).unwrap_err().kind(), ErrorKind::Io);
        });
        assert!(
            kept.as_tensor().unwrap().bytes().unwrap().iter().all(|&byte| byte == 5),
            "the result outlives its provider"
        );
        until("the argument's memory is given back, although its reader released nothing", || {
            memory_files(3 << 20) == 1
        });
        drop(kept);
        until("the result's memory is given back", || memory_files(3 << 20) == 0);
        until("the daemon removes its functions", || functions.list("").unwrap().is_empty());
        assert_eq!(functions.call("pid", &none()).unwrap_err().kind(), ErrorKind::NotFound);
        until("all tensors are released", || running.daemon.store().stats().total_tensors == 0);
    }
}

#[test]
fn caller_is_killed_during_a_call() {
    if let Some(socket) = other_process() {
        let store = ClientStore::connect(Some(&socket), "doomed").unwrap();
        let functions = Functions::new(store.clone());
        let mut reservation = store.reserve(spec("argument", 3 << 20), &store.holder("")).unwrap();
        reservation.write(&vec![1; 3 << 20], CopyReason::Put).unwrap();
        let argument = Arc::new(reservation.publish().unwrap());
        let objects: Vec<_> = (0..10).map(|_| functions.call("object", &none()).unwrap()).collect();
        let echoed = functions.call("echo", &none().arg(argument.clone())).unwrap();
        let task = functions.submit("echo", &none().arg(argument.clone())).unwrap();
        print_line("calling");
        drop(functions.call("hang", &none().arg(argument.clone())));
        return drop((objects, echoed, task, argument));
    }
    let running = Running::start(|_| {});
    let (live, stopped) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicUsize::new(0)));
    let (made, stops) = (Arc::clone(&live), Arc::clone(&stopped));
    let hanging = Arc::new(AtomicUsize::new(0));
    let hangs = Arc::clone(&hanging);
    let limits = cotensor_functions::Limits { task_ttl: Duration::from_secs(10), ..Default::default() };
    let clock = Arc::new(cotensor_store::ManualClock::default());
    let provider = Provider::builder(running.connect("provider"))
        .limits(limits)
        .clock(clock.clone())
        .function("echo", Options::default(), |arguments, _| Ok(arguments.get(0, "value")?.clone()))
        .function("object", Options::default(), move |_, _| {
            made.fetch_add(1, Ordering::SeqCst);
            Ok(Object::new(Tracked(Arc::clone(&made))).into())
        })
        .function("hang", Options::default(), move |_, context| {
            hangs.fetch_add(1, Ordering::SeqCst);
            while !context.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
            stops.fetch_add(1, Ordering::SeqCst);
            Ok(Value::Null)
        })
        .start()
        .unwrap();
    for round in 1..4 {
        let mut caller = Other::start("caller_is_killed_during_a_call", &running.socket);
        caller.wait_for("calling");
        until("the function runs", || hanging.load(Ordering::SeqCst) == round);
        assert_eq!((live.load(Ordering::SeqCst), provider.callers()), (10, 1));
        caller.kill();
        until("its call is cancelled", || stopped.load(Ordering::SeqCst) == round);
        until("its objects are released", || live.load(Ordering::SeqCst) == 0 && provider.callers() == 0);
        assert_eq!(running.daemon.store().stats().total_tensors, 1, "the task keeps its result");
        clock.advance(Duration::from_secs(11));
        until("all tensors are released", || running.daemon.store().stats().total_tensors == 0);
    }
}

/// Connects to the daemon, or runs one in this process where none listens.
fn connected(socket: &Path) -> (Arc<ClientStore>, Option<Embedded>) {
    loop {
        let embedded = match ClientStore::connect(Some(socket), "embedding") {
            Ok(store) => return (store, None),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
                Embedded::start(Config { socket: socket.to_path_buf(), ..Config::default() })
            }
        };
        match embedded {
            Ok(embedded) => return (ClientStore::connect(Some(socket), "embedding").unwrap(), Some(embedded)),
            // Another process has the lock: it listens soon, or has just stopped.
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
        }
    }
}

#[test]
fn provider_registers_its_functions_with_the_next_daemon() {
    if let Some(socket) = other_process() {
        let (store, embedded) = connected(&socket);
        let _provider = Provider::builder(store)
            .function("pid", Options::default(), |_, _| Ok(Value::Int(i64::from(std::process::id()))))
            .start()
            .unwrap();
        print_line(if embedded.is_some() { "embedded" } else { "connected" });
        return block_until_killed();
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("cotensor.sock");
    let mut first = Other::start("provider_registers_its_functions_with_the_next_daemon", &socket);
    first.wait_for("embedded");
    // A connected provider starts the next daemon when the first ends, and registers its functions there.
    let embedded = Arc::new(std::sync::Mutex::new(None));
    let (slot, at) = (Arc::clone(&embedded), socket.clone());
    let (store, none_needed) = connected(&socket);
    assert!(none_needed.is_none(), "a daemon runs already");
    let _second = Provider::builder(store)
        .connector(move || {
            let (store, embedded) = connected(&at);
            *slot.lock().unwrap() = embedded;
            Ok(store)
        })
        .function("answer", Options::default(), |_, _| Ok(42.into()))
        .start()
        .unwrap();
    let (store, _) = connected(&socket);
    let functions = Functions::new(store);
    assert_eq!(functions.call("pid", &none()).unwrap().as_int().unwrap(), i64::from(first.child.id()));
    assert_eq!(functions.call("answer", &none()).unwrap().as_int().unwrap(), 42);
    first.kill();
    // Calls over an open connection need no daemon.
    assert_eq!(functions.call("answer", &none()).unwrap().as_int().unwrap(), 42);
    until("the second process runs a daemon", || embedded.lock().unwrap().is_some());
    let (store, _) = connected(&socket);
    let functions = Functions::new(store);
    until("the function is registered again", || functions.call("answer", &none()).is_ok());
    assert_eq!(functions.call("pid", &none()).unwrap_err().kind(), ErrorKind::NotFound);
}

/// A blob that is never filled.
struct Unfilled;

impl BlobSource for Unfilled {
    fn fill(&mut self, _: usize, _: &mut [u8]) -> cotensor_core::Result<()> {
        print_line("uploading");
        block_until_killed();
        Ok(())
    }
}

fn blob() -> BlobSpec {
    BlobSpec {
        device: Device::Cpu,
        hash: ContentHash::of(&[7; 64]),
        dtype: DType::U8,
        shape: vec![64],
        producer: "model".to_owned(),
        label: String::new(),
        metadata: None,
    }
}

#[test]
fn waits_for_a_stopped_process_are_reported_with_its_number_and_name() {
    let key = Key(ContentHash::of(b"stage"));
    if let Some(socket) = other_process() {
        let store = ClientStore::connect(Some(&socket), "stopped").unwrap();
        let holder = store.holder("stage");
        let Claim::Compute(_ticket) = store.claim(&key, &holder).unwrap() else { panic!("the key has no result") };
        let _provider = Provider::builder(Arc::clone(&store))
            .function("echo", Options::default(), |arguments, _| Ok(arguments.get(0, "value")?.clone()))
            .start()
            .unwrap();
        drop(store.blobs(&[blob()], &mut Unfilled, &holder));
        return;
    }
    let running = Running::start(|_| {});
    let store = running.connect("waiting");
    let functions = Functions::new(Arc::clone(&store));
    let mut other = Other::start("waits_for_a_stopped_process_are_reported_with_its_number_and_name", &running.socket);
    other.wait_for("uploading");
    assert_eq!(int(functions.call("echo", &none().arg(Value::Int(3)))), 3);
    let task = functions.submit("echo", &none().arg(Value::Int(4))).unwrap();
    other.stop();
    let (reported, reports) = channel();
    set_wait_reporter(Some(Arc::new(move |report: &WaitReport| drop(reported.send(report.clone())))));
    std::thread::scope(|scope| {
        let call = scope.spawn(|| functions.call("echo", &none().arg(Value::Int(5))));
        let state = scope.spawn(|| task.wait(None));
        let claim = scope.spawn(|| store.claim(&key, &store.holder("")));
        let upload = scope.spawn(|| store.blobs(&[blob()], &mut Sevens, &store.holder("")));
        let queued = functions.completion_queue("echo").unwrap();
        queued.call(9, "echo", none().arg(Value::Int(6)), None).unwrap();
        let queue = scope.spawn(move || queued.wait(&|| true));
        let pid = other.child.id();
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        let start = format!("waiting for process {pid} ({}), ", name.trim_end());
        let end = format!("; process {pid} is stopped: `kill -CONT {pid}` continues it");
        let mut expected = vec![
            format!("the provider stopped[{pid}], to run echo"),
            format!("the provider stopped[{pid}], to end the task {}", task.number()),
            format!("stopped[{pid}]/stage, which computes {}", key.0.short()),
            format!("stopped[{pid}]/stage, which uploads weights such as {}", blob().hash.short()),
        ];
        // The call in the queue has the same report as the other call.
        for _ in 0..5 {
            let WaitReport { text, is_expected } = reports.recv().unwrap();
            let what = text.strip_prefix(&start).and_then(|text| text.strip_suffix(&end)).expect(&text);
            expected.retain(|event| event != what);
            assert!(!is_expected, "a stopped process does not work");
        }
        assert_eq!(expected, [""; 0]);
        other.kill();
        assert!(call.join().unwrap().is_err() && state.join().unwrap().is_err() && queue.join().unwrap().len() == 1);
        assert!(matches!(claim.join().unwrap().unwrap(), Claim::Compute(_)));
        assert_eq!(upload.join().unwrap().unwrap().len(), 1);
    });
}

/// The content of [`blob`].
struct Sevens;

impl BlobSource for Sevens {
    fn fill(&mut self, _: usize, target: &mut [u8]) -> cotensor_core::Result<()> {
        target.fill(7);
        Ok(())
    }
}
