//! Checks the GPU driver, and whether memory of each device outlives the process that made it.

use super::finding::{Finding, Severity};
use cotensor_core::{Error, ErrorKind, Memory, MemoryKind, Result, SegmentMut};
use cotensor_memory::{CudaDevice, CudaDriver, CudaMemory};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

/// The bytes that a producer makes: more than one unit of the device's memory.
const SAMPLE_BYTES: usize = 3 << 20;
/// How long a process may take to answer; a producer loads the driver, and makes its memory.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The byte that a producer sends without a descriptor when other programs have the device.
const TAKEN: u8 = 2;
/// The byte that asks for the descriptor.
const GO: u8 = 3;

const DRIVER: &str = "GPU driver";
const SHARED: &str = "shared GPU memory";

/// What a process does for a check.
#[derive(Clone, Copy, Debug)]
pub enum Role<'d> {
    /// Calls [`produce`] for a device.
    Produce(&'d CudaDevice),
    /// Calls [`hold`].
    Hold,
}

/// Checks `driver`, and its devices. `command` gives the command of a process with a role.
pub(super) fn check(driver: Result<Arc<CudaDriver>>, command: impl Fn(Role<'_>) -> Result<Command>) -> Vec<Finding> {
    let driver = match driver {
        Ok(driver) => driver,
        Err(error) => {
            let unusable = if error.kind() == ErrorKind::Io { Severity::Broken } else { Severity::Note };
            return vec![Finding::new(DRIVER, unusable, error.to_string(), "tensors can be in host memory only")];
        }
    };
    let value = format!("{} {} ({})", driver.interface(), driver.version(), driver.path().display());
    let devices = match driver.each_device() {
        Ok(devices) => devices,
        Err(error) => return vec![Finding::new(DRIVER, Severity::Slow, value, error.to_string())],
    };
    let mut findings = vec![Finding::ok(DRIVER, value)];
    for device in devices {
        let device = match device {
            Ok(device) => device,
            Err(error) => {
                findings.push(Finding::new("GPU", Severity::Slow, error.to_string(), "it has no tensors"));
                continue;
            }
        };
        findings.push(Finding::ok("GPU", describe(&device)));
        let name = device.device();
        findings.push(match outlives_producer(&driver, &device, &command) {
            Ok(free) => {
                let what = "a tensor outlived its killed producer in a process without the driver";
                Finding::ok(SHARED, format!("works on {name}: {what}; {} MiB are free", free >> 20))
            }
            Err(error) if is_taken(&error) => {
                Finding::new(SHARED, Severity::Note, error.to_string(), format!("{name} is in use and was not tested"))
            }
            Err(error) => {
                Finding::new(SHARED, Severity::Broken, error.to_string(), format!("tensors on {name} cannot be shared"))
            }
        });
    }
    findings
}

/// Whether other programs have the memory of the device, or the device alone.
fn is_taken(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::OverBudget | ErrorKind::Conflict)
}

fn describe(device: &CudaDevice) -> String {
    let CudaDevice { ordinal, number, uuid, name, bytes, granularity, .. } = device;
    let here = if ordinal == number { String::new() } else { format!(", device {ordinal} of this process") };
    format!("cuda:{number} is {name}, {uuid}, {} MiB in units of {} KiB{here}", bytes >> 20, granularity >> 10)
}

/// Lets another process make memory, gives the descriptor to a third one, which has no driver, as the daemon has none; kills the producer, and
/// reads the memory. Returns the free bytes of the device.
fn outlives_producer(
    driver: &Arc<CudaDriver>,
    device: &CudaDevice,
    command: impl Fn(Role<'_>) -> Result<Command>,
) -> Result<usize> {
    let (holder, producer) = (Helper::start(command(Role::Hold)?)?, Helper::start(command(Role::Produce(device))?)?);
    send(holder.socket.as_fd(), receive(&producer.socket)?.as_fd())?;
    drop(producer);
    rustix::io::write(&holder.socket, &[GO]).map_err(|error| Error::io("asking for a descriptor", &error.into()))?;
    let fd = receive(&holder.socket)?;
    drop(holder);
    let memory = CudaMemory::new(driver, device.clone());
    let segment = memory.import(fd, SAMPLE_BYTES, MemoryKind::Device)?;
    let mut bytes = vec![0; SAMPLE_BYTES];
    segment.read_at(0, &mut bytes)?;
    if bytes != sample() {
        return Err(Error::corrupt("the memory of a killed producer has changed"));
    }
    drop(segment);
    memory.free_bytes()
}

/// A process that is killed.
struct Helper {
    process: Child,
    /// The other end of its standard input.
    socket: UnixStream,
}

impl Helper {
    fn start(mut command: Command) -> Result<Self> {
        let io = |error: std::io::Error| Error::io("starting a process", &error);
        let (socket, theirs) = UnixStream::pair().map_err(io)?;
        socket.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(io)?;
        let process = command.stdin(OwnedFd::from(theirs)).spawn().map_err(io)?;
        // The other end of the socket closes here with the command, so a process that ends is noticed.
        Ok(Self { process, socket })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The work of a process without the driver: receives a descriptor through the socket that is the standard input, and sends it back when it
/// receives another byte.
///
/// # Errors
/// `Io` when the standard input is not a socket, or closes.
pub fn hold() -> Result<()> {
    let input = std::io::stdin();
    let fd = receive(&input)?;
    rustix::io::read(input.as_fd(), &mut [0]).map_err(|error| Error::io("keeping a descriptor", &error.into()))?;
    send(input.as_fd(), fd.as_fd())
}

/// The work of a producer: makes memory on a device, given by its number in this process, sends its descriptor through the socket that is
/// the standard input, and waits to be killed, or until the socket closes.
///
/// # Errors
/// As those of the driver; `Io` when the standard input is not a socket.
pub fn produce(ordinal: u32) -> Result<()> {
    let driver = CudaDriver::open()?;
    let device = driver.devices()?.into_iter().find(|device| device.ordinal == ordinal);
    let device = device.ok_or_else(|| Error::not_found(format!("there is no device {ordinal}")))?;
    produce_with(&driver, device)
}

fn produce_with(driver: &Arc<CudaDriver>, device: CudaDevice) -> Result<()> {
    let made = CudaMemory::new(driver, device).copy_of(&sample()).and_then(SegmentMut::freeze);
    let input = std::io::stdin();
    if made.as_ref().is_err_and(is_taken) {
        rustix::io::write(input.as_fd(), &[TAKEN]).map_err(|error| Error::io("reporting an error", &error.into()))?;
    }
    let segment = made?;
    send(input.as_fd(), segment.fd().ok_or_else(|| Error::unsupported("the memory has no descriptor"))?)?;
    rustix::io::read(input.as_fd(), &mut [0]).map_err(|error| Error::io("waiting for the end", &error.into()))?;
    Ok(())
}

fn send(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Result<()> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    message.push(SendAncillaryMessage::ScmRights(&fds));
    let io = |error: rustix::io::Errno| Error::io("sending a descriptor", &error.into());
    sendmsg(socket, &[IoSlice::new(&[1])], &mut message, SendFlags::NOSIGNAL).map_err(io)?;
    Ok(())
}

fn receive(socket: &impl AsFd) -> Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let (mut message, mut byte) = (RecvAncillaryBuffer::new(&mut space), [0]);
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut message, RecvFlags::CMSG_CLOEXEC)
        .map_err(|error| Error::io("waiting for a descriptor", &error.into()))?;
    let received = message.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    received.ok_or_else(|| match byte {
        [TAKEN] => Error::new(ErrorKind::OverBudget, "the device has no room for a second process"),
        _ => Error::new(ErrorKind::Io, "a process that makes memory of the device ended with an error"),
    })
}

fn sample() -> Vec<u8> {
    (0..SAMPLE_BYTES).map(|index| (index % 251) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_fake_cuda::FakeCuda;

    const LIBRARY: &str = "COTENSOR_TEST_CUDA";

    #[test]
    #[ignore = "the producer that the other tests kill"]
    fn producer() {
        let library = std::env::var_os(LIBRARY).unwrap();
        let driver = CudaDriver::load(library.as_ref()).unwrap();
        let device = driver.devices().unwrap().remove(0);
        produce_with(&driver, device).unwrap();
    }

    #[test]
    #[ignore = "the process without the driver"]
    fn holder() {
        assert!(!std::fs::read_to_string("/proc/self/maps").unwrap().contains("libcuda"));
        hold().unwrap();
    }

    fn found(fake: &FakeCuda) -> Vec<Finding> {
        check(CudaDriver::load(&fake.library()), |role| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            let test = match role {
                Role::Produce(_) => "producer",
                Role::Hold => "holder",
            };
            command.args(["--ignored", "--exact", &format!("doctor::gpu::tests::{test}")]).env(LIBRARY, fake.library());
            command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
            Ok(command)
        })
    }

    #[test]
    fn memory_outlives_a_producer_where_the_driver_works() {
        let fake = FakeCuda::start().unwrap();
        let findings = found(&fake);
        assert!(findings.iter().all(|finding| finding.severity == Severity::Ok), "{findings:?}");
        let values: Vec<&str> = findings.iter().map(|finding| &*finding.value).collect();
        assert!(values[0].starts_with("CUDA 13.0 ("), "{values:?}");
        let uuid = "GPU-636f7465-6e73-6f72-2066-616b00000000";
        assert_eq!(values[1], format!("cuda:0 is Fake GPU, {uuid}, 1024 MiB in units of 2048 KiB"));
        assert!(values[2].starts_with("works on cuda:0") && values[2].ends_with("; 1024 MiB are free"), "{values:?}");
        assert_eq!(fake.used_bytes(0).unwrap(), 0);
    }

    #[test]
    fn memory_that_is_not_shared_is_a_failure() {
        let fake = FakeCuda::start().unwrap();
        for function in ["cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"] {
            fake.fail(function, 999).unwrap();
            let findings = found(&fake);
            let last = findings.last().unwrap();
            assert_eq!((last.name, last.severity), (SHARED, Severity::Broken), "{function}: {last:?}");
            fake.repair().unwrap();
        }
    }

    #[test]
    fn devices_of_other_programs_are_no_failure() {
        let fake = FakeCuda::start().unwrap();
        for (function, result) in
            [("cuMemCreate", 2), ("cuDevicePrimaryCtxRetain", 2), ("cuDevicePrimaryCtxRetain", 46)]
        {
            fake.fail(function, result).unwrap();
            let findings = found(&fake);
            let last = findings.last().unwrap();
            assert_eq!((last.name, last.severity), (SHARED, Severity::Note), "{function}: {last:?}");
            assert!(last.advice.contains("in use"), "{last:?}");
            fake.repair().unwrap();
        }
    }

    #[test]
    fn machines_without_a_device_are_no_failure() {
        let fake = FakeCuda::start().unwrap();
        fake.set_devices(0).unwrap();
        let findings = found(&fake);
        assert_eq!((findings.len(), findings[0].severity), (1, Severity::Note), "{findings:?}");
        assert_eq!(findings[0].advice, "tensors can be in host memory only");
    }
}
