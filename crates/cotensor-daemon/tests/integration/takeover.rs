//! Takeover: the server or the supervisor is killed, and clients continue.

use crate::support::processes::{Processes, children, content, is_content, put, settles_empty, signal, with_argument};
use crate::support::until;
use cotensor_client::{ClientStore, protocol as p};
use cotensor_core::{ContentHash, ErrorKind};
use cotensor_store::{
    BlobStore, Claim, ComputationStore, CopyReason, Key, Lease, Retention, StoreReports, TensorId, TensorSpec,
    TensorStore,
};
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const KEPT: Retention = Retention::Cached { recompute: Duration::ZERO };

#[test]
fn takeover_keeps_tensors_and_leases() {
    let processes = Processes::start();
    let one = processes.connect("one");
    let sizes = [100, 4096, 1 << 20, 0];
    let put_all = |retention| -> Vec<Lease> {
        let each = |&bytes: &usize| put(&one, &format!("{bytes} {}", retention == KEPT), &content(7, bytes), retention);
        sizes.iter().map(each).collect()
    };
    let (leased, kept) = (put_all(Retention::WhileLeased), put_all(KEPT));
    let old = one.get("100 true", &one.holder("old")).unwrap();
    let newer = put(&one, "100 true", &content(8, 100), KEPT);
    let (kept_id, newer_id) = (old.id(), newer.id());
    drop((kept, newer));
    one.put_note(&ContentHash::of(b"note"), b"a note");
    // `put_note` is a notification. A request after it proves that the daemon has read it.
    assert!(one.get_note(&ContentHash::of(b"note")).is_some());
    processes.kill_server();

    let two = processes.connect("two");
    let holder = two.holder("");
    for lease in &leased {
        let found = two.get(lease.name(), &holder).unwrap();
        assert_eq!((found.id(), found.bytes().unwrap()), (lease.id(), lease.bytes().unwrap()), "{}", lease.name());
    }
    for bytes in sizes {
        let number = if bytes == 100 { 8 } else { 7 };
        assert_eq!(two.get(&format!("{bytes} true"), &holder).unwrap().bytes().unwrap(), content(number, bytes));
    }
    assert_eq!(two.get_note(&ContentHash::of(b"note")).as_deref(), Some(&b"a note"[..]));
    assert_eq!(
        two.lease(kept_id, &holder).unwrap().bytes().unwrap(),
        content(7, 100),
        "a superseded version with a lease"
    );
    assert_eq!(two.get("100 true", &holder).unwrap().id(), newer_id);
    let newest = put(&two, "100 true", &content(9, 100), KEPT);
    assert_eq!(newest.id().version, newer_id.version + 1, "version numbers continue");
    assert_eq!(newest.id().name_id, newer_id.name_id);

    // Leases from before the takeover are released after it.
    drop((leased, old, newest));
    until("unleased tensors are freed", || !two.has(kept_id) && two.get("4096 false", &holder).is_err());
    for bytes in sizes {
        two.remove(&format!("{bytes} true")).unwrap();
    }
    drop((one, two));
    settles_empty(&processes);
}

#[test]
fn takeover_keeps_ages_and_resets_counters() {
    const MIB: usize = 1 << 20;
    let processes =
        Processes::start_with(|folder| vec![(3 * MIB + (16 << 10)).to_string().into(), folder.join("spill").into()]);
    let one = processes.connect("one");
    for number in 0..5 {
        drop(put(&one, &number.to_string(), &content(number, MIB), KEPT));
    }
    let published = Instant::now();
    assert_eq!((one.stats().spilled_now, one.stats().spilled_now_bytes), (2, 2 * MIB as u64));
    for _ in 0..2 {
        processes.kill_server();
        let two = processes.connect("two");
        let stats = two.stats();
        assert_eq!((stats.total_tensors, stats.spilled_now, stats.spilled_now_bytes), (3, 2, 2 * MIB as u64));
        assert!(stats.counted_seconds < published.elapsed().as_secs_f64() && stats.spills == 0, "{stats:?}");
        let at_least = published.elapsed().as_secs_f64();
        let list = two
            .request::<p::List>(&p::ListParams { prefix: String::new(), limit: 100, order: p::ListOrder::Name })
            .unwrap()
            .tensors;
        assert_eq!(list.iter().filter(|tensor| tensor.state == p::TensorState::Spilled).count(), 2);
        assert!(list.iter().all(|tensor| tensor.age_s >= at_least), "{at_least} {list:?}");
    }
}

#[test]
fn readers_and_writers_continue_over_repeated_takeovers() {
    const WRITERS: usize = 3;
    const KILLS: usize = 8;
    let processes = Processes::start();
    let (stop, next) = (AtomicBool::new(false), AtomicU64::new(1));
    let progress: Vec<AtomicU64> = (0..2 * WRITERS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (processes, stop, next, progress) = (&processes, &stop, &next, &progress[writer]);
            scope.spawn(move || {
                let store = processes.connect(&format!("writer {writer}"));
                let mut held: Vec<Lease> = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    let bytes = if number % 5 == 0 { 300 << 10 } else { 100 + (number as usize * 37) % 5000 };
                    held.push(put(&store, &format!("w{writer}"), &content(number, bytes), Retention::WhileLeased));
                    // Older versions stay leased for a while. Their ranges must not be reused.
                    if held.len() > 4 {
                        let old = held.remove(0);
                        assert!(is_content(old.bytes().unwrap()));
                    }
                    progress.fetch_add(1, Ordering::SeqCst);
                }
                assert!(held.iter().all(|lease| is_content(lease.bytes().unwrap())));
            });
        }
        for reader in 0..WRITERS {
            let (processes, stop, progress) = (&processes, &stop, &progress[WRITERS + reader]);
            scope.spawn(move || {
                let store = processes.connect(&format!("reader {reader}"));
                let mut held: Vec<Lease> = Vec::new();
                let mut turn = reader;
                while !stop.load(Ordering::SeqCst) {
                    turn += 1;
                    match store.get(&format!("w{}", turn % WRITERS), &store.holder("")) {
                        Ok(lease) => {
                            assert!(is_content(lease.bytes().unwrap()), "{lease:?} {:?}", lease.id());
                            held.push(lease);
                            progress.fetch_add(1, Ordering::SeqCst);
                        }
                        // Only before the writer's first version the name has no tensor.
                        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
                    }
                    if held.len() > 6 {
                        let old = held.remove(0);
                        assert!(is_content(old.bytes().unwrap()), "{:?} was overwritten", old.id());
                    }
                }
            });
        }
        for kill in 0..=KILLS {
            let before: Vec<u64> = progress.iter().map(|count| count.load(Ordering::SeqCst)).collect();
            until(&format!("all threads have progressed after kill {kill}"), || {
                progress.iter().zip(&before).all(|(count, before)| count.load(Ordering::SeqCst) >= before + 10)
            });
            if kill < KILLS {
                processes.kill_server();
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
    settles_empty(&processes);
}

#[test]
fn server_starts_a_supervisor_after_the_death_of_the_first() {
    let mut processes = Processes::start();
    let one = processes.connect("one");
    let held = put(&one, "x", &content(1, 1 << 20), Retention::WhileLeased);
    let server = processes.server();
    let next = processes.kill_foreground();
    assert_eq!(one.get("x", &one.holder("")).unwrap().id(), held.id());
    let more = put(&one, "y", &content(2, 1 << 20), KEPT);
    // The new supervisor has the earlier and the later tensors, and starts the next server.
    signal(server, Signal::KILL);
    let two = processes.connect("two");
    for (name, number) in [("x", 1), ("y", 2)] {
        assert_eq!(two.get(name, &two.holder("")).unwrap().bytes().unwrap(), content(number, 1 << 20));
    }
    assert_eq!(children(next).len(), 1);
    drop((held, more, one));
    until("leased tensors are freed", || two.get("x", &two.holder("")).is_err());
    signal(next, Signal::TERM);
    until("all processes have ended", || with_argument(&processes.socket).is_empty());
    assert!(!processes.socket.exists());
}

#[test]
fn stopped_supervisor_is_replaced() {
    let mut processes = Processes::start();
    let one = processes.connect("one");
    let (server, successor) = (processes.server(), processes.folder.path().join("cotensor.sock.successor"));
    signal(processes.supervisor(), Signal::STOP);
    // The server's events fill the socket until the server times out.
    let mut names = 0;
    until("there is another supervisor", || {
        drop(put(&one, &names.to_string(), &content(names, 100), KEPT));
        names += 1;
        successor.exists()
    });
    let next = children(server);
    signal(processes.supervisor(), Signal::CONT);
    assert!(!processes.stop(), "the stopped supervisor was killed");
    let two = processes.connect("two");
    assert_eq!(processes.running(), [&next[..], &[server]].concat().into_iter().collect());
    // The next supervisor has the events that the stopped one did not read.
    signal(server, Signal::KILL);
    until("there is another server", || children(next[0]).first().is_some_and(|other| *other != server));
    for name in 0..names {
        assert_eq!(two.get(&name.to_string(), &two.holder("")).unwrap().bytes().unwrap(), content(name, 100));
    }
    assert_eq!(processes.running().len(), 2);
    signal(next[0], Signal::TERM);
    until("all processes have ended", || processes.running().is_empty());
    assert!(!processes.socket.exists());
}

#[test]
fn clean_stop_ends_both_processes_and_removes_the_socket() {
    let mut processes = Processes::start();
    let one = processes.connect("one");
    let held = put(&one, "x", &content(1, 5000), KEPT);
    assert!(processes.stop());
    assert!(!processes.socket.exists() && with_argument(&processes.socket).is_empty());
    assert!(is_content(held.bytes().unwrap()));
    assert!(one.get("y", &one.holder("")).is_err());
}

#[test]
fn client_continues_at_a_daemon_without_its_session() {
    let processes = Processes::start();
    let (one, two) = (processes.connect("one"), processes.connect("two"));
    let held = put(&one, "x", &content(1, 1000), Retention::WhileLeased);
    let read = two.get("x", &two.holder("")).unwrap();
    let processes = processes.start_anew();
    // No process was left to invalidate the index. The client uses it until it notices the end of the connection.
    let empty = |store: &ClientStore| store.get("x", &store.holder("")).is_err_and(|e| e.kind() == ErrorKind::NotFound);
    until("both clients use the new, empty daemon", || empty(&one) && empty(&two));
    // Held tensors stay readable, and no tensor is written to their ranges.
    let next: Vec<Lease> = (2..60).map(|n| put(&one, "x", &content(n, 1000), Retention::WhileLeased)).collect();
    assert_eq!((held.bytes().unwrap(), read.bytes().unwrap()), (&content(1, 1000)[..], &content(1, 1000)[..]));
    assert_eq!(two.get("x", &two.holder("")).unwrap().bytes().unwrap(), content(59, 1000));
    drop(held);
    drop(put(&one, "y", &content(61, 1000), Retention::WhileLeased));
    assert_eq!(read.bytes().unwrap(), content(1, 1000), "the reader keeps the tensor after its producer released it");
    drop((read, next, one, two));
    settles_empty(&processes);
}

#[test]
fn claims_are_resumed_after_a_takeover() {
    let processes = Processes::start();
    let key = Key(ContentHash::of(b"stage"));
    let (one, two) = (processes.connect("one"), processes.connect("two"));
    let Claim::Compute(ticket) = one.claim(&key, &one.holder("")).unwrap() else { panic!("the key has no result") };
    let spec = || cotensor_store::TensorSpec { retention: KEPT, ..crate::support::spec("result", 1 << 20) };
    let mut result = one.reserve(spec(), &one.holder("")).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| match two.claim(&key, &two.holder("")).unwrap() {
            Claim::Ready(leases) => leases[0].bytes().unwrap().to_vec(),
            Claim::Compute(_) => panic!("the key has a result"),
        });
        processes.kill_server();
        result.write(&content(3, 1 << 20), CopyReason::Put).unwrap();
        ticket.publish(vec![result]).unwrap();
        assert_eq!(waiting.join().unwrap(), content(3, 1 << 20));
    });
    // The next server has the results too.
    processes.kill_server();
    let three = processes.connect("three");
    assert!(three.is_computed(&key));
    assert!(matches!(three.claim(&key, &three.holder("")).unwrap(), Claim::Ready(leases) if leases.len() == 1));
}

#[test]
fn unchanged_name_is_found_without_a_request() {
    let processes = Processes::start();
    let (one, two) = (processes.connect("one"), processes.connect("two"));
    let holder = one.holder("reader");
    let first = put(&two, "x", &content(1, 4096), Retention::WhileLeased);
    let held = one.get("x", &holder).unwrap();
    let server = processes.server();
    // A stopped server answers no request.
    signal(server, Signal::STOP);
    let again = one.get("x", &holder).unwrap();
    assert_eq!((again.id(), again.bytes().unwrap().as_ptr()), (held.id(), held.bytes().unwrap().as_ptr()));
    signal(server, Signal::CONT);

    let second = put(&two, "x", &content(2, 4096), Retention::WhileLeased);
    let newer = one.get("x", &holder).unwrap();
    assert_eq!((newer.id(), newer.bytes().unwrap()), (second.id(), &content(2, 4096)[..]));
    assert_ne!(newer.id(), first.id());
    two.remove("x").unwrap();
    assert!(one.get("x", &holder).is_err(), "the name is removed, though the tensor is leased");
    drop((again, held, newer, first, second));

    // The end of the server invalidates its index.
    let kept = put(&two, "y", &content(3, 100), Retention::WhileLeased);
    let held = one.get("y", &holder).unwrap();
    processes.kill_server();
    let third = put(&two, "y", &content(4, 100), Retention::WhileLeased);
    assert_eq!(one.get("y", &holder).unwrap().bytes().unwrap(), content(4, 100));
    drop((kept, held, third, one, two));
    settles_empty(&processes);
}

#[test]
fn reader_that_waits_for_a_version_goes_on_after_the_end_of_the_daemon() {
    let processes = Processes::start();
    let (reader, producer) = (processes.connect("reader"), processes.connect("producer"));
    let waiting = |seen: TensorId| {
        let (reader, long) = (Arc::clone(&reader), Duration::from_secs(3600));
        std::thread::spawn(move || while reader.wait_while_newest("x", seen, long).unwrap() {})
    };
    let held = put(&producer, "x", &content(1, 100), Retention::WhileLeased);
    let seen = reader.get("x", &reader.holder("")).unwrap();
    let wait = waiting(seen.id());
    processes.kill_server();
    wait.join().unwrap();
    // The supervisor wakes readers of a server that was killed. Without it, no process does.
    let again = reader.get("x", &reader.holder("")).unwrap();
    let wait = waiting(again.id());
    let processes = processes.start_anew();
    wait.join().unwrap();
    drop((held, seen, again, producer));
    settles_empty(&processes);
}

#[test]
fn large_tensor_takes_one_descriptor_in_each_process() {
    const COUNT: usize = 50;
    let processes = Processes::start();
    let store = processes.connect("one");
    let fds = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let put =
        |number: usize| put(&store, &number.to_string(), &content(number as u64, 300 << 10), Retention::WhileLeased);
    let _first = put(COUNT);
    let (server, supervisor) = (processes.server(), processes.supervisor());
    let before = (fds(server), fds(supervisor));
    let _held: Vec<_> = (0..COUNT).map(put).collect();
    until("the supervisor has all of them", || fds(supervisor) >= before.1 + COUNT);
    let more = (fds(server) - before.0, fds(supervisor) - before.1);
    assert!(more.0 <= COUNT + 2 && more.1 <= COUNT + 2, "{more:?} for {COUNT} tensors");
}

/// Publishes a tensor that stays without a lease for `time`.
fn put_for(store: &ClientStore, name: &str, time: Duration, bytes: usize) -> Lease {
    let spec = TensorSpec { retention: KEPT, keep_for: Some(time), ..crate::support::spec(name, bytes) };
    let mut reservation = store.reserve(spec, &store.holder("")).unwrap();
    reservation.write(&content(1, bytes), CopyReason::Put).unwrap();
    reservation.publish().unwrap()
}

/// The seconds after which a tensor is freed, none while it is leased; none for a tensor that does not exist.
fn listed(store: &ClientStore, name: &str) -> Option<Option<f64>> {
    let params = p::ListParams { prefix: name.to_owned(), limit: 1, order: Default::default() };
    Some(store.request::<p::List>(&params).unwrap().tensors.first()?.freed_in_s)
}

/// The journal has the time of an earlier end of a lease.
#[test]
fn takeover_frees_no_tensor_with_a_time_that_a_client_leases_again() {
    let processes = Processes::start();
    let one = processes.connect("one");
    let (brief, hour) = (Duration::from_millis(300), Duration::from_secs(3600));
    let lease_again = |name: &str, time: Duration, bytes: usize| loop {
        drop(put_for(&one, name, time, bytes));
        until("no lease", || listed(&one, name) != Some(None));
        // With a short time, it may be freed.
        if let Ok(lease) = one.get(name, &one.holder("")) {
            break lease;
        }
    };
    let small = lease_again("small", hour, 100);
    let large = lease_again("large", brief, 1 << 20);
    // The time of the earlier lease passes.
    std::thread::sleep(brief);
    processes.kill_server();
    // Publishing frees tensors that are due. The client may resume its session later.
    let two = processes.connect("two");
    drop(put(&two, "other", &content(1, 100), KEPT));
    assert!(two.get("large", &two.holder("")).unwrap().bytes().unwrap() == content(1, 1 << 20));
    one.get("other", &one.holder("")).unwrap();
    let end = Instant::now();
    drop((small, large));
    until("no lease", || listed(&two, "small") != Some(None));
    let freed_in = listed(&two, "small").flatten().expect("it stays");
    assert!(freed_in >= (hour - end.elapsed()).as_secs_f64(), "its time begins again: {freed_in}");
}

#[test]
fn takeover_keeps_the_time_after_which_a_tensor_is_freed() {
    let processes = Processes::start();
    let store = processes.connect("one");
    let put_for = |name: &str, time: Duration, bytes: usize| put_for(&store, name, time, bytes);
    let freed_in = |store: &ClientStore, name: &str| listed(store, name).unwrap();
    let hour = Duration::from_secs(3600);
    // In a slab, and in memory of its own.
    for (name, bytes) in [("small", 100), ("large", 1 << 20)] {
        drop(put_for(name, hour, bytes));
        until("no lease", || freed_in(&store, name).is_some());
    }
    let held = put_for("held", hour, 100);
    drop(put_for("brief", Duration::from_millis(1), 100));
    until("it is freed", || store.get("brief", &store.holder("")).is_err());
    let before = ["small", "large"].map(|name| freed_in(&store, name).unwrap());
    processes.kill_server();

    let next = processes.connect("two");
    for (name, before) in ["small", "large"].into_iter().zip(before) {
        until("the leases of the takeover have ended", || freed_in(&next, name).is_some());
        assert!(freed_in(&next, name).unwrap() <= before, "the time of {name} goes on");
    }
    assert_eq!(freed_in(&next, "held"), None);
    drop(held);
    until("its time begins", || freed_in(&next, "held").is_some());
}
