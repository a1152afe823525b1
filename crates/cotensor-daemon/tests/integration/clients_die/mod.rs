//! A client is killed at each step of the protocol: nothing of it stays, and others go on.

mod calls;
mod raw;
mod steps;
mod survivor;

use crate::support::processes::{Processes, content, settles_empty, signal};
use crate::support::until;
use cotensor_core::{ContentHash, DType};
use cotensor_store::{BlobSource, BlobSpec, Key, TensorStore};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use survivor::{Level, Survivor};

const SOCKET: &str = "COTENSOR_TEST_SOCKET";
const STEP: &str = "COTENSOR_TEST_STEP";

/// A step, and how a client gets there. It ends with [`reached`].
struct Step(&'static str, fn(&Path));

/// Says that the step is reached, and waits to be killed.
fn reached() -> ! {
    println!("\nreached");
    drop(std::io::stdout().flush());
    loop {
        std::thread::park();
    }
}

/// What the doomed claim.
fn key() -> Key {
    Key(ContentHash::of(b"stage"))
}

/// What the survivor computes all the while.
fn waited_for() -> Key {
    Key(ContentHash::of(b"waited for"))
}

/// Contents, of which so many are provided.
struct Half(usize);

impl BlobSource for Half {
    fn fill(&mut self, index: usize, target: &mut [u8]) -> cotensor_core::Result<()> {
        if index >= self.0 {
            reached();
        }
        target.fill(1);
        Ok(())
    }
}

fn specs() -> Vec<BlobSpec> {
    let spec = |len: usize| BlobSpec {
        device: cotensor_core::Device::Cpu,
        hash: ContentHash::of(&vec![1; len]),
        dtype: DType::U8,
        shape: vec![len],
        producer: "model".to_owned(),
    };
    [5000, 6000, 7000].map(spec).to_vec()
}

#[test]
#[ignore = "what the others kill"]
fn child() {
    let (Ok(socket), Ok(wanted)) = (std::env::var(SOCKET), std::env::var(STEP)) else { panic!("run by the others") };
    let step = [raw::STEPS, steps::STEPS, calls::STEPS].into_iter().flatten().find(|Step(name, _)| *name == wanted);
    let Step(name, go) = step.unwrap();
    go(Path::new(&socket));
    panic!("{name} was passed");
}

/// A client that has reached `step`; what it says before goes to `said`.
fn start(processes: &Processes, step: &str, said: impl Fn(&str)) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "clients_die::child", "--nocapture"])
        .envs([(SOCKET, processes.socket.to_str().unwrap()), (STEP, step)])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let reached = lines.inspect(|line| said(line)).any(|line| line == "reached");
    assert!(reached, "{step} was not reached");
    child
}

/// Kills a client at each of `steps`: every counter comes back to what it was, and the survivor has what it had.
fn nothing_stays(steps: &[Step]) {
    let processes = Processes::start();
    let survivor = Survivor::new(&processes);
    survivor.goes_on("before");
    let before = Level::at_rest(&processes, &survivor);
    for Step(step, _) in steps {
        let mut child = start(&processes, step, |line| survivor.is_asked(line));
        signal(child.id(), Signal::KILL);
        child.wait().unwrap();
        survivor.goes_on(step);
        before.comes_back(&processes, &survivor, step);
    }
}

#[test]
fn nothing_stays_of_a_client_that_is_killed_amid_a_message() {
    nothing_stays(raw::STEPS);
}

#[test]
fn nothing_stays_of_a_client_that_is_killed_with_tensors() {
    nothing_stays(steps::STEPS);
}

#[test]
fn nothing_stays_of_a_client_that_is_killed_amid_a_call() {
    nothing_stays(calls::STEPS);
}

#[test]
fn a_client_that_stands_still_while_the_server_is_replaced_is_waited_for() {
    let processes = Processes::start();
    let reader = processes.connect("reader");
    let mut child = start(&processes, "published", |_| {});
    signal(child.id(), Signal::STOP);
    processes.kill_server();
    let get = |name: &str| reader.get(name, &reader.holder(""));
    // The server waits 500 ms for dead processes. It has to wait longer for this one.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        assert_eq!(get("doomed").unwrap().bytes().unwrap(), content(1, 1 << 20));
    }
    signal(child.id(), Signal::CONT);
    let back = || {
        let sessions = reader.request::<cotensor_client::protocol::Sessions>(&cotensor_client::protocol::Empty {});
        sessions
            .is_ok_and(|list| list.sessions.iter().any(|each| each.client.starts_with("doomed") && each.leases == 2))
    };
    until("it is back with what it had", back);
    assert_eq!(get("doomed small").unwrap().bytes().unwrap(), content(1, 100));
    // One that dies meanwhile is not waited for longer than need be.
    signal(child.id(), Signal::STOP);
    processes.kill_server();
    signal(child.id(), Signal::KILL);
    child.wait().unwrap();
    drop(reader);
    settles_empty(&processes);
}
