//! A client is killed at each step of the protocol: nothing of it stays, and others go on.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use cotensor_client::protocol as p;
use cotensor_client::{ClientStore, Connection};
use cotensor_core::{ContentHash, DType, Memory};
use cotensor_memory::MemfdPool;
use cotensor_store::{Claim, ContentSource, ContentSpec, CopyReason, Key, Retention, Store};
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use support::processes::{Processes, content, put, settles_empty, signal};

const STEPS: &[&str] = &[
    "connected",
    "greeted",
    "reserved",
    "written",
    "sealed",
    "sent",
    "published",
    "in a slab",
    "read",
    "claimed",
    "half computed",
    "contents begun",
    "contents half provided",
    "many",
];
const SOCKET: &str = "COTENSOR_TEST_SOCKET";
const STEP: &str = "COTENSOR_TEST_STEP";

fn key() -> Key {
    Key(ContentHash::of(b"stage"))
}

/// Says that the step is reached, and waits to be killed.
fn reached() -> ! {
    println!("\nreached");
    loop {
        std::thread::park();
    }
}

struct Half(usize);

impl ContentSource for Half {
    fn fill(&mut self, index: usize, target: &mut [u8]) -> cotensor_core::Result<()> {
        if index >= self.0 {
            reached();
        }
        target.fill(1);
        Ok(())
    }
}

fn specs() -> Vec<ContentSpec> {
    let spec = |len: usize| ContentSpec {
        hash: ContentHash::of(&vec![1; len]),
        dtype: DType::U8,
        shape: vec![len],
        producer: "model".to_owned(),
    };
    [5000, 6000, 7000].map(spec).to_vec()
}

#[test]
#[ignore = "what the other test kills"]
fn child() {
    let (Ok(socket), Ok(step)) = (std::env::var(SOCKET), std::env::var(STEP)) else { panic!("run by the other test") };
    let socket = Path::new(&socket);
    let raw = || Connection::open(socket, Box::new(|_, _, _| {})).unwrap();
    if step == "connected" {
        let _connection = raw();
        reached();
    }
    if matches!(step.as_str(), "greeted" | "sealed" | "sent") {
        let connection = raw();
        let hello = p::HelloParams { protocol: p::PROTOCOL, client: "raw".to_owned(), resume: None };
        connection.call::<p::Hello>(&hello, Vec::new(), None).unwrap();
        if step == "greeted" {
            reached();
        }
        let spec = p::Spec::from(&support::spec("doomed", 1 << 20));
        let params = p::ReserveParams { spec, holder: String::new() };
        let reservation = connection.call::<p::Reserve>(&params, Vec::new(), None).unwrap().0.reservation;
        let sealed = MemfdPool::new(0).copy_of(&content(1, 1 << 20)).unwrap().freeze().unwrap();
        let fd: OwnedFd = sealed.fd().unwrap().try_clone_to_owned().unwrap();
        if step == "sent" {
            // Sent, and no answer is taken.
            std::thread::spawn(move || {
                let params = p::PublishParams { reservation, ticket: None };
                connection.call::<p::Publish>(&params, vec![fd], None)
            });
        }
        reached();
    }
    let store = ClientStore::connect(Some(socket), "doomed").unwrap();
    let holder = store.holder("");
    match step.as_str() {
        "reserved" | "written" => {
            let mut large = store.reserve(support::spec("doomed", 1 << 20), &holder).unwrap();
            let mut small = store.reserve(support::spec("doomed small", 100), &holder).unwrap();
            if step == "written" {
                large.write(&content(1, 1 << 20), CopyReason::Put).unwrap();
                small.write(&content(1, 100), CopyReason::Put).unwrap();
            }
            reached();
        }
        "published" => {
            let _held = put(&store, "doomed", &content(1, 1 << 20), Retention::WhileLeased);
            reached();
        }
        "in a slab" => {
            let _held = put(&store, "doomed", &content(1, 100), Retention::WhileLeased);
            reached();
        }
        "read" => {
            let held = store.get("shared", &holder).unwrap();
            assert_eq!(held.bytes().unwrap(), content(9, 4096));
            reached();
        }
        "claimed" | "half computed" => {
            let Claim::Compute(_ticket) = store.claim(&key(), &holder).unwrap() else { panic!("nothing is there") };
            if step == "half computed" {
                let _result = store.reserve(support::spec("result", 1 << 20), &holder).unwrap();
                reached();
            }
            reached();
        }
        "contents begun" => drop(store.contents(&specs(), &mut Half(0), &holder)),
        "contents half provided" => drop(store.contents(&specs(), &mut Half(2), &holder)),
        "many" => {
            let held: Vec<_> = (0..300)
                .map(|n| {
                    put(&store, &format!("doomed {n}"), &content(n, 100 + 900 * n as usize), Retention::WhileLeased)
                })
                .collect();
            let _read: Vec<_> =
                held.iter().map(|lease| store.get(lease.name(), &store.holder("again")).unwrap()).collect();
            reached();
        }
        other => panic!("no step is called {other}"),
    }
    panic!("{step} was passed");
}

#[test]
fn nothing_stays_of_a_client_that_is_killed() {
    let processes = Processes::start();
    for step in STEPS {
        let survivor = processes.connect("survivor");
        let shared = put(&survivor, "shared", &content(9, 4096), Retention::WhileLeased);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "child", "--nocapture"])
            .envs([(SOCKET, processes.socket.to_str().unwrap()), (STEP, step)])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(said.into_iter().any(|line| line == "reached"), "{step} was not reached");
        signal(child.id(), Signal::KILL);
        child.wait().unwrap();
        // What it was computing, others can; what it was providing, too.
        match survivor.claim(&key(), &survivor.holder("")).unwrap() {
            Claim::Compute(ticket) => ticket.decline(),
            Claim::Ready(_) => panic!("nobody computed it"),
        }
        let leases = survivor.contents(&specs(), &mut Half(3), &survivor.holder("")).unwrap();
        assert!(leases.iter().all(|lease| lease.bytes().unwrap().iter().all(|&byte| byte == 1)), "{step}");
        assert_eq!(shared.bytes().unwrap(), content(9, 4096));
        let names: Vec<String> = leases.iter().map(|lease| lease.name().to_owned()).collect();
        drop((leases, shared));
        for name in names {
            survivor.remove(&name).unwrap();
        }
        drop(survivor);
        settles_empty(&processes);
    }
}
