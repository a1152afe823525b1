//! Memory of several processes, with the daemon that they use.

use cotensor::core::{Error, Result};
use cotensor::memory::process;
use serde::Serialize;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

/// Memory of processes, and of the daemon that they use, in bytes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FleetMemory {
    /// The proportional set size of each process.
    pub clients: Vec<u64>,
    /// That of the daemon's server; 0 without a daemon.
    pub server: u64,
    /// That of the daemon's supervisor; 0 without a daemon.
    pub supervisor: u64,
    /// Pages of the daemon's segments that no process maps.
    pub unmapped: u64,
    /// The sum.
    pub total: u64,
}

impl FleetMemory {
    /// The memory of the processes `clients`, and of a daemon's server and supervisor.
    ///
    /// # Errors
    /// `NotFound` when a process has ended, `Io`.
    pub fn of(clients: &[u32], daemon: Option<[u32; 2]>) -> Result<Self> {
        let sizes = clients.iter().map(|&pid| process::pss_bytes(pid)).collect::<Result<Vec<_>>>()?;
        let mut memory = Self { total: sizes.iter().sum(), clients: sizes, ..Self::default() };
        if let Some([server, supervisor]) = daemon {
            let mut mapped = BTreeMap::new();
            for &pid in clients.iter().chain(&[server, supervisor]) {
                for (inode, bytes) in segments_of(&process::range_usage(pid)?) {
                    *mapped.entry(inode).or_default() += bytes;
                }
            }
            let unmapped = held_segments(server)?
                .into_iter()
                .map(|(inode, bytes)| bytes.saturating_sub(mapped.get(&inode).copied().unwrap_or(0)));
            memory.unmapped = unmapped.sum();
            (memory.server, memory.supervisor) = (process::pss_bytes(server)?, process::pss_bytes(supervisor)?);
            memory.total += memory.server + memory.supervisor + memory.unmapped;
        }
        Ok(memory)
    }
}

/// The proportional set size in bytes of every memfd mapping, with the inode of the memfd.
fn segments_of(ranges: &[process::RangeUsage]) -> Vec<(u64, u64)> {
    let memfds = ranges.iter().filter(|usage| usage.range.name.starts_with("/memfd:"));
    memfds.map(|usage| (usage.range.inode, usage.pss_bytes)).collect()
}

/// The pages of every memfd that a process has open, by inode.
fn held_segments(pid: u32) -> Result<BTreeMap<u64, u64>> {
    let folder = std::fs::read_dir(format!("/proc/{pid}/fd"));
    let folder = folder.map_err(|error| Error::io("listing descriptors", &error))?;
    let mut held = BTreeMap::new();
    for entry in folder.flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if target.to_string_lossy().starts_with("/memfd:")
            && let Ok(about) = std::fs::metadata(entry.path())
        {
            held.insert(about.ino(), about.blocks() * 512);
        }
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memfd_mappings_are_found_by_name() {
        let mapped = |inode, name: &str, pss_bytes| process::RangeUsage {
            range: process::MappedRange { inode, name: name.to_owned(), ..process::MappedRange::default() },
            pss_bytes,
            ..process::RangeUsage::default()
        };
        let ranges = [
            mapped(42, "/memfd:cotensor (deleted)", 12),
            mapped(0, "", 100),
            mapped(43, "/lib/c", 7),
            mapped(44, "/memfd:x (deleted)", 3),
        ];
        assert_eq!(segments_of(&ranges), [(42, 12), (44, 3)]);
    }

    #[test]
    fn memory_is_the_sum_of_all_parts() {
        let own = std::process::id();
        let alone = FleetMemory::of(&[own], None).unwrap();
        assert_eq!((alone.total, alone.server, alone.unmapped), (alone.clients[0], 0, 0));
        let both = FleetMemory::of(&[own], Some([own, own])).unwrap();
        assert_eq!(both.total, both.clients[0] + both.server + both.supervisor + both.unmapped);
        assert!(FleetMemory::of(&[u32::MAX], None).is_err());
    }
}
