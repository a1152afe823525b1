//! Memory of CUDA devices, on a fake driver.

use cotensor_core::testing::{conformance, import_conformance};
use cotensor_core::{Device, Error, ErrorKind, Memory, MemoryKind, Segment};
use cotensor_fake_cuda::{FakeCuda, ILLEGAL_ADDRESS, NOT_SUPPORTED, OUT_OF_MEMORY};
use cotensor_memory::{CudaDriver, CudaMemory, DEVICES_VARIABLE};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// A child's variable: the library of the driver.
const LIBRARY: &str = "COTENSOR_TEST_CUDA";
const MIB: usize = 1 << 20;
/// The exit code of a child that has passed its checks: a test program without a matching test ends with 0.
const DONE: i32 = 42;

fn start() -> (FakeCuda, CudaMemory) {
    let fake = FakeCuda::start().unwrap();
    let memory = memory_of(&CudaDriver::load(&fake.library()).unwrap());
    (fake, memory)
}

fn memory_of(driver: &Arc<CudaDriver>) -> CudaMemory {
    CudaMemory::new(driver, driver.devices().unwrap().remove(0))
}

fn fd_of(segment: &dyn Segment) -> OwnedFd {
    segment.fd().unwrap().try_clone_to_owned().unwrap()
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 251) as u8).collect()
}

fn read(segment: &dyn Segment) -> cotensor_core::Result<Vec<u8>> {
    let mut bytes = vec![0; segment.len()];
    segment.read_at(0, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn memory_conforms_and_leaks_nothing() {
    let (fake, memory) = start();
    assert_eq!((memory.device(), memory.kind()), (Device::Cuda(0), MemoryKind::Device));
    conformance(&memory);
    import_conformance(&memory);
    assert_eq!(fake.used_bytes(0).unwrap(), 0);
    let segment = memory.copy_of(&content(100)).unwrap().freeze().unwrap();
    assert_eq!((segment.bytes(), fake.used_bytes(0).unwrap()), (None, 2 << 20));
    assert_eq!(memory.free_bytes().unwrap(), (1 << 30) - (2 << 20));
    drop(segment);
    assert_eq!(memory.free_bytes().unwrap(), 1 << 30);
}

#[test]
fn bytes_behind_a_tensor_are_zero() {
    let (_fake, memory) = start();
    let mut to_fill = memory.reserve_to_fill(100).unwrap();
    to_fill.write_at(0, &[7; 100]).unwrap();
    for segment in [memory.copy_of(&[7; 100]).unwrap(), to_fill] {
        check_bytes_behind(&memory, &*segment.freeze().unwrap());
    }
}

/// `segment` has 100 bytes of 7.
fn check_bytes_behind(memory: &CudaMemory, segment: &dyn Segment) {
    // The descriptor has the whole unit.
    let whole = memory.import(fd_of(segment), 2 * MIB, MemoryKind::Device).unwrap();
    let bytes = read(&*whole).unwrap();
    assert!(bytes[..100].iter().all(|byte| *byte == 7) && bytes[100..].iter().all(|byte| *byte == 0));
}

#[test]
fn memory_that_is_filled_is_not_cleared_first() {
    let (fake, memory) = start();
    fake.fail("cuMemsetD8Async", 4711).unwrap();
    let mut to_fill = memory.reserve_to_fill(2 * MIB).unwrap();
    to_fill.write_at(0, &content(2 * MIB)).unwrap();
    assert!(read(&*to_fill.freeze().unwrap()).unwrap() == content(2 * MIB));
    assert_eq!(memory.reserve(2 * MIB).err().unwrap().kind(), ErrorKind::Io, "zeros were promised");
}

#[test]
fn readers_keep_no_descriptor() {
    let (fake, memory) = start();
    let made = memory.copy_of(&content(100)).unwrap().freeze().unwrap();
    let slab = memory.create_slab(2 * MIB).unwrap();
    let (fd, of_slab) = (fd_of(&*made), slab.fd().try_clone_to_owned().unwrap());
    let found = memory.import(fd, 100, MemoryKind::Device).unwrap();
    let whole = memory.import(of_slab, 2 * MIB, MemoryKind::Slab).unwrap();
    assert!([&found, &whole, &whole.for_tensor(&whole)].iter().all(|segment| segment.fd().is_none()));
    drop((made, slab));
    assert!(read(&*found).unwrap() == content(100) && read(&*whole).unwrap().iter().all(|byte| *byte == 0));
    drop((found, whole));
    assert_eq!(fake.used_bytes(0).unwrap(), 0);
}

#[test]
fn descriptors_that_are_not_the_memory_are_refused() {
    let (fake, memory) = start();
    let made = memory.reserve(4 * MIB).unwrap().freeze().unwrap();
    let host = cotensor_memory::MemfdMemory.reserve(2 * MIB).unwrap().freeze().unwrap();
    let null = || OwnedFd::from(File::open("/dev/null").unwrap());
    let refused = |fd, len, kind| memory.import(fd, len, kind).err().unwrap();
    for (fd, len) in [(null(), 2 * MIB), (fd_of(&*host), 2 * MIB), (fd_of(&*made), 2 * MIB), (fd_of(&*made), 8 * MIB)] {
        let error = refused(fd, len, MemoryKind::Device);
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    }
    assert_eq!(refused(fd_of(&*made), 4 * MIB, MemoryKind::Memfd).kind(), ErrorKind::Refused);
    assert_eq!(refused(fd_of(&*made), usize::MAX, MemoryKind::Device).kind(), ErrorKind::Invalid);
    // The process can go on.
    assert_eq!(memory.import(fd_of(&*made), 4 * MIB, MemoryKind::Device).unwrap().len(), 4 * MIB);
    assert_eq!(fake.used_bytes(0).unwrap(), 4 << 20);
}

#[test]
fn errors_of_the_driver_are_clear_and_give_memory_back() {
    let (fake, memory) = start();
    fake.set_memory_bytes(4 << 20).unwrap();
    let held = memory.reserve(2 * MIB).unwrap();
    let error = memory.reserve(3 * MIB).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::OverBudget);
    for part in ["cuda:0 has 2097152 of 4194304 bytes left, not 4194304", "CUDA_ERROR_OUT_OF_MEMORY"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let segment = held.freeze().unwrap();
    for function in
        ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async", "cuStreamSynchronize"]
    {
        fake.fail(function, 4711).unwrap();
        let error = memory.reserve(1).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Io, "{function}: {error}");
        assert!(error.to_string().contains("result 4711"), "{error}");
        fake.repair().unwrap();
        assert_eq!(fake.used_bytes(0).unwrap(), 2 << 20, "{function}");
    }
    for (function, result) in
        [("cuCtxSynchronize", ILLEGAL_ADDRESS), ("cuMemSetAccess", 4711), ("cuMemExportToShareableHandle", 4711)]
    {
        let written = memory.reserve(1).unwrap();
        written.device_address().unwrap();
        fake.fail(function, result).unwrap();
        assert_eq!(written.freeze().err().unwrap().kind(), ErrorKind::Io, "{function}");
        fake.repair().unwrap();
        assert_eq!(fake.used_bytes(0).unwrap(), 2 << 20, "{function}");
    }
    for function in ["cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"] {
        fake.fail(function, OUT_OF_MEMORY).unwrap();
        let error = memory.import(fd_of(&*segment), 2 * MIB, MemoryKind::Device).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::OverBudget, "{function}: {error}");
        fake.fail(function, NOT_SUPPORTED).unwrap();
        let error = memory.import(fd_of(&*segment), 2 * MIB, MemoryKind::Device).err().unwrap();
        // The driver refuses another length by this result.
        let wanted = if function == "cuMemMap" { ErrorKind::Refused } else { ErrorKind::Unsupported };
        assert_eq!(error.kind(), wanted, "{function}: {error}");
        let error = memory.reserve(1).map(drop);
        assert!(error.is_ok() == (function == "cuMemImportFromShareableHandle"), "{function}");
        assert!(error.is_ok() || error.unwrap_err().kind() == ErrorKind::Unsupported, "{function}");
        fake.repair().unwrap();
    }
    drop(segment);
    assert_eq!(fake.used_bytes(0).unwrap(), 0);
}

#[test]
fn machines_without_a_usable_driver_have_clear_errors() {
    let fake = FakeCuda::start().unwrap();
    let load = || -> Error { CudaDriver::load(&fake.library()).unwrap_err() };
    fake.set_version(10_020).unwrap();
    let error = load();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("supports CUDA 10.2; Cotensor needs one for CUDA 11.4"), "{error}");
    fake.set_version(12_080).unwrap();
    fake.fail("cuInit", 35).unwrap();
    assert_eq!(load().kind(), ErrorKind::Unsupported);
    fake.repair().unwrap();
    fake.set_devices(0).unwrap();
    let error = load();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("CUDA_ERROR_NO_DEVICE"), "{error}");
    fake.set_devices(1).unwrap();
    let driver = CudaDriver::load(&fake.library()).unwrap();
    assert_eq!(driver.version(), "12.8");
    // Stores count units of 2 MiB.
    fake.set_granularity_bytes(64 << 10).unwrap();
    assert_eq!(driver.devices().unwrap()[0].granularity, 64 << 10);
    for granularity in [0, 3 << 20, 4 << 20] {
        fake.set_granularity_bytes(granularity).unwrap();
        let error = driver.devices().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(&format!("allocates units of {granularity} bytes")), "{error}");
    }
}

/// This test program, started again: the test `name` with a descriptor as its standard input.
fn again(name: &str, library: &Path, input: OwnedFd) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("cuda::{name}"), "--include-ignored", "--nocapture"]);
    command.stdin(input).env(LIBRARY, library);
    command
}

/// The driver and the standard input of a process that [`again`] has started.
fn as_child() -> Option<(Arc<CudaDriver>, OwnedFd)> {
    let library = std::env::var_os(LIBRARY)?;
    let input = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    Some((CudaDriver::load(library.as_ref()).unwrap(), input))
}

/// Makes memory, sends its descriptor through a socket, and waits to be killed.
fn produce(driver: &Arc<CudaDriver>, socket: &OwnedFd) -> ! {
    let segment = memory_of(driver).copy_of(&content(3 * MIB)).unwrap().freeze().unwrap();
    let fds = [segment.fd().unwrap()];
    let (mut space, data) = ([MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))], [IoSlice::new(&[1])]);
    let mut message = SendAncillaryBuffer::new(&mut space);
    assert!(message.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(socket, &data, &mut message, SendFlags::empty()).unwrap();
    loop {
        std::thread::park();
    }
}

/// The descriptor of a process that runs the test `name`, which calls [`produce`]. The process is killed.
fn from_killed_producer(name: &str, library: &Path) -> OwnedFd {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut producer = again(name, library, theirs.into()).spawn().unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let (mut message, mut byte) = (RecvAncillaryBuffer::new(&mut space), [0]);
    recvmsg(&ours, &mut [IoSliceMut::new(&mut byte)], &mut message, RecvFlags::CMSG_CLOEXEC).unwrap();
    let received = message.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    producer.kill().unwrap();
    producer.wait().unwrap();
    received.unwrap()
}

#[test]
fn memory_outlives_its_killed_producer() {
    if let Some((driver, socket)) = as_child() {
        produce(&driver, &socket);
    }
    let (fake, memory) = start();
    let received = from_killed_producer("memory_outlives_its_killed_producer", &fake.library());
    assert_eq!(fake.used_bytes(0).unwrap(), 4 << 20, "the descriptor keeps the memory");
    // Neither the import nor its mapping needs the context that the first copy opens.
    let segment = memory.import(received, 3 * MIB, MemoryKind::Device).unwrap();
    assert!(read(&*segment).unwrap() == content(3 * MIB), "the last bytes of the producer are there");
    drop(segment);
    assert_eq!(fake.used_bytes(0).unwrap(), 0);
}

/// The same on real hardware: `cargo nextest run -p cotensor-memory --run-ignored only installed_driver`.
#[test]
#[ignore = "needs a GPU and its driver"]
fn installed_driver_conforms() {
    if let Some((driver, socket)) = as_child() {
        produce(&driver, &socket);
    }
    let driver = CudaDriver::open().unwrap();
    let memory = memory_of(&driver);
    println!("{driver:?} {memory:?}");
    // The import is before the first context of the process.
    let received = from_killed_producer("installed_driver_conforms", driver.path());
    let again = || received.try_clone().unwrap();
    let segment = memory.import(again(), 3 * MIB, MemoryKind::Device).unwrap();
    assert!(read(&*segment).unwrap() == content(3 * MIB));
    conformance(&memory);
    import_conformance(&memory);
    for wrong in [2 * MIB, 8 * MIB] {
        let error = memory.import(again(), wrong, MemoryKind::Device).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    }
    let null = OwnedFd::from(File::open("/dev/null").unwrap());
    assert_eq!(memory.import(null, 2 * MIB, MemoryKind::Device).err().unwrap().kind(), ErrorKind::Refused);
}

#[test]
fn lost_context_is_an_error_of_this_process_only() {
    if let Some((driver, fd)) = as_child() {
        // The import is before the first context of the process.
        let segment = memory_of(&driver).import(fd, 1000, MemoryKind::Device).unwrap();
        assert!(read(&*segment).unwrap() == content(1000));
        std::process::exit(DONE);
    }
    let (fake, memory) = start();
    let segment = memory.copy_of(&content(1000)).unwrap().freeze().unwrap();
    fake.lose_contexts(std::process::id(), ILLEGAL_ADDRESS).unwrap();
    for error in [read(&*segment).unwrap_err(), memory.reserve(1).err().unwrap()] {
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("must be started again"), "{error}");
    }
    let mut other = again("lost_context_is_an_error_of_this_process_only", &fake.library(), fd_of(&*segment));
    assert_eq!(other.status().unwrap().code(), Some(DONE));
}

#[test]
fn devices_have_the_same_numbers_in_all_processes() {
    const UUIDS: [&str; 2] = ["GPU-636f7465-6e73-6f72-2066-616b00000000", "GPU-636f7465-6e73-6f72-2066-616b00000001"];
    let name = "devices_have_the_same_numbers_in_all_processes";
    if let Some((driver, fd)) = as_child() {
        let devices = match driver.devices() {
            Ok(devices) => devices,
            Err(error) => {
                assert!(error.to_string().contains("CUDA_VISIBLE_DEVICES renumbers devices"), "{error}");
                std::process::exit(7);
            }
        };
        let found: Vec<(u32, u32)> = devices.iter().map(|device| (device.ordinal, device.number)).collect();
        assert_eq!(found, [(0, 1)]);
        let memory = CudaMemory::new(&driver, devices[0].clone());
        assert_eq!(memory.device(), Device::Cuda(1));
        let segment = memory.import(fd, 1000, MemoryKind::Device).unwrap();
        assert!(read(&*segment).unwrap() == content(1000));
        std::process::exit(DONE);
    }
    let fake = FakeCuda::start().unwrap();
    fake.set_devices(2).unwrap();
    let driver = CudaDriver::load(&fake.library()).unwrap();
    let devices = driver.devices().unwrap();
    assert_eq!(devices.iter().map(|device| &*device.uuid).collect::<Vec<_>>(), UUIDS);
    let memory = CudaMemory::new(&driver, devices[1].clone());
    let segment = memory.copy_of(&content(1000)).unwrap().freeze().unwrap();
    let hidden = |list: Option<&str>| {
        let mut child = again(name, &fake.library(), fd_of(&*segment));
        child
            .env("CUDA_VISIBLE_DEVICES", "1")
            .env_remove(DEVICES_VARIABLE)
            .envs(list.map(|list| (DEVICES_VARIABLE, list)));
        child.status().unwrap().code()
    };
    assert_eq!(hidden(None), Some(7), "the number is not known");
    assert_eq!(hidden(Some(&UUIDS.join(","))), Some(DONE));
    // A device that is not in the list does not hide the others.
    let mut child = again("device_with_an_error_leaves_the_others", &fake.library(), fd_of(&*segment));
    child.env_remove("CUDA_VISIBLE_DEVICES").env(DEVICES_VARIABLE, format!("GPU-ffff,{}", UUIDS[1]));
    assert_eq!(child.status().unwrap().code(), Some(DONE));
}

#[test]
#[ignore = "a child of the test above"]
fn device_with_an_error_leaves_the_others() {
    let (driver, _) = as_child().unwrap();
    let each = driver.each_device().unwrap();
    let error = each[0].as_ref().unwrap_err();
    assert!(error.to_string().contains(DEVICES_VARIABLE), "{error}");
    assert_eq!((each.len(), driver.devices().unwrap()), (2, vec![each[1].clone().unwrap()]));
    assert_eq!((each[1].as_ref().unwrap().ordinal, each[1].as_ref().unwrap().number), (1, 1));
    std::process::exit(DONE);
}

#[test]
fn memory_of_another_device_is_refused() {
    let fake = FakeCuda::start().unwrap();
    fake.set_devices(2).unwrap();
    let driver = CudaDriver::load(&fake.library()).unwrap();
    let mut memories = driver.devices().unwrap().into_iter().map(|device| CudaMemory::new(&driver, device));
    let (first, second) = (memories.next().unwrap(), memories.next().unwrap());
    let segment = first.copy_of(&content(1000)).unwrap().freeze().unwrap();
    for peer_access in [false, true] {
        fake.set_peer_access(peer_access).unwrap();
        let error = second.import(fd_of(&*segment), 1000, MemoryKind::Device).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(
            error.to_string().contains("cuda:1: opening 2097152 bytes: the descriptor is not this memory"),
            "{error}"
        );
    }
}
