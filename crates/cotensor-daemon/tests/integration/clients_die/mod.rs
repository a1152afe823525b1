//! A client is killed at each step of the protocol. It leaves nothing behind, and other clients continue.

mod calls;
mod raw;
mod steps;
mod survivor;

use crate::support::processes::{Processes, content, settles_empty, signal, start_test};
use crate::support::until;
use cotensor_core::{ContentHash, DType};
use cotensor_store::{BlobSource, BlobSpec, Key, TensorStore};
use rustix::process::Signal;
use std::io::Write;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};
use survivor::{Counters, Survivor};

const SOCKET: &str = "COTENSOR_TEST_SOCKET";
const STEP: &str = "COTENSOR_TEST_STEP";

/// The name of a step, and the client's way to it, which ends with [`reached`].
struct Step(&'static str, fn(&Path));

/// Prints that the step is reached, and waits to be killed.
fn reached() -> ! {
    println!("\nreached");
    let _ = std::io::stdout().flush();
    loop {
        std::thread::park();
    }
}

/// The key that the killed clients claim.
fn key() -> Key {
    Key(ContentHash::of(b"stage"))
}

/// The key that the survivor computes during the whole test.
fn waited_for() -> Key {
    Key(ContentHash::of(b"waited for"))
}

/// A source of blobs that fills this number of blobs and then stops at the step.
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
        label: String::new(),
        metadata: None,
    };
    [5000, 6000, 7000].map(spec).to_vec()
}

#[test]
#[ignore = "the process that the other tests kill"]
fn child() {
    let (Ok(socket), Ok(wanted)) = (std::env::var(SOCKET), std::env::var(STEP)) else {
        panic!("the other tests start this one")
    };
    let step = [raw::STEPS, steps::STEPS, calls::STEPS].into_iter().flatten().find(|Step(name, _)| *name == wanted);
    let Step(name, go) = step.unwrap();
    go(Path::new(&socket));
    panic!("{name} was passed");
}

/// Starts a client and waits until it reaches `step`. `on_line` gets each line that it prints.
fn start(processes: &Processes, step: &str, on_line: impl Fn(&str)) -> Child {
    let variables = [(SOCKET, processes.socket.to_str().unwrap()), (STEP, step)];
    start_test("clients_die::child", variables, |line| {
        on_line(&line);
        line == "reached"
    })
}

/// Kills a client at each of `steps`. Then all counters return to their former values, and the survivor keeps its
/// tensors.
fn kill_at_each(steps: &[Step]) {
    let processes = Processes::start();
    let survivor = Survivor::new(&processes);
    survivor.works("before");
    let before = Counters::settled(&processes, &survivor);
    for Step(step, _) in steps {
        let mut child = start(&processes, step, |line| survivor.on_line(line));
        signal(child.id(), Signal::KILL);
        child.wait().unwrap();
        survivor.works(step);
        before.wait_for_return(&processes, &survivor, step);
    }
}

#[test]
fn client_killed_within_a_message_leaves_nothing() {
    kill_at_each(raw::STEPS);
}

#[test]
fn client_killed_with_tensors_leaves_nothing() {
    kill_at_each(steps::STEPS);
}

#[test]
fn client_killed_within_a_call_leaves_nothing() {
    kill_at_each(calls::STEPS);
}

#[test]
fn stopped_client_keeps_its_leases_over_a_takeover() {
    let processes = Processes::start();
    let (reader, ended) = (processes.connect("reader"), processes.connect("ended"));
    let mut child = start(&processes, "published", |_| {});
    signal(child.id(), Signal::STOP);
    // A session that has ended does not end the wait for the others.
    signal(processes.server(), Signal::STOP);
    drop(ended);
    processes.kill_server();
    let get = |name: &str| reader.get(name, &reader.holder(""));
    // The server waits 500 ms for sessions that are over, and longer for a stopped process: the tensor stays for a second.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        assert_eq!(get("victim").unwrap().bytes().unwrap(), content(1, 1 << 20));
    }
    signal(child.id(), Signal::CONT);
    let back = || {
        let sessions = reader.request::<cotensor_client::protocol::Sessions>(&cotensor_client::protocol::Empty {});
        sessions
            .is_ok_and(|list| list.sessions.iter().any(|each| each.client.starts_with("victim") && each.leases == 2))
    };
    until("the client has resumed its leases", back);
    assert_eq!(get("victim small").unwrap().bytes().unwrap(), content(1, 100));
    // The server does not wait longer for a client that dies in the meantime.
    signal(child.id(), Signal::STOP);
    processes.kill_server();
    signal(child.id(), Signal::KILL);
    child.wait().unwrap();
    drop(reader);
    settles_empty(&processes);
}
