//! Readers of a tensor, and producers of large tensors, cannot change published bytes, and leased memory is not reused.
//! The attackers are separate processes of this test program.

use cotensor_attacks::{Put, Target, content, put, put_in_block};
use cotensor_client::ClientStore;
use cotensor_core::{MemoryKind, Segment};
use cotensor_memory::{Guarantee, PrivateMapping, SealedMemfd, SharedIndex, Slab};
use cotensor_store::{CopyReason, Lease, StoreReports, TensorStore};
use rustix::fs::{
    FallocateFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, ftruncate, open,
};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

const SOCKET: &str = "COTENSOR_ATTACKED_SOCKET";
/// The length of the victim's large tensors, and of the memory in which each lies.
const LARGE: usize = 1 << 20;

/// Tries all operations that could change the `bytes` bytes of a descriptor, a multiple of 8 of at most 8 MiB. Returns those that
/// succeeded.
pub(crate) fn changes(fd: &OwnedFd, bytes: usize) -> Vec<&'static str> {
    // A table of words that `SharedIndex::open`, which maps for writing, accepts by its length.
    let slots = (bytes / 8 - 1) as u32;
    let copy = || fd.try_clone().unwrap();
    let mut worked = Vec::new();
    let mut attempt = |what, outcome: bool| {
        if outcome {
            worked.push(what)
        }
    };
    attempt("writing", rustix::io::pwrite(fd, b"x", 0).is_ok());
    attempt("truncating", ftruncate(fd, 0).is_ok());
    attempt("growing", ftruncate(fd, 2 * bytes as u64).is_ok());
    attempt("punching a hole", fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096).is_ok());
    attempt("zeroing", fallocate(fd, FallocateFlags::ZERO_RANGE, 0, 4096).is_ok());
    attempt("mapping for writing", SharedIndex::open(copy(), slots).is_ok_and(|index| index.slots() > 0));
    attempt("another seal", fcntl_add_seals(fd, SealFlags::WRITE).is_ok());
    for flags in [OFlags::RDWR, OFlags::WRONLY, OFlags::RDWR | OFlags::TRUNC] {
        let reopened = open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty());
        let Ok(reopened) = reopened else { continue };
        attempt("writing after opening again", rustix::io::pwrite(&reopened, b"x", 0).is_ok());
        attempt("truncating after opening again", ftruncate(&reopened, 0).is_ok());
        attempt("mapping after opening again", SharedIndex::open(reopened, slots).is_ok());
    }
    worked
}

fn fd_of(lease: &Lease) -> OwnedFd {
    lease.segment().fd().unwrap().try_clone_to_owned().unwrap()
}

/// The main function of the attacker process.
#[test]
#[ignore = "a helper process of another test"]
fn attacker() {
    let Ok(socket) = std::env::var(SOCKET) else { panic!("started by the other test") };
    let store = ClientStore::connect(Some(Path::new(&socket)), "attacker").unwrap();
    for name in ["secret-small", "secret-large", "secret-block"] {
        let lease = store.get(name, &store.holder("")).unwrap();
        let bytes = rustix::fs::fstat(fd_of(&lease)).unwrap().st_size as usize;
        assert_eq!(changes(&fd_of(&lease), bytes), [] as [&str; 0], "{name}");
        // A writable view is a private copy.
        let (start, len) = (lease.segment().fd_offset(), lease.bytes().unwrap().len());
        let guarantee = if name == "secret-large" { Guarantee::Immutable } else { Guarantee::ProducerOnly };
        let seals = fcntl_get_seals(fd_of(&lease)).unwrap();
        assert_eq!(seals.contains(SealFlags::WRITE), name == "secret-large", "{name}");
        let sealed = SealedMemfd::open(fd_of(&lease), bytes, guarantee).unwrap();
        let mut private = PrivateMapping::of(&sealed, start..start + len).unwrap();
        private.bytes_mut().fill(255);
        assert!(lease.bytes().unwrap() == content(len), "{name}");
    }
    // The attacker's own tensors, after publishing.
    let own_block = put_in_block(&*store, "own block", &content(LARGE));
    assert_eq!(changes(&fd_of(&own_block), LARGE), [] as [&str; 0]);
    let mut reservation = store.reserve(cotensor_attacks::spec("own", LARGE), &store.holder("")).unwrap();
    reservation.write(&content(LARGE), CopyReason::Put).unwrap();
    let own = reservation.publish().unwrap();
    assert_eq!(changes(&fd_of(&own), LARGE), [] as [&str; 0]);
    println!("\npublished");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    // A process can write its own read-only pages through /proc/self/mem: the kernel makes private copies of them.
    let large = store.get("secret-large", &store.holder("")).unwrap();
    let block = store.get("secret-block", &store.holder("")).unwrap();
    for lease in [&large, &block, &own] {
        let at = lease.bytes().unwrap().as_ptr() as u64;
        let mut memory = std::fs::OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
        memory.seek(SeekFrom::Start(at)).unwrap();
        let _ = memory.write(&[255; 4096]);
    }
    println!("\nwritten");
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn processes_cannot_change_published_tensors() {
    let target = Target::start(|_| {});
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "immutable::attacker", "--nocapture"])
        .env(SOCKET, &target.socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut output, mut input) = (BufReader::new(child.stdout.take().unwrap()).lines(), child.stdin.take().unwrap());
    let mut expect = |word: &str| assert!(output.by_ref().any(|line| line.unwrap() == word), "{word} was not printed");
    expect("published");
    let reader = target.connect("reader");
    let own = reader.get("own", &reader.holder("")).unwrap();
    assert!(own.bytes().unwrap() == content(LARGE));
    input.write_all(b"go on\n").unwrap();
    expect("written");
    assert!(own.bytes().unwrap() == content(LARGE), "the producer cannot change it");
    target.assert_serves();
    input.write_all(b"end\n").unwrap();
    assert!(child.wait().unwrap().success());
    // The tensor stays readable after its producer's end.
    assert!(own.bytes().unwrap() == content(LARGE));
    drop((own, reader, output, input));
    target.assert_unharmed();
}

#[test]
fn producers_cannot_change_small_tensors_without_slabs() {
    let target = Target::start(|config| config.small_bytes_max = 0);
    let producer = target.connect("producer");
    for bytes in [0, 1, 100, 4096, 256 << 10] {
        let made = put(&*producer, "small", &content(bytes));
        assert_eq!(made.segment().kind(), MemoryKind::Memfd, "{bytes} bytes");
        let seals = fcntl_get_seals(fd_of(&made)).unwrap();
        assert!(seals.contains(SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL), "{seals:?}");
        assert!(
            target.connect("reader").get("small", &producer.holder("")).unwrap().bytes().unwrap() == content(bytes)
        );
    }
    let (mut raw, slab) = (target.raw(), Slab::create(8192).unwrap());
    let fd = slab.fd().try_clone_to_owned().unwrap();
    let error = raw.refused("slab.open", serde_json::json!({"bytes": 8192}), &[fd]);
    assert!(error.contains("no slabs"), "{error}");
    drop((raw, slab, producer));
    target.assert_unharmed();
}

#[test]
fn leased_ranges_are_not_reused() {
    let target = Target::start(|_| {});
    let (writer, reader) = (target.connect("writer"), target.connect("reader"));
    let slabs = [100, 4096, 64 << 10, LARGE].map(|bytes| (put as Put, bytes));
    let blocks = [600_000, LARGE].map(|bytes| (put_in_block as Put, bytes));
    for (put, bytes) in slabs.into_iter().chain(blocks) {
        // Like an imported array, which keeps its memory after its lease is dropped and its name removed.
        let mut imported: Vec<(u8, Lease)> = Vec::new();
        for round in 0..200u8 {
            let name = format!("{round}");
            let made = put(&*writer, &name, &vec![round; bytes]);
            if round.is_multiple_of(20) {
                imported.push((round, reader.get(&name, &reader.holder("")).unwrap()));
                writer.remove(&name).unwrap();
            }
            drop(made);
            for (byte, lease) in &imported {
                assert!(lease.bytes().unwrap() == vec![*byte; bytes], "{bytes} bytes of {byte}");
            }
        }
    }
    drop((writer, reader));
    target.assert_unharmed();
}

#[test]
fn tensors_written_in_place_are_not_copied() {
    let target = Target::start(|_| {});
    let writer = target.connect("writer");
    let copied = || writer.stats().copies.iter().map(|copies| copies.bytes).sum::<u64>();
    let before = copied();
    for bytes in [4096, 8 << 20] {
        let mut reservation = writer.reserve(cotensor_attacks::spec("in place", bytes), &writer.holder("")).unwrap();
        reservation.bytes_mut().unwrap().copy_from_slice(&content(bytes));
        let address = reservation.bytes().unwrap().as_ptr();
        let made = reservation.publish().unwrap();
        assert!(made.bytes().unwrap() == content(bytes));
        assert_eq!(made.bytes().unwrap().as_ptr(), address, "the address stays the same");
        // Other processes map the same memory.
        let segment: &dyn Segment = made.segment();
        assert!(segment.fd().is_some());
    }
    assert_eq!(copied(), before);
    let put = put(&*writer, "put", &content(4096));
    cotensor_attacks::until("the copy is counted", || copied() == before + 4096, || format!("{}", copied()));
    drop((put, Arc::clone(&writer)));
    drop(writer);
    target.assert_unharmed();
}
