//! The cost of tensors on a device beside the driver's calls, on the fake driver: interleaved in one run, against separate processes; results
//! are medians.
//!
//! A first get is a request to the daemon, whose answer brings a descriptor, and the driver's calls for it (import, place, reserve, map,
//! access: `CudaMemory::import`). These are measured alone, too, so that the rest is Cotensor's own.
#![allow(clippy::unwrap_used)]

mod support;

use cotensor_client::ClientStore;
use cotensor_core::{DType, Device, Memory, MemoryKind};
use cotensor_daemon::Config;
use cotensor_fake_cuda::FakeCuda;
use cotensor_memory::{CudaDriver, CudaMemory};
use cotensor_rpc::{Frame, send_all};
use cotensor_store::{Retention, TensorSpec, TensorStore};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{ECHO_BYTES, Server, median, micros, receive, run, timed};

const ROUNDS: usize = 400;
const BYTES: usize = 4 << 20;
const BUDGET: u64 = 64 << 20;

fn main() {
    let max_device_bytes = [(Device::Cuda(0), BUDGET)].into();
    run(measure, serve_echo, || Config { max_device_bytes, ..Config::default() });
}

/// Echoes 200 bytes with a descriptor.
fn serve_echo(socket: &Path) {
    for stream in UnixListener::bind(socket).unwrap().incoming() {
        let (mut stream, mut buffer) = (stream.unwrap(), [0; ECHO_BYTES]);
        while stream.read_exact(&mut buffer).is_ok() {
            let fd = OwnedFd::from(File::open("/dev/zero").unwrap());
            send_all(stream.as_fd(), &Frame { body: buffer.to_vec(), fds: vec![fd] }).unwrap();
        }
    }
}

fn measure() {
    let (folder, fake) = (tempfile::tempdir().unwrap(), FakeCuda::start().unwrap());
    let (echo_at, daemon_at) = (folder.path().join("echo"), folder.path().join("daemon"));
    let _echo = Server::start("--serve-echo", &echo_at);
    let _daemon = Server::start("--serve-daemon", &daemon_at);
    let driver = CudaDriver::load(&fake.library()).unwrap();
    let memory: Arc<dyn Memory> = Arc::new(CudaMemory::all(&driver).unwrap().remove(0));
    let connect = |name| ClientStore::builder(name).socket(&daemon_at).memory(Arc::clone(&memory)).connect().unwrap();
    let (producer, reader) = (connect("producer"), connect("reader"));
    let spec = TensorSpec::new("w", DType::U8, &[BYTES]).on(Device::Cuda(0));
    let spec = TensorSpec { retention: Retention::Cached { recompute: Duration::ZERO }, ..spec };
    let published = producer.reserve(spec, &producer.holder("")).unwrap().publish().unwrap();
    let handle = published.segment().fd().unwrap().try_clone_to_owned().unwrap();
    let (mut echo, holder) = (UnixStream::connect(&echo_at).unwrap(), reader.holder(""));
    let [mut echoes, mut alone, mut firsts, mut repeated] = [(); 4].map(|()| Vec::new());
    for _ in 0..ROUNDS {
        echoes.push(timed(|| drop(receive(&mut echo))));
        let descriptor = handle.try_clone().unwrap();
        let start = Instant::now();
        let opened = memory.import(descriptor, BYTES, MemoryKind::Device).unwrap();
        alone.push(start.elapsed());
        drop(opened);
        let start = Instant::now();
        let first = reader.get("w", &holder).unwrap();
        firsts.push(start.elapsed());
        repeated.push(timed(|| drop(reader.get("w", &holder).unwrap())));
        drop(first);
    }
    let [echo, alone, first, repeated] =
        [&mut echoes, &mut alone, &mut firsts, &mut repeated].map(|times| micros(median(times)));
    println!("medians of {ROUNDS} rounds, interleaved; a tensor of {} MiB", BYTES >> 20);
    println!("an echo of {ECHO_BYTES} bytes with a descriptor: {echo:.1} us");
    println!("import, place, reserve, map, access by the fake driver: {alone:.1} us");
    println!("first get: {first:.1} us; in echoes and the driver's calls (at most 1.5): {:.2}", first / (echo + alone));
    println!("first get beside the driver's calls, in echoes (at most 2): {:.2}", (first - alone) / echo);
    println!("get of a tensor that is held: {repeated:.2} us (at most 2)");
}
