//! The memory that is left for this process: of the system, and of the control groups that limit it.
//!
//! The kernel counts shared memory in the group of the process that first writes a page, until the memory is freed: the
//! producer's for what it publishes, the daemon's for uploads and for tensors that it reads back from disk. Beyond a
//! limit the kernel kills a process, so each allocation of shared memory is checked first.

mod allowance;
mod groups;

use super::procfs::{kib_field, read};
use allowance::Allowance;
use cotensor_core::{Error, ErrorKind, Result, size};
pub use groups::MemoryGroup;
use groups::{Hierarchy, hierarchies};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

/// Memory of the system in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct System {
    /// `MemAvailable`: memory that the system can provide without swapping.
    available: u64,
    /// `SwapFree`.
    swap_free: u64,
}

fn system() -> Option<System> {
    let meminfo = read("/proc/meminfo").ok()?;
    let swap_free = kib_field(&meminfo, "SwapFree:").unwrap_or(0);
    Some(System { available: kib_field(&meminfo, "MemAvailable:")?, swap_free })
}

/// `MemAvailable` of `/proc/meminfo` in bytes: memory that the system can provide without swapping.
pub fn available_bytes() -> Option<u64> {
    Some(system()?.available)
}

/// The most memory that this process can ever have: the system's, or the smallest limit of a control group that binds
/// it. `None` where neither is known.
pub fn limit_bytes() -> Option<u64> {
    let total = read("/proc/meminfo").ok().and_then(|meminfo| kib_field(&meminfo, "MemTotal:"));
    let in_groups = memory_groups(None).into_iter().map(|group| group.limit_bytes);
    total.into_iter().chain(in_groups).min()
}

/// The control groups with a memory limit that bind process `pid`, this one for `None`: its own group and the
/// ancestors, as far as they are visible.
pub fn memory_groups(pid: Option<u32>) -> Vec<MemoryGroup> {
    let parse = |(hierarchy, folder): (&Hierarchy, PathBuf)| {
        let file = |name: &str| read(folder.join(name).to_str()?).ok();
        MemoryGroup::parse(hierarchy.version, folder.clone(), file)
    };
    group_folders(pid).into_iter().filter_map(parse).collect()
}

/// The folder of the control group in which the kernel counts the memory that process `pid` writes first. `None` for a
/// process that does not exist, and without a memory controller.
pub fn charged_group(pid: u32) -> Option<PathBuf> {
    let usage = |hierarchy: &Hierarchy| match hierarchy.version {
        groups::Version::One => "memory.usage_in_bytes",
        groups::Version::Two => "memory.stat",
    };
    let mut folders = group_folders(Some(pid)).into_iter();
    folders.find(|(hierarchy, folder)| folder.join(usage(hierarchy)).exists()).map(|(_, folder)| folder)
}

fn group_folders(pid: Option<u32>) -> Vec<(&'static Hierarchy, PathBuf)> {
    static HIERARCHIES: OnceLock<Vec<Hierarchy>> = OnceLock::new();
    let mounted =
        HIERARCHIES.get_or_init(|| read("/proc/self/mountinfo").map_or_else(|_| Vec::new(), |it| hierarchies(&it)));
    let path = pid.map_or_else(|| "/proc/self/cgroup".to_owned(), |pid| format!("/proc/{pid}/cgroup"));
    let Ok(cgroup) = read(&path) else { return Vec::new() };
    mounted.iter().flat_map(|it| it.folders(&cgroup).into_iter().map(move |folder| (it, folder))).collect()
}

/// Bytes that can be allocated without swapping and without reaching the limit of a control group, as far as they are
/// known.
pub(crate) fn left_without_swap_bytes() -> Option<u64> {
    let in_groups = memory_groups(None).into_iter().map(|group| group.left_bytes(0));
    available_bytes().into_iter().chain(in_groups).min()
}

/// The bytes of checked allocations that this process has not made yet.
static PENDING: AtomicU64 = AtomicU64::new(0);
/// A forked child only tries the lock: a thread that does not exist in the child may hold it for ever.
static ALLOWANCE: Mutex<Allowance> = Mutex::new(Allowance::NONE);

/// Memory that was checked, and that is being allocated.
#[must_use = "other threads count these bytes until the drop"]
pub struct PendingMemory(u64);

impl PendingMemory {
    /// `len` of the bytes exist now.
    pub(crate) fn exists(&mut self, len: usize) {
        let len = self.0.min(len as u64);
        self.0 -= len;
        PENDING.fetch_sub(len, Ordering::Relaxed);
    }
}

impl Drop for PendingMemory {
    fn drop(&mut self) {
        PENDING.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Checks that the system, and each control group of this process, has `len` bytes left for shared memory. Keep the
/// result until they are allocated.
///
/// Most calls read no file: a reading of the memory that is left stays valid for a part of it and for a short time.
///
/// # Errors
/// `OverBudget`, which names the control group.
pub fn check_memory(len: usize) -> Result<PendingMemory> {
    let len = len as u64;
    let before = PENDING.fetch_add(len, Ordering::Relaxed);
    let pending = PendingMemory(len);
    let now = Instant::now();
    let allowance = || ALLOWANCE.try_lock().ok();
    if allowance().is_some_and(|mut allowance| allowance.take(len, now)) {
        return Ok(pending);
    }
    let Some(system) = system() else { return Ok(pending) };
    let left = check(len, before, system, &memory_groups(None))?;
    if let Some(mut allowance) = allowance() {
        allowance.renew(left, now);
    }
    Ok(pending)
}

/// Checks an allocation of `len` bytes while `pending` bytes are being allocated. Returns the bytes that are left after
/// both.
fn check(len: u64, pending: u64, system: System, groups: &[MemoryGroup]) -> Result<u64> {
    let after = |left: u64| left.saturating_sub(pending).checked_sub(len);
    let refused = |message: String| Error::new(ErrorKind::OverBudget, format!("{} do not fit {message}", size(len)));
    let available = system.available.saturating_add(system.swap_free);
    let mut least = after(available).ok_or_else(|| {
        refused(format!("the {} of memory that the system has left", size(available.saturating_sub(pending))))
    })?;
    for group in groups {
        let left = group.left_bytes(system.swap_free);
        let after = after(left).ok_or_else(|| {
            refused(format!(
                "the {} that control group {} has left of its memory limit of {}: release tensors or raise the limit \
                 (memory.max, memory.limit_in_bytes of version 1, --memory of a container)",
                size(left.saturating_sub(pending)),
                group.folder.display(),
                size(group.limit_bytes)
            ))
        })?;
        least = least.min(after);
    }
    Ok(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_limit_of_system_and_groups_decides() {
        let system = System { available: 1000, swap_free: 100 };
        let group =
            |name: &str, limit: u64| MemoryGroup { folder: name.into(), limit_bytes: limit, ..MemoryGroup::default() };
        assert_eq!(check(1100, 0, system, &[]).unwrap(), 0);
        assert_eq!(check(1000, 100, system, &[]).unwrap(), 0);
        let error = check(1001, 100, system, &[]).unwrap_err();
        assert!(error.kind() == ErrorKind::OverBudget && error.message().contains("the system"), "{error}");

        let groups = [group("/g/own", 640), group("/g", 320)];
        // A 64th part of the limit is not available.
        assert_eq!(check(300, 0, system, &groups).unwrap(), 15);
        assert_eq!(check(300, 15, system, &groups).unwrap(), 0);
        let error = check(300, 16, system, &groups).unwrap_err();
        assert!(error.message().contains("control group /g has") && error.message().contains("memory.max"), "{error}");
    }

    #[test]
    fn pending_memory_is_counted_until_it_is_dropped() {
        let pending = check_memory(1 << 20).unwrap();
        assert!(PENDING.load(Ordering::Relaxed) >= 1 << 20);
        drop(pending);
        assert_eq!(check_memory(usize::MAX / 2).err().unwrap().kind(), ErrorKind::OverBudget);
    }
}
