//! The kernel and its limits.

use super::{Finding, State, mib, number, read};
use cotensor_memory::process;
use rustix::process::{Resource, getrlimit};

/// `MADV_COLLAPSE`, which makes huge pages of shared memory, came with 6.1.
const COLLAPSE_MIN: (u32, u32) = (6, 1);
/// `F_SEAL_FUTURE_WRITE` came with 5.1.
const KERNEL_MIN: (u32, u32) = (5, 1);
/// Fewer descriptors run out where large tensors are many: each is one.
const DESCRIPTORS_MIN: u64 = 4096;
/// The kernel's default.
const MAPPINGS_MIN: u64 = 65_530;
/// Less is soon full.
const MEMORY_MIN_BYTES: u64 = 1 << 30;

pub(super) fn look() -> Vec<Finding> {
    let mut findings = vec![kernel(), descriptors(), mappings()];
    findings.extend(overcommit());
    findings.extend(huge_pages());
    findings.extend([cgroup(), available()]);
    findings.extend(tmpfs());
    findings.extend(ptrace());
    findings
}

fn kernel() -> Finding {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    match version(&release) {
        Some(found) if found >= KERNEL_MIN => Finding::ok("kernel", release),
        Some(_) => {
            Finding::new("kernel", State::Broken, release, "slabs need F_SEAL_FUTURE_WRITE, which came with Linux 5.1")
        }
        None => {
            Finding::new("kernel", State::Note, release, "its version cannot be read; what it can do is tried below")
        }
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn descriptors() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    let text = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let value = format!("{} (at most {})", text(limit.current), text(limit.maximum));
    match limit.current {
        Some(few) if few < DESCRIPTORS_MIN => Finding::new(
            "descriptors",
            State::Slow,
            value,
            "every tensor above 256 KiB is one, in the daemon and in each client that has it open: raise `ulimit -n`, or \
             LimitNOFILE in the daemon's unit",
        ),
        _ => Finding::ok("descriptors", value),
    }
}

fn mappings() -> Finding {
    match number("/proc/sys/vm/max_map_count") {
        Some(few) if few < MAPPINGS_MIN => Finding::new(
            "mappings",
            State::Slow,
            few.to_string(),
            "every tensor above 256 KiB that a process has open is one: raise /proc/sys/vm/max_map_count",
        ),
        Some(count) => Finding::ok("mappings", count.to_string()),
        None => Finding::new("mappings", State::Note, "unknown", "/proc/sys/vm/max_map_count cannot be read"),
    }
}

fn overcommit() -> Option<Finding> {
    let mode = number("/proc/sys/vm/overcommit_memory")?;
    let swappiness =
        number("/proc/sys/vm/swappiness").map_or_else(String::new, |value| format!(", swappiness {value}"));
    Some(match mode {
        2 => Finding::new(
            "overcommit",
            State::Note,
            format!("2 (strict){swappiness}"),
            "shared memory counts against the commit limit when it is made: publishing can fail while memory is free",
        ),
        mode => Finding::ok("overcommit", format!("{mode}{swappiness}")),
    })
}

fn huge_pages() -> Option<Finding> {
    let chosen = |path: &str| {
        let text = read(path)?;
        let (_, rest) = text.split_once('[')?;
        Some(rest.split_once(']')?.0.to_owned())
    };
    let shared = chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled")?;
    let collapses =
        version(&read("/proc/sys/kernel/osrelease").unwrap_or_default()).is_some_and(|found| found >= COLLAPSE_MIN);
    Some(match shared.as_str() {
        "deny" | "never" | "advise" if shared == "deny" || !collapses => Finding::new(
            "huge pages",
            State::Note,
            format!("{shared} for shared memory"),
            "new memory is made, and first touched by each reader, 4 KiB at a time (see the speeds below): Linux 6.1, or \
             `always` in /sys/kernel/mm/transparent_hugepage/shmem_enabled, makes both cheaper",
        ),
        _ => Finding::ok("huge pages", "for large tensors".to_owned()),
    })
}

fn cgroup() -> Finding {
    match process::cgroup_memory_limit() {
        None => Finding::ok("memory limit", "none"),
        Some((max, used)) if max.saturating_sub(used) < MEMORY_MIN_BYTES => Finding::new(
            "memory limit",
            State::Slow,
            format!("{} of {} used", mib(used), mib(max)),
            "shared memory counts for the control group of the process that made it, and stays there while anyone has it; \
             past the limit the kernel ends a process: set `cotensor serve --max-memory` below it",
        ),
        Some((max, used)) => Finding::ok("memory limit", format!("{} of {} used", mib(used), mib(max))),
    }
}

fn available() -> Finding {
    match process::available_bytes() {
        Some(bytes) if bytes < MEMORY_MIN_BYTES => Finding::new(
            "memory",
            State::Slow,
            format!("{} available", mib(bytes)),
            "tensors will be swapped or refused",
        ),
        Some(bytes) => Finding::ok("memory", format!("{} available", mib(bytes))),
        None => Finding::new("memory", State::Note, "unknown", "/proc/meminfo cannot be read"),
    }
}

fn tmpfs() -> Option<Finding> {
    let found = rustix::fs::statvfs("/dev/shm").ok()?;
    let bytes = found.f_blocks.saturating_mul(found.f_frsize);
    Some(match bytes < MEMORY_MIN_BYTES {
        true => Finding::new(
            "/dev/shm",
            State::Note,
            mib(bytes),
            "Cotensor does not use it (its memory has no size but the machine's), programs beside it do: 64 MiB is what \
             containers get without --shm-size",
        ),
        false => Finding::ok("/dev/shm", mib(bytes)),
    })
}

fn ptrace() -> Option<Finding> {
    let scope = number("/proc/sys/kernel/yama/ptrace_scope")?;
    Some(match scope {
        0 => Finding::ok("ptrace_scope", "0"),
        scope => Finding::new(
            "ptrace_scope",
            State::Note,
            scope.to_string(),
            "`cotensor scan` may read no other process's memory unless it runs as root; nothing else needs it",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read() {
        assert_eq!(version("6.18.44-fc-v595"), Some((6, 18)));
        assert_eq!(version("5.1"), Some((5, 1)));
        assert!(version("4.19.0-x") < Some(KERNEL_MIN) && version("5.0.1") < Some(KERNEL_MIN));
        assert_eq!(version("linux"), None);
    }
}
