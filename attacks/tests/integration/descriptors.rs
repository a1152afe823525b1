//! File descriptors: wrong numbers, wrong files, and exhaustion of the limit.

use cotensor_attacks::{Raw, Target, assert_no_secrets, content, put, spec};
use cotensor_client::{ClientStore, protocol as p};
use cotensor_core::{ErrorKind, Memory};
use cotensor_memory::process::create_memfd;
use cotensor_memory::{MemfdMemory, Slab};
use cotensor_store::{Lease, TensorStore};
use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create, open,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

const BYTES: usize = 8192;

fn sealed(bytes: usize) -> OwnedFd {
    MemfdMemory.reserve(bytes).unwrap().freeze().unwrap().fd().unwrap().try_clone_to_owned().unwrap()
}

pub(crate) fn size_seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW
}

/// A memfd of `len` bytes, of which the first `backed` are allocated.
pub(crate) fn memfd(len: u64, backed: u64, seals: SealFlags) -> OwnedFd {
    let fd = create_memfd("attack").unwrap();
    ftruncate(&fd, len).unwrap();
    if backed > 0 {
        fallocate(&fd, FallocateFlags::KEEP_SIZE, 0, backed).unwrap();
    }
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// A memfd of `len` bytes with a hole at its start, and one allocated page after its end.
fn with_a_hole(len: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd(len, 0, SealFlags::empty());
    fallocate(&fd, FallocateFlags::KEEP_SIZE, 4096, len).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// Opens the file of `fd` again with `flags`.
fn reopened(fd: &OwnedFd, flags: OFlags) -> OwnedFd {
    open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty()).unwrap()
}

/// Descriptors that are not immutable memory of `bytes` bytes, two pages or more, with their descriptions.
#[expect(clippy::disallowed_methods, reason = "memfds that Cotensor does not create")]
pub(crate) fn wrong(bytes: usize) -> Vec<(&'static str, OwnedFd)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, vec![0; bytes]).unwrap();
    let all = size_seals() | SealFlags::WRITE;
    let len = bytes as u64;
    let mut wrong = vec![
        ("a pipe", rustix::pipe::pipe().unwrap().0),
        ("a socket", std::os::unix::net::UnixStream::pair().unwrap().0.into()),
        ("/dev/zero", File::open("/dev/zero").unwrap().into()),
        ("a file", File::open(&file).unwrap().into()),
        ("a folder", File::open(folder.path()).unwrap().into()),
        ("a path", open(&file, OFlags::PATH, Mode::empty()).unwrap()),
        ("a path of a memfd", reopened(&sealed(bytes), OFlags::PATH)),
        ("for writing only", reopened(&sealed(bytes), OFlags::WRONLY)),
        ("for reading only", reopened(&sealed(bytes), OFlags::RDONLY)),
        ("not sealed", memfd(len, len, SealFlags::empty())),
        ("not sealed against writing", memfd(len, len, size_seals())),
        ("not sealed against shrinking", memfd(len, len, all - SealFlags::SHRINK)),
        ("not sealed against growing", memfd(len, len, all - SealFlags::GROW)),
        ("shrunk", sealed(bytes - 1)),
        ("empty", sealed(0)),
        ("longer", sealed(bytes + 1)),
        ("backed by nothing", memfd(len, 0, all)),
        ("half backed", memfd(len, len / 2, all)),
        ("backed beyond its end", memfd(len, 64 << 20, all)),
        ("empty, and backed beyond its end", memfd(0, 4096, all)),
        ("a hole, and as much beyond its end", with_a_hole(len, all)),
        ("of another kind", memfd_create("attack", MemfdFlags::CLOEXEC).unwrap()),
    ];
    if let Ok(huge) = memfd_create("attack", MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB) {
        ftruncate(&huge, 2 << 20).unwrap();
        fcntl_add_seals(&huge, all).unwrap();
        wrong.push(("huge pages", huge));
    }
    wrong
}

#[test]
fn only_sealed_memory_of_the_announced_length_is_accepted() {
    let target = Target::start(|_| {});
    let mut raw = target.raw();
    for (what, fd) in wrong(BYTES) {
        let reservation = raw.reserve("wrong", BYTES);
        let error = raw.refused("tensor.publish", json!({"reservation": reservation}), &[fd.try_clone().unwrap()]);
        assert_no_secrets(&error);
        assert!(error.contains("refused") || error.contains("descriptor"), "{what}: {error}");
        // The reservation ended with the refused call.
        let right = raw.refused("tensor.publish", json!({"reservation": reservation}), &[sealed(BYTES)]);
        assert!(right.contains("no reservation"), "{what}: {right}");
        let slab = raw.refused("slab.open", json!({"bytes": BYTES}), &[fd]);
        assert!(slab.contains("refused") || slab.contains("descriptor"), "{what}: {slab}");
    }
    // No later write is possible: an existing writable mapping prevents the seal.
    let slab = Slab::create(BYTES).unwrap();
    assert!(fcntl_add_seals(slab.fd(), SealFlags::WRITE).is_err());
    let reservation = raw.reserve("wrong", BYTES);
    let error =
        raw.refused("tensor.publish", json!({"reservation": reservation}), &[slab.fd().try_clone_to_owned().unwrap()]);
    assert!(error.contains("seals"), "{error}");
    drop((raw, slab));
    target.assert_unharmed();
}

#[test]
fn unexpected_descriptors_are_closed_and_missing_ones_refused() {
    let target = Target::start(|_| {});
    let mut raw = target.raw();
    let reservation = raw.reserve("none", BYTES);
    assert!(raw.refused("tensor.publish", json!({"reservation": reservation}), &[]).contains("descriptor"));
    // Descriptors that a call does not use are closed.
    for method in ["ping", "tensor.list", "store.stats", "nonsense"] {
        let fds: Vec<OwnedFd> = (0..64).map(|_| File::open("/dev/null").unwrap().into()).collect();
        let _ = raw.call(method, json!({}), &fds);
    }
    // Descriptors cannot be assigned to the calls of a batch.
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "slab.open", "params": {"bytes": BYTES}});
    let slab = Slab::create(BYTES).unwrap();
    let body = serde_json::to_vec(&[&call, &call]).unwrap();
    let header = [&(body.len() as u32).to_le_bytes()[..], &[1, 0, 0, 0]].concat();
    raw.bytes_with(&[header, body].concat(), &[slab.fd()]);
    let (answers, _) = raw.receive();
    assert!(answers.as_array().unwrap().iter().all(|answer| answer["error"]["code"] == -32602), "{answers}");
    drop((raw, slab));
    target.assert_unharmed();
}

#[test]
fn uncounted_descriptors_end_the_connection() {
    let target = Target::start(|_| {});
    let null = File::open("/dev/null").unwrap();
    let ping = br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let header = |fds: u8| [&(ping.len() as u32).to_le_bytes()[..], &[fds, 0, 0, 0]].concat();
    // The header counts none, too few, or too many.
    for (counted, sent) in [(0, 1), (1, 2), (2, 1), (0, 64), (64, 65), (0, 250)] {
        let mut raw = target.raw();
        let fds: Vec<_> = (0..sent).map(|_| null.as_fd()).collect();
        raw.bytes_with(&[&header(counted)[..], ping].concat(), &fds);
        raw.assert_ended();
    }
    // An unfinished header, each byte with the maximum of descriptors per frame.
    let mut raw = target.raw();
    raw.bytes(&(1u32 << 20).to_le_bytes());
    raw.bytes(&[0; 4]);
    let fds: Vec<_> = (0..64).map(|_| null.as_fd()).collect();
    (0..100).any(|_| !raw.bytes_with(b" ", &fds));
    raw.assert_ended();
    drop((raw, null));
    target.assert_unharmed();
}

#[test]
fn slab_belongs_to_one_session_and_is_bounded() {
    let target = Target::start(|_| {});
    let (mut one, mut other) = (target.raw(), target.raw());
    let slab = Slab::create(BYTES).unwrap();
    let fd = || slab.fd().try_clone_to_owned().unwrap();
    let number = one.call("slab.open", json!({"bytes": BYTES}), &[fd()]).unwrap()["slab"].clone();
    for raw in [&mut one, &mut other] {
        assert!(raw.refused("slab.open", json!({"bytes": BYTES}), &[fd()]).contains("open already"));
    }
    let publish = |offset: u64, bytes: usize| {
        let spec = p::Spec::from(&spec(&format!("at {offset}, {bytes}"), bytes));
        json!({"slab": number, "offset": offset, "spec": spec, "holder": ""})
    };
    for (offset, bytes) in [(BYTES as u64, 1), (0, BYTES + 1), (63, 1), (u64::MAX, 1), (u64::MAX - 63, 128)] {
        assert!(one.refused("tensor.publish_slab", publish(offset, bytes), &[]).contains("not a place"));
        assert!(other.refused("tensor.publish_slab", publish(offset, bytes), &[]).contains("no slab"));
    }
    // Empty tensors take no space in the slab, but memory of the daemon.
    let refused = (0..1000).filter(|_| one.call("tensor.publish_slab", publish(0, 0), &[]).is_err()).count();
    assert_eq!(refused, 1000 - 2 * BYTES / 64);
    drop((one, other, slab));
    target.assert_unharmed();
}

#[test]
fn next_session_of_a_slab_learns_its_live_ranges() {
    let target = Target::start(|_| {});
    let (mut one, mut reader) = (target.raw(), target.raw());
    let slab = Slab::create(BYTES).unwrap();
    let fd = || slab.fd().try_clone_to_owned().unwrap();
    let number = one.call("slab.open", json!({"bytes": BYTES}), &[fd()]).unwrap()["slab"].clone();
    let publish = json!({"slab": number, "offset": 128, "spec": p::Spec::from(&spec("left", 64)), "holder": ""});
    one.call("tensor.publish_slab", publish, &[]).unwrap();
    reader.call("tensor.get", json!({"name": "left"}), &[]).unwrap();
    drop(one);
    let mut again = target.raw();
    let opened = loop {
        // Retries until the daemon has noticed the end of the first session.
        if let Ok(opened) = again.call("slab.open", json!({"bytes": BYTES}), &[fd()]) {
            break opened;
        }
    };
    assert_eq!(opened["live"], json!([128]), "another client leases it");
    drop((again, reader, slab));
    target.assert_unharmed();
}

const SOCKET: &str = "COTENSOR_ATTACKED_SOCKET";

/// Starts this program as a client process that runs one of the ignored tests below.
fn client_process(target: &Target, test: &str) {
    let client = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test, "--nocapture"])
        .env(SOCKET, &target.socket)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&client.stdout);
    assert!(client.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&client.stderr));
}

fn connect_with(soft: u64, hard: Option<u64>) -> Arc<ClientStore> {
    let socket = std::env::var(SOCKET).expect("started by the other test");
    setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: hard }).unwrap();
    ClientStore::connect(Some(Path::new(&socket)), "client").unwrap()
}

const LARGE: usize = 300 << 10;

#[test]
#[ignore = "a helper process of another test"]
fn client_with_a_low_soft_limit() {
    let store = connect_with(256, getrlimit(Resource::Nofile).maximum);
    let others = ClientStore::connect(Some(store.socket()), "another").unwrap();
    let held: Vec<_> = (0..300).map(|index| put(&*store, &format!("large {index}"), &content(LARGE))).collect();
    let before = cotensor_attacks::fd_count();
    // A second get, also over another connection, takes no second descriptor.
    let again = |store: &ClientStore, lease: &Lease| store.get(lease.name(), &store.holder("again")).unwrap();
    let got: Vec<_> = held.iter().flat_map(|lease| [again(&store, lease), again(&others, lease)]).collect();
    assert!(got.iter().all(|lease| lease.bytes().unwrap() == content(LARGE)));
    assert!(cotensor_attacks::fd_count() <= before + 4, "{} and {before}", cotensor_attacks::fd_count());
    // `select` supports only descriptors below 1024.
    assert!(File::open("/dev/null").unwrap().as_raw_fd() < 256, "low numbers stay free for the program");
}

#[test]
fn client_raises_its_soft_descriptor_limit() {
    let target = Target::start(|_| {});
    client_process(&target, "descriptors::client_with_a_low_soft_limit");
    target.assert_unharmed();
}

#[test]
#[ignore = "a helper process of another test"]
fn client_with_a_low_hard_limit() {
    let store = connect_with(64, Some(64));
    let mut held = Vec::new();
    let error = loop {
        match store.get(&format!("large {}", held.len()), &store.holder("")) {
            Ok(lease) => held.push(lease),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::OverBudget, "{error}");
    assert!(error.to_string().contains("ulimit -n") && held.len() > 30, "{error}, after {}", held.len());
    // Held tensors stay usable, and released ones make room.
    assert!(held.iter().all(|lease| lease.bytes().unwrap() == content(LARGE)));
    let wanted = format!("large {}", held.len());
    held.truncate(held.len() - 8);
    assert!(store.get(&wanted, &store.holder("")).unwrap().bytes().unwrap() == content(LARGE));
    assert_eq!(
        store.request::<p::Sessions>(&Default::default()).unwrap().sessions.len(),
        3,
        "the client did not reconnect"
    );
}

#[test]
fn client_at_its_hard_descriptor_limit_gets_advice_and_keeps_its_tensors() {
    let target = Target::start(|_| {});
    let producer = target.connect("producer");
    let held: Vec<_> = (0..100).map(|index| put(&*producer, &format!("large {index}"), &content(LARGE))).collect();
    client_process(&target, "descriptors::client_with_a_low_hard_limit");
    drop((held, producer));
    target.assert_unharmed();
}

/// Changes the limit of the whole process, which nextest starts per test.
#[test]
fn last_descriptors_are_reserved_for_other_clients() {
    let target = Target::start(|_| {});
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(512), maximum: before.maximum }).unwrap();
    let mut raw = target.raw();
    let fd = sealed(0);
    let error = (0..600).find_map(|index| {
        let reservation = raw.reserve(&format!("one of many {index}"), 0);
        raw.call("tensor.publish", json!({"reservation": reservation}), &[fd.try_clone().unwrap()]).err()
    });
    let error = error.expect("descriptors are bounded").to_string();
    assert!(error.contains("limit of open descriptors"), "{error}");
    assert_no_secrets(&error);
    // Readers and new clients are served.
    let bystander = target.connect("bystander");
    assert!(bystander.get("secret-large", &bystander.holder("")).is_ok());
    drop(bystander);
    // Unleased tensors make room.
    let lists = |raw: &mut Raw| raw.call("tensor.list", json!({"prefix": "one of many"}), &[]).unwrap();
    let ids: Vec<_> =
        lists(&mut raw)["tensors"].as_array().unwrap().iter().map(|tensor| tensor["id"].clone()).collect();
    let leases: Vec<_> = ids.iter().map(|id| json!({"id": id})).collect();
    raw.call("tensor.release", json!({"leases": leases}), &[]).unwrap();
    let reservation = raw.reserve("room again", 0);
    raw.call("tensor.publish", json!({"reservation": reservation}), &[fd.try_clone().unwrap()]).unwrap();
    drop((raw, fd));
    target.assert_unharmed();
    setrlimit(Resource::Nofile, before).unwrap();
}
