//! The memory of GPUs, and the processes that have it.

use super::process;
use cotensor_core::{ErrorKind, Result};
use cotensor_memory::{GpuUsage, gpu_usage};
use serde::Serialize;

/// The memory of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuScan {
    /// The device in stores, such as `cuda:0`, if its number on the machine is known.
    pub device: Option<String>,
    /// Its UUID.
    pub uuid: String,
    /// Bytes of the GPU.
    pub total_bytes: u64,
    /// Bytes that programs and stores have.
    pub used_bytes: u64,
    /// The used bytes that the driver attributes to no process, if it tells those of each process: mostly tensors that a store keeps.
    pub unattributed_bytes: Option<u64>,
    /// The processes that use the GPU, most bytes first.
    pub processes: Vec<GpuProcess>,
}

/// A process that uses a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuProcess {
    /// Process id, as the driver has it: a container may have others.
    pub pid: u32,
    /// Its command line, shortened; none of a process that is not found here.
    pub command: Option<String>,
    /// Its bytes, if the driver tells them.
    pub bytes: Option<u64>,
}

/// Reads the memory of all GPUs, by the management library of NVIDIA's driver. It takes no memory of a GPU. Also returns what could not be read;
/// a machine without the library has no GPU.
pub fn gpus() -> (Vec<GpuScan>, Vec<String>) {
    scanned(gpu_usage())
}

fn scanned(found: Result<Vec<Result<GpuUsage>>>) -> (Vec<GpuScan>, Vec<String>) {
    let (mut gpus, mut unread) = (Vec::new(), Vec::new());
    match found {
        Ok(found) => {
            for usage in found {
                match usage {
                    Ok(usage) => gpus.push(described(usage)),
                    Err(error) => unread.push(format!("not all GPUs were read: {error}")),
                }
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => unread.push(format!("GPUs were not read: {error}")),
    }
    (gpus, unread)
}

fn described(usage: GpuUsage) -> GpuScan {
    let unattributed_bytes = usage.unattributed_bytes();
    let GpuUsage { device, uuid, total_bytes, used_bytes, processes } = usage;
    let processes = processes.unwrap_or_default().into_iter();
    let mut processes: Vec<_> =
        processes.map(|(pid, bytes)| GpuProcess { pid, command: process::command(pid), bytes }).collect();
    processes.sort_by_key(|process| std::cmp::Reverse(process.bytes));
    let device = device.map(|device| device.to_string());
    GpuScan { device, uuid, total_bytes, used_bytes, unattributed_bytes, processes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::{Device, Error};

    #[test]
    fn gpus_that_are_read_are_reported_beside_the_others() {
        let gpu = GpuUsage { device: None, uuid: "GPU-1".to_owned(), total_bytes: 2, used_bytes: 1, processes: None };
        let broken = || Error::new(ErrorKind::Io, "broken");
        let (gpus, unread) = scanned(Ok(vec![Err(broken()), Ok(gpu)]));
        assert_eq!((&*gpus[0].uuid, gpus.len()), ("GPU-1", 1));
        assert!(unread.len() == 1 && unread[0].contains("broken"), "{unread:?}");
        assert_eq!(scanned(Err(broken())).1.len(), 1);
        assert_eq!(scanned(Err(Error::not_found("no library"))), (Vec::new(), Vec::new()));
    }

    #[test]
    fn processes_have_their_commands() {
        let own = std::process::id();
        let processes = Some([(own, Some(5)), (u32::MAX, Some(7)), (1 << 30, None)].into());
        let (uuid, device) = ("GPU-1".to_owned(), Some(Device::Cuda(3)));
        let found = described(GpuUsage { device, uuid, total_bytes: 20, used_bytes: 15, processes });
        assert_eq!((found.device.as_deref(), found.unattributed_bytes), (Some("cuda:3"), None));
        let order: Vec<u32> = found.processes.iter().map(|process| process.pid).collect();
        assert_eq!(order, [u32::MAX, own, 1 << 30]);
        let commands: Vec<bool> = found.processes.iter().map(|process| process.command.is_some()).collect();
        assert_eq!(commands, [false, true, false]);
    }
}
