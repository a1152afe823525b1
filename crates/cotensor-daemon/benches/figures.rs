//! The cost of the daemon relative to an echo over a Unix socket, a copy and a mapping. Measurements are interleaved in
//! one run, against separate processes; results are medians.
#![allow(clippy::unwrap_used)]

mod support;

use cotensor_client::ClientStore;
use cotensor_client::protocol::{Empty, Ping};
use cotensor_core::{DType, Kind, Segment};
use cotensor_daemon::Config;
use cotensor_memory::{Guarantee, MemfdMut, SealedMemfd, copy_parallel};
use cotensor_rpc::{Frame, send_all};
use cotensor_store::{CopyReason, MemoryControl, Retention, TensorSpec, TensorStore};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use support::{ECHO_BYTES, Server, median, micros, receive, run, timed};

const CLIENTS: usize = 8;
const LARGE_BYTES: usize = 256 << 20;
const SMALL_ROUNDS: usize = 3000;
/// First gets of names: each is a request to the daemon.
const GETS: usize = 300;
const LARGE_ROUNDS: usize = 7;

fn main() {
    run(measure, serve_echo, Config::default);
}

/// Echoes 200 bytes. If the first byte is 1, adds the descriptor of a sealed 256 MB memfd.
fn serve_echo(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    for stream in listener.incoming() {
        std::thread::spawn(move || {
            let mut stream: UnixStream = stream.unwrap();
            let mut buffer = [0; ECHO_BYTES];
            let large: std::cell::OnceCell<SealedMemfd> = std::cell::OnceCell::new();
            while stream.read_exact(&mut buffer).is_ok() {
                if buffer[0] == 1 {
                    let large = large.get_or_init(|| MemfdMut::create(LARGE_BYTES).unwrap().seal().unwrap());
                    let fd = large.fd().unwrap().try_clone_to_owned().unwrap();
                    send_all(stream.as_fd(), &Frame { body: buffer.to_vec(), fds: vec![fd] }).unwrap();
                } else {
                    stream.write_all(&buffer).unwrap();
                }
            }
        });
    }
}

fn measure() {
    let folder = tempfile::tempdir().unwrap();
    let (echo_at, daemon_at) = (folder.path().join("echo"), folder.path().join("daemon"));
    let _echo = Server::start("--serve-echo", &echo_at);
    let _daemon = Server::start("--serve-daemon", &daemon_at);
    println!("{} cores; medians of {SMALL_ROUNDS} and {LARGE_ROUNDS} rounds, interleaved", cores());
    small(&echo_at, &daemon_at);
    throughput(&echo_at, &daemon_at);
    large(&echo_at, &daemon_at);
}

fn small(echo_at: &Path, daemon_at: &Path) {
    let mut echo = UnixStream::connect(echo_at).unwrap();
    let store = ClientStore::connect(Some(daemon_at), "bench").unwrap();
    let holder = store.holder("");
    let content = [7; 4096];
    let held = put(&store, "held", &content);
    let [mut echoes, mut pings, mut publishes, mut gets] = [(); 4].map(|()| Vec::new());
    for _ in 0..SMALL_ROUNDS {
        echoes.push(timed(|| echo_once(&mut echo)));
        pings.push(timed(|| ping(&store)));
        let start = Instant::now();
        let published = put(&store, "small", &content);
        publishes.push(start.elapsed());
        drop(published);
        gets.push(timed(|| drop(store.get("held", &holder).unwrap())));
    }
    drop(held);
    let echo = median(&mut echoes);
    println!("a bare echo of {ECHO_BYTES} bytes: {:.1} us", micros(echo));
    ratio("ping, in echoes (at most 1.3)", median(&mut pings), echo);
    ratio("publish 4 KB, in echoes (at most 1.5)", median(&mut publishes), echo);
    println!("get of a name that is held: {:.2} us (at most 1)", micros(median(&mut gets)));
}

/// Eight clients at once, calls in a second.
fn throughput(echo_at: &Path, daemon_at: &Path) {
    let mut shares = Vec::new();
    for _ in 0..3 {
        let echoes = with_clients(|| {
            let mut echo = UnixStream::connect(echo_at).unwrap();
            move || echo_once(&mut echo)
        });
        let pings = with_clients(|| {
            let store = ClientStore::connect(Some(daemon_at), "bench").unwrap();
            move || ping(&store)
        });
        shares.push((pings as f64 / echoes as f64, echoes));
    }
    shares.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (share, echoes) = shares[1];
    println!("pings of {CLIENTS} clients, share of as many echoes ({echoes} a second): {share:.2} (at least 0.5)");
}

fn with_clients<F: FnMut()>(connect: impl Fn() -> F + Sync) -> usize {
    let start = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let mut call = connect();
                    start.wait();
                    let (began, mut calls) = (Instant::now(), 0);
                    while began.elapsed() < Duration::from_secs(1) {
                        call();
                        calls += 1;
                    }
                    calls
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    })
}

fn large(echo_at: &Path, daemon_at: &Path) {
    let mut echo = UnixStream::connect(echo_at).unwrap();
    let store = ClientStore::connect(Some(daemon_at), "producer").unwrap();
    let reader = ClientStore::connect(Some(daemon_at), "reader").unwrap();
    let holder = reader.holder("");
    // Another length than the prepared ones: no row, for which memory would be made ready in the background.
    let source = vec![5u8; LARGE_BYTES + (2 << 20)];
    let (source, longer) = (&source[..LARGE_BYTES], &source[..]);
    let mut target = vec![1u8; LARGE_BYTES];
    let [mut copies, mut warm, mut cold, mut maps, mut gets] = [(); 5].map(|()| Vec::new());
    for _ in 0..LARGE_ROUNDS {
        copies.push(timed(|| copy_parallel(&mut target, source)));
        // What a publisher does ahead of time, when it has nothing better to do.
        store.prefault(cotensor_core::Device::Cpu, LARGE_BYTES, 1).unwrap();
        let start = Instant::now();
        let lease = put(&store, "large", source);
        warm.push(start.elapsed());
        drop(lease);
        let start = Instant::now();
        let lease = put(&store, "longer", longer);
        cold.push(start.elapsed());
        drop(lease);
    }
    let _lease = put(&store, "large", source);
    for _ in 0..GETS {
        let start = Instant::now();
        let mapped = SealedMemfd::open(receive(&mut echo), LARGE_BYTES, Guarantee::Immutable).unwrap();
        maps.push(start.elapsed());
        drop(mapped);
        let start = Instant::now();
        let got = reader.get("large", &holder).unwrap();
        gets.push(start.elapsed());
        drop(got);
    }
    let copy = median(&mut copies);
    println!("a copy of 256 MB, parallel: {:.1} ms", micros(copy) / 1e3);
    ratio("copy over publish of 256 MB, warm (at least 0.85)", copy, median(&mut warm));
    ratio("copy over publish of 256 MB, cold", copy, median(&mut cold));
    ratio(
        "first get of 256 MB, in echoes with a descriptor and a mapping (at most 1.5)",
        median(&mut gets),
        median(&mut maps),
    );
}

fn put(store: &Arc<ClientStore>, name: &str, bytes: &[u8]) -> cotensor_store::Lease {
    let spec = TensorSpec {
        device: cotensor_core::Device::Cpu,
        name: name.to_owned(),
        dtype: DType::U8,
        shape: vec![bytes.len()],
        kind: Kind::Other,
        space: None,
        producer: "bench".to_owned(),
        retention: Retention::WhileLeased,
        provenance: None,
        keep_for: None,
        metadata: None,
        members: None,
    };
    let mut reservation = store.reserve(spec, &store.holder("")).unwrap();
    reservation.write(bytes, CopyReason::Put).unwrap();
    reservation.publish().unwrap()
}

fn echo_once(stream: &mut UnixStream) {
    let mut buffer = [0; ECHO_BYTES];
    stream.write_all(&buffer).unwrap();
    stream.read_exact(&mut buffer).unwrap();
}

fn ping(store: &ClientStore) {
    store.request::<Ping>(&Empty {}).unwrap();
}

fn ratio(what: &str, time: Duration, unit: Duration) {
    println!(
        "{what}: {:.2} ({:.1} us over {:.1} us)",
        time.as_secs_f64() / unit.as_secs_f64(),
        micros(time),
        micros(unit)
    );
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
