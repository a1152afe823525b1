//! Checks the kernel and its limits.

use super::finding::{Finding, Severity};
use cotensor_memory::process;
use rustix::process::{Resource, getrlimit};

/// First kernel with `MADV_COLLAPSE`, which backs shared memory by huge pages.
const COLLAPSE_MIN: (u32, u32) = (6, 1);
/// First kernel with `F_SEAL_FUTURE_WRITE`.
const KERNEL_MIN: (u32, u32) = (5, 1);
/// Recommended minimum of descriptors: each large tensor takes one.
const DESCRIPTORS_MIN: u64 = 4096;
/// The kernel's default limit.
const MAPPINGS_MIN: u64 = 65_530;
/// Recommended minimum of available memory.
const MEMORY_MIN_BYTES: u64 = 1 << 30;

pub(super) fn check() -> Vec<Finding> {
    let mut findings = vec![kernel(), descriptors(), mappings()];
    findings.extend(overcommit());
    findings.extend(huge_pages());
    findings.extend([cgroup(), available()]);
    findings.extend(tmpfs());
    findings.extend(ptrace());
    findings
}

fn kernel() -> Finding {
    let release = read_file("/proc/sys/kernel/osrelease").unwrap_or_default();
    match version(&release) {
        Some(found) if found >= KERNEL_MIN => Finding::ok("kernel", release),
        Some(_) => Finding::new(
            "kernel",
            Severity::Broken,
            release,
            "slabs need F_SEAL_FUTURE_WRITE, which requires Linux 5.1",
        ),
        None => Finding::new(
            "kernel",
            Severity::Note,
            release,
            "the version cannot be parsed; the checks below test the features",
        ),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn descriptors() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    let text = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let value = format!("{} (hard limit {})", text(limit.current), text(limit.maximum));
    // The daemon and its clients raise the soft limit to the hard one.
    match limit.maximum {
        Some(few) if few < DESCRIPTORS_MIN => Finding::new(
            "descriptors",
            Severity::Slow,
            value,
            "every tensor above 256 KiB takes one, in the daemon and in each client that has it open; raise `ulimit -Hn`, or \
             LimitNOFILE in the daemon's unit",
        ),
        _ => Finding::ok("descriptors", value),
    }
}

fn mappings() -> Finding {
    match number("/proc/sys/vm/max_map_count") {
        Some(few) if few < MAPPINGS_MIN => Finding::new(
            "mappings",
            Severity::Slow,
            few.to_string(),
            "a process needs one or two for every open tensor above 256 KiB, of three quarters of them; raise \
             /proc/sys/vm/max_map_count",
        ),
        Some(count) => Finding::ok("mappings", count.to_string()),
        None => Finding::new("mappings", Severity::Note, "unknown", "/proc/sys/vm/max_map_count cannot be read"),
    }
}

fn overcommit() -> Option<Finding> {
    let mode = number("/proc/sys/vm/overcommit_memory")?;
    let swappiness =
        number("/proc/sys/vm/swappiness").map_or_else(String::new, |value| format!(", swappiness {value}"));
    Some(match mode {
        2 => Finding::new(
            "overcommit",
            Severity::Note,
            format!("2 (strict){swappiness}"),
            "shared memory counts against the commit limit at its creation, and each array of it does so again; publishing and \
             reading can fail while memory is free",
        ),
        mode => Finding::ok("overcommit", format!("{mode}{swappiness}")),
    })
}

fn huge_pages() -> Option<Finding> {
    let chosen = |path: &str| {
        let text = read_file(path)?;
        let (_, rest) = text.split_once('[')?;
        Some(rest.split_once(']')?.0.to_owned())
    };
    let shared = chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled")?;
    let collapses = version(&read_file("/proc/sys/kernel/osrelease").unwrap_or_default())
        .is_some_and(|found| found >= COLLAPSE_MIN);
    Some(match shared.as_str() {
        "deny" | "never" | "advise" if shared == "deny" || !collapses => Finding::new(
            "huge pages",
            Severity::Note,
            format!("{shared} for shared memory"),
            "memory is allocated, and mapped by each reader, in pages of 4 KiB (see the speeds below); Linux 6.1, or `always` in \
             /sys/kernel/mm/transparent_hugepage/shmem_enabled, makes both faster",
        ),
        _ => Finding::ok("huge pages", "for large tensors".to_owned()),
    })
}

fn cgroup() -> Finding {
    let Some(group) = process::memory_groups(None).into_iter().min_by_key(|group| group.left_bytes(0)) else {
        return Finding::ok("memory limit", "none");
    };
    let left = group.left_bytes(0);
    let found = format!("{} left of {} in {}", mib(left), mib(group.limit_bytes), group.folder.display());
    if left >= MEMORY_MIN_BYTES {
        return Finding::ok("memory limit", found);
    }
    Finding::new(
        "memory limit",
        Severity::Slow,
        found,
        "shared memory counts in the control group of the process that wrote it first, until it is freed; tensors that do not fit \
         are refused; raise the limit of the group",
    )
}

fn available() -> Finding {
    match process::available_bytes() {
        Some(bytes) if bytes < MEMORY_MIN_BYTES => Finding::new(
            "memory",
            Severity::Slow,
            format!("{} available", mib(bytes)),
            "tensors may be swapped out or refused",
        ),
        Some(bytes) => Finding::ok("memory", format!("{} available", mib(bytes))),
        None => Finding::new("memory", Severity::Note, "unknown", "/proc/meminfo cannot be read"),
    }
}

fn tmpfs() -> Option<Finding> {
    let found = rustix::fs::statvfs("/dev/shm").ok()?;
    let bytes = found.f_blocks.saturating_mul(found.f_frsize);
    Some(if bytes < MEMORY_MIN_BYTES {
        Finding::new(
            "/dev/shm",
            Severity::Note,
            mib(bytes),
            "not used by Cotensor, but by other programs; containers get 64 MiB without --shm-size",
        )
    } else {
        Finding::ok("/dev/shm", mib(bytes))
    })
}

fn ptrace() -> Option<Finding> {
    let scope = number("/proc/sys/kernel/yama/ptrace_scope")?;
    Some(match scope {
        0 => Finding::ok("ptrace_scope", "0"),
        scope => Finding::new(
            "ptrace_scope",
            Severity::Note,
            scope.to_string(),
            "`cotensor scan` needs root to read the memory of other processes; nothing else is affected",
        ),
    })
}

/// The trimmed content of a file in /proc or /sys; `None` without the file.
fn read_file(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number(path: &str) -> Option<u64> {
    read_file(path)?.parse().ok()
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_parsed() {
        assert_eq!(version("6.18.44-fc-v595"), Some((6, 18)));
        assert_eq!(version("5.1"), Some((5, 1)));
        assert!(version("4.19.0-x") < Some(KERNEL_MIN) && version("5.0.1") < Some(KERNEL_MIN));
        assert_eq!(version("linux"), None);
    }
}
