//! Programs that divide the memory of a device.

use crate::lost_connections::LOOKED;
use crate::support::processes::Processes;
use crate::support::{Running, until};
use cotensor_client::protocol as p;
use cotensor_client::{ClientStore, Connection, DeviceNeeds, DeviceShare, OpenSession};
use cotensor_core::waiting::{WaitReport, set_wait_reporter};
use cotensor_core::{ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

const DEVICE: &str = "GPU-5c1e";
const CAPACITY: u64 = 1000;
const ALL: DeviceNeeds = DeviceNeeds { demand_bytes: CAPACITY, smallest_bytes: 100 };
/// Far longer than any change takes.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

fn join(socket: &Path, client: &str, needs: DeviceNeeds) -> DeviceShare {
    DeviceShare::join(socket, client, DEVICE, CAPACITY, needs).unwrap()
}

/// Waits until the share is `bytes`, and acknowledges each share.
fn settles_at(program: &DeviceShare, bytes: u64) {
    until_share(program, bytes, true);
}

fn until_share(program: &DeviceShare, bytes: u64, acknowledges: bool) {
    loop {
        let (share, changes) = program.share();
        if acknowledges {
            program.acknowledge(share);
        }
        if share == bytes {
            return;
        }
        let (_, later) = program.wait(changes, CHANGE_TIMEOUT);
        assert!(later > changes, "the share stays at {share}, {bytes} expected");
    }
}

/// The programs on all devices. A client of its own, since the end of a session may not be known when its server dies.
fn list(store: &ClientStore) -> Vec<p::ProgramShare> {
    let devices = store.request::<p::ListDevices>(&p::Empty {}).unwrap().devices;
    devices.into_iter().flat_map(|device| device.programs).collect()
}

/// Calls over one session that does not follow its share.
struct Silent(Connection);

impl Silent {
    fn connect(socket: &Path) -> Self {
        let connection = cotensor_client::connect(socket, Box::new(|_, _, _| {})).unwrap();
        let hello = p::HelloParams { protocol: p::PROTOCOL, client: "silent".into(), ..Default::default() };
        connection.call::<p::Hello>(&hello, Vec::new(), None).unwrap();
        Self(connection)
    }

    fn join(&self, device: &str, capacity_bytes: u64, smallest_bytes: u64, held_bytes: u64) -> Result<u64> {
        let device = device.to_owned();
        let params =
            p::JoinDeviceParams { device, capacity_bytes, demand_bytes: capacity_bytes, smallest_bytes, held_bytes };
        Ok(self.0.call::<p::JoinDevice>(&params, Vec::new(), None)?.0.share_bytes)
    }

    fn report(&self, demand_bytes: u64) -> Result<()> {
        let params = p::ReportDeviceParams { device: DEVICE.to_owned(), demand_bytes, smallest_bytes: 1 };
        self.0.call::<p::ReportDevice>(&params, Vec::new(), None).map(drop)
    }
}

#[test]
fn second_program_grows_when_the_first_has_freed_memory() {
    let running = Running::start(|_| {});
    let lister = running.connect("list");
    let first = join(&running.socket, "first", ALL);
    assert_eq!(first.share(), (CAPACITY, 1));
    let second = join(&running.socket, "second", ALL);
    assert_eq!(second.share().0, 0);
    until_share(&first, 500, false);
    let held: Vec<_> = list(&lister).iter().map(|program| (program.share_bytes, program.held_bytes)).collect();
    assert_eq!(held, [(500, 1000), (0, 0)], "nothing was freed");
    first.acknowledge(500);
    settles_at(&second, 500);
    let programs = list(&lister);
    assert!(programs.iter().all(|program| program.busy && program.held_bytes == 500), "{programs:?}");
    assert!(programs[0].client.starts_with("first["), "{programs:?}");
}

#[test]
fn share_of_a_program_that_ended_goes_to_the_others() {
    let running = Running::start(|_| {});
    let lister = running.connect("list");
    let first = join(&running.socket, "first", ALL);
    let second = join(&running.socket, "second", ALL);
    settles_at(&first, 500);
    settles_at(&second, 500);
    drop(first);
    settles_at(&second, CAPACITY);
    drop(second);
    until("no program is left", || list(&lister).is_empty());
}

#[test]
fn memory_of_a_program_that_does_not_answer_is_not_given_to_others() {
    let running = Running::start(|_| {});
    let silent = Silent::connect(&running.socket);
    assert_eq!(silent.join(DEVICE, CAPACITY, 600, 0).unwrap(), CAPACITY);
    let other = join(&running.socket, "other", DeviceNeeds { demand_bytes: 300, smallest_bytes: 100 });
    let third = join(&running.socket, "third", ALL);
    assert_eq!((other.share().0, third.share().0), (0, 0));
    drop(silent);
    settles_at(&third, 700);
    settles_at(&other, 300);
}

#[test]
fn needs_that_do_not_fit_are_refused() {
    let running = Running::start(|_| {});
    let lister = running.connect("list");
    let _first = join(&running.socket, "first", DeviceNeeds { demand_bytes: 1000, smallest_bytes: 700 });
    let needs = DeviceNeeds { demand_bytes: 400, smallest_bytes: 301 };
    let error = DeviceShare::join(&running.socket, "second", DEVICE, CAPACITY, needs).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    assert!(error.message().contains("at least 301 B") && error.message().contains("cotensor top"), "{error}");
    assert_eq!(list(&lister).len(), 1);
}

#[test]
fn requests_are_limited() {
    let running = Running::start(|_| {});
    let one = Silent::connect(&running.socket);
    for (device, capacity, held, field) in
        [("", 1, 0, "device"), ("a\n", 1, 0, "device"), ("a", 0, 0, "capacity_bytes"), ("a", 5, 6, "held_bytes")]
    {
        assert_eq!(one.join(device, capacity, 0, held).unwrap_err().field(), Some(field), "{device:?}");
    }
    assert_eq!(one.report(1).unwrap_err().kind(), ErrorKind::NotFound);
    one.join(DEVICE, CAPACITY, 1, 0).unwrap();
    assert_eq!(one.join(DEVICE, CAPACITY, 1, 0).unwrap_err().kind(), ErrorKind::Conflict);
    let refused = (0..10_000).find_map(|_| one.report(1).err()).unwrap();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    let others: Vec<_> = (1..64).map(|_| Silent::connect(&running.socket)).collect();
    others.iter().for_each(|other| assert!(other.join(DEVICE, CAPACITY, 1, 0).is_ok()));
    let error = Silent::connect(&running.socket).join(DEVICE, CAPACITY, 1, 0).unwrap_err();
    assert!(error.message().contains("64 programs"), "{error}");
    (1..64).for_each(|device| assert_eq!(one.join(&format!("device {device}"), CAPACITY, 1, 0).unwrap(), CAPACITY));
    let error = one.join("one more", CAPACITY, 1, 0).unwrap_err();
    assert!(error.message().contains("64 devices"), "{error}");
}

#[test]
fn no_memory_is_given_twice_after_a_takeover() {
    let processes = Processes::start();
    let lister = processes.connect("list");
    let first = join(&processes.socket, "first", ALL);
    let second = join(&processes.socket, "second", ALL);
    settles_at(&first, 500);
    settles_at(&second, 500);
    for _ in 0..2 {
        processes.kill_server();
        until("both have joined again", || {
            let programs = list(&lister);
            assert!(programs.iter().map(|program| program.held_bytes).sum::<u64>() <= CAPACITY, "{programs:?}");
            programs.len() == 2
        });
        assert_eq!((first.share().0, second.share().0), (500, 500));
    }
    drop(first);
    settles_at(&second, CAPACITY);
}

/// A program that holds 500 of the device. Only `resume` connects it again.
struct Slow {
    socket: PathBuf,
    session: OpenSession,
    connection: Option<Connection>,
}

impl Slow {
    fn joined(socket: &Path) -> Self {
        let (connection, session, shares) = Self::hello(socket, None);
        assert!(shares.is_empty());
        assert_eq!(connection.call::<p::JoinDevice>(&half(0), Vec::new(), None).unwrap().0.share_bytes, 500);
        Self { socket: socket.to_path_buf(), session, connection: Some(connection) }
    }

    fn hello(socket: &Path, resume: Option<p::Resume>) -> (Connection, OpenSession, Vec<p::DeviceShareParams>) {
        let connection = cotensor_client::connect(socket, Box::new(|_, _, _| {})).unwrap();
        let params = OpenSession::hello("slow", resume);
        let (hello, mut fds) = connection.call::<p::Hello>(&params, Vec::new(), None).unwrap();
        let session = OpenSession::new(&hello, &mut fds).unwrap();
        (connection, session, hello.shares)
    }

    /// Closes the connection, and waits until the daemon has noticed it.
    fn disconnect(&mut self, lister: &ClientStore) {
        self.connection = None;
        until("the daemon has noticed the end of the connection", || {
            let sessions = lister.request::<p::Sessions>(&p::Empty {}).unwrap().sessions;
            !sessions.iter().any(|session| session.client.starts_with("slow"))
        });
    }

    /// Resumes the session. Returns the share.
    fn resume(&mut self) -> u64 {
        let resume = p::Resume { devices: vec![half(500)], ..self.session.resume() };
        let (connection, session, shares) = Self::hello(&self.socket, Some(resume));
        (self.connection, self.session) = (Some(connection), session);
        shares[0].share_bytes
    }
}

fn half(held_bytes: u64) -> p::JoinDeviceParams {
    let device = DEVICE.to_owned();
    p::JoinDeviceParams { device, capacity_bytes: CAPACITY, demand_bytes: 500, smallest_bytes: 100, held_bytes }
}

/// What programs hold, in the order of the names of their clients.
fn held(store: &ClientStore) -> Vec<u64> {
    let mut programs = list(store);
    programs.sort_unstable_by(|one, other| one.client.cmp(&other.client));
    programs.iter().map(|program| program.held_bytes).collect()
}

#[test]
fn resumed_program_has_its_memory_at_once() {
    let processes = Processes::start();
    let lister = processes.connect("list");
    let mut slow = Slow::joined(&processes.socket);
    let fast = join(&processes.socket, "fast", ALL);
    assert_eq!(fast.share().0, 500);
    processes.kill_server();
    assert_eq!(slow.resume(), 500, "with its hello, not later");
    until("the other program is back", || list(&lister).len() == 2);
    // All sessions are back: programs may grow.
    until("the store has resumed, too", || fast.is_connected() && held(&lister) == [500, 500]);
    assert_eq!(fast.share().0, 500);
    drop(slow);
    settles_at(&fast, CAPACITY);
}

#[test]
fn program_without_a_connection_keeps_its_memory() {
    let running = Running::start(|_| {});
    let lister = running.connect("list");
    let mut slow = Slow::joined(&running.socket);
    let fast = join(&running.socket, "fast", ALL);
    for _ in 0..2 {
        slow.disconnect(&lister);
        assert_eq!((held(&lister), fast.share().0), (vec![500, 500], 500));
        assert_eq!(slow.resume(), 500);
        assert_eq!((held(&lister), fast.share().0), (vec![500, 500], 500));
    }
    slow.disconnect(&lister);
    // It releases the lock: the program is over.
    drop(slow);
    settles_at(&fast, CAPACITY);
}

#[test]
fn memory_of_a_program_without_a_connection_is_kept_by_the_next_server() {
    let processes = Processes::start();
    let lister = processes.connect("list");
    let mut slow = Slow::joined(&processes.socket);
    let fast = join(&processes.socket, "fast", ALL);
    slow.disconnect(&lister);
    processes.kill_server();
    until("the other program is back", || held(&lister) == [500]);
    std::thread::sleep(LOOKED);
    assert_eq!(held(&lister), [500], "the server waits for the session");
    assert_eq!(slow.resume(), 500);
    drop(slow);
    settles_at(&fast, CAPACITY);
}

#[test]
fn returning_program_is_not_refused_for_the_needs_of_new_ones() {
    let processes = Processes::start();
    let lister = processes.connect("list");
    let mut slow = Slow::joined(&processes.socket);
    processes.kill_server();
    let new = join(&processes.socket, "new", DeviceNeeds { demand_bytes: CAPACITY, smallest_bytes: 950 });
    assert_eq!(new.share().0, 0, "its memory is kept");
    assert_eq!(slow.resume(), 50);
    assert_eq!(held(&lister), [0, 500], "until it has freed the rest");
}

#[test]
fn programs_join_a_new_daemon_with_the_memory_that_they_hold() {
    let processes = Processes::start();
    let first = join(&processes.socket, "first", ALL);
    let second = join(&processes.socket, "second", ALL);
    settles_at(&first, 500);
    settles_at(&second, 500);
    let processes = processes.start_anew();
    until("the new daemon answers", || ClientStore::connect(Some(&processes.socket), "list").is_ok());
    let lister = processes.connect("list");
    until("both have joined again", || {
        [&first, &second].iter().for_each(|program| program.acknowledge(program.share().0));
        let programs = list(&lister);
        programs.len() == 2 && programs.iter().all(|program| program.held_bytes == 500)
    });
    until("both know that", || first.is_connected() && second.is_connected());
}

#[test]
fn too_small_a_share_is_reported_with_the_program_that_has_the_memory() {
    let running = Running::start(|_| {});
    let first = join(&running.socket, "first", ALL);
    let second = join(&running.socket, "second", ALL);
    let (reported, reports) = std::sync::mpsc::channel();
    set_wait_reporter(Some(std::sync::Arc::new(move |report: &WaitReport| drop(reported.send(report.clone())))));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| until_share(&second, 500, true));
        let WaitReport { text, is_expected } = reports.recv().unwrap();
        let start = format!("waiting for process {} (", std::process::id());
        let end = "), to free memory of GPU-5c1e: this program has 0 B, and needs 100 B at least";
        assert!(text.starts_with(&start) && text.ends_with(end) && !is_expected, "{text}");
        settles_at(&first, 500);
        waiting.join().unwrap();
    });
}
