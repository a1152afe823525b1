//! The control groups that limit the memory of a process, of version 1 and of version 2.

use std::path::{Path, PathBuf};

/// No limit, as control groups of version 1 write it: a number near 2^63.
const NO_LIMIT_BYTES: u64 = 1 << 60;
/// This part of a limit is left for memory that no reservation counts, such as page tables and heap.
const UNCOUNTED_DIVISOR: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// A mounted hierarchy of control groups that may have the memory controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    /// The group that is visible at `folder`.
    root: PathBuf,
    folder: PathBuf,
}

/// The hierarchies in `/proc/self/mountinfo`.
pub(super) fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    let hierarchy = |line: &str| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, folder) = (mount.next()?.into(), mount.next()?.into());
        let mut file_system = file_system.split(' ');
        let version = match (file_system.next()?, file_system.nth(1)?) {
            ("cgroup2", _) => Version::Two,
            ("cgroup", options) if options.split(',').any(|option| option == "memory") => Version::One,
            _ => return None,
        };
        Some(Hierarchy { version, root, folder })
    };
    mountinfo.lines().filter_map(hierarchy).collect()
}

impl Hierarchy {
    /// The folders of the group that `/proc/PID/cgroup` names, and of its ancestors up to the mount. Each of their
    /// limits binds the process.
    pub(super) fn folders(&self, cgroup: &str) -> Vec<PathBuf> {
        let Some(path) = cgroup.lines().find_map(|line| self.path(line)) else { return Vec::new() };
        // In a container the path may be that of the host, outside of the mount. The mount is then the container's group.
        let inside = Path::new(path).strip_prefix(&self.root).unwrap_or(Path::new(""));
        inside.ancestors().map(|ancestor| self.folder.join(ancestor)).collect()
    }

    /// The path in a line `number:controllers:path`, if it is of this hierarchy.
    fn path<'a>(&self, line: &'a str) -> Option<&'a str> {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let ours = match self.version {
            Version::One => controllers.split(',').any(|name| name == "memory"),
            Version::Two => controllers.is_empty(),
        };
        ours.then_some(path)
    }
}

/// A control group with a memory limit. Sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryGroup {
    /// Its folder.
    pub folder: PathBuf,
    /// The limit: `memory.max`, or `memory.limit_in_bytes` of version 1.
    pub limit_bytes: u64,
    /// The memory that counts against the limit, page cache included.
    pub used_bytes: u64,
    /// Pages of files among them, which the kernel frees before it reaches the limit. Shared memory is not among them: it
    /// has no file to return to.
    pub file_bytes: u64,
    /// Memory that the group may still swap out; `u64::MAX` without a limit.
    pub swap_left_bytes: u64,
}

impl MemoryGroup {
    /// The group whose files `read` returns by their names; `None` for a group without a limit.
    pub(super) fn parse(version: Version, folder: PathBuf, read: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |file: &str| read(file)?.trim().parse::<u64>().ok().filter(|&number| number < NO_LIMIT_BYTES);
        let field = |stat: &str, name: &str| {
            let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok();
            stat.lines().find_map(value).unwrap_or(0)
        };
        let (limit, used, prefix) = match version {
            Version::One => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
            Version::Two => ("memory.max", "memory.current", ""),
        };
        let (limit_bytes, used_bytes) = (number(limit)?, number(used)?);
        let stat = read("memory.stat").unwrap_or_default();
        let file_bytes =
            ["inactive_file", "active_file"].map(|name| field(&stat, &format!("{prefix}{name}"))).iter().sum();
        let swap_left = match version {
            // This limit is of memory and swap together.
            Version::One => number("memory.memsw.limit_in_bytes").map(|both| {
                let used = number("memory.memsw.usage_in_bytes").unwrap_or(0);
                both.saturating_sub(used).saturating_sub(limit_bytes.saturating_sub(used_bytes))
            }),
            Version::Two => {
                number("memory.swap.max").map(|max| max.saturating_sub(number("memory.swap.current").unwrap_or(0)))
            }
        };
        let swap_left_bytes = swap_left.unwrap_or(u64::MAX);
        Some(Self { folder, limit_bytes, used_bytes, file_bytes, swap_left_bytes })
    }

    /// The bytes that processes of the group can still allocate, where the system has `swap_free` bytes of swap.
    pub fn left_bytes(&self, swap_free: u64) -> u64 {
        let limit = self.limit_bytes - self.limit_bytes / UNCOUNTED_DIVISOR;
        let used = self.used_bytes.saturating_sub(self.file_bytes);
        limit.saturating_sub(used).saturating_add(self.swap_left_bytes.min(swap_free))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
                       41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                       32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";

    fn folders(mountinfo: &str, cgroup: &str) -> Vec<String> {
        let found = hierarchies(mountinfo);
        found.iter().flat_map(|hierarchy| hierarchy.folders(cgroup)).map(|it| it.display().to_string()).collect()
    }

    #[test]
    fn group_and_all_its_ancestors_are_found() {
        let cgroup = "9:name=systemd:/x\n4:memory:/a/b\n1:cpu:/c\n0::/u\n";
        assert_eq!(
            folders(ONE, cgroup),
            [
                "/sys/fs/cgroup/memory/a/b",
                "/sys/fs/cgroup/memory/a",
                "/sys/fs/cgroup/memory/",
                "/sys/fs/cgroup/unified/u",
                "/sys/fs/cgroup/unified/"
            ]
        );
        assert_eq!(hierarchies(ONE).iter().map(|it| it.version).collect::<Vec<_>>(), [Version::One, Version::Two]);
        assert!(
            folders(ONE, "1:cpu:/c\n").is_empty()
                && folders("", cgroup).is_empty()
                && folders("x - y", cgroup).is_empty()
        );
    }

    #[test]
    fn container_has_its_group_at_the_mount() {
        let two = "30 29 0:26 /docker/abc /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n";
        assert_eq!(folders(two, "0::/docker/abc/job\n"), ["/sys/fs/cgroup/job", "/sys/fs/cgroup/"]);
        // In a namespace of control groups, and with a path that is not inside the mount.
        assert_eq!(folders(two, "0::/\n"), ["/sys/fs/cgroup/"]);
        assert_eq!(folders(two, "0::/../other\n"), ["/sys/fs/cgroup/"]);
    }

    fn parse(version: Version, files: &[(&str, &str)]) -> Option<MemoryGroup> {
        let read = |name: &str| files.iter().find(|(file, _)| *file == name).map(|(_, text)| (*text).to_owned());
        MemoryGroup::parse(version, PathBuf::from("/g"), read)
    }

    #[test]
    fn page_cache_is_available_and_shared_memory_is_not() {
        let stat =
            "anon 100\nfile 640000\nshmem 500000\ninactive_anon 500100\nactive_file 100000\ninactive_file 40000\n";
        let files = [
            ("memory.max", "1280000\n"),
            ("memory.current", "700000\n"),
            ("memory.stat", stat),
            ("memory.swap.max", "0\n"),
        ];
        let group = parse(Version::Two, &files).unwrap();
        assert_eq!((group.limit_bytes, group.used_bytes, group.file_bytes), (1_280_000, 700_000, 140_000));
        // The 64th part of the limit is 20,000 bytes.
        assert_eq!(group.left_bytes(u64::MAX), 1_260_000 - 560_000);
        let full = MemoryGroup { used_bytes: 2_000_000, ..group };
        assert_eq!(full.left_bytes(1000), 0);
    }

    #[test]
    fn version_one_counts_the_descendants_and_limits_memory_and_swap_together() {
        let stat =
            "inactive_file 1\nactive_file 1\ntotal_inactive_file 1000\ntotal_active_file 500\ntotal_shmem 9000\n";
        let files = [
            ("memory.limit_in_bytes", "640000"),
            ("memory.usage_in_bytes", "100000"),
            ("memory.stat", stat),
            ("memory.memsw.limit_in_bytes", "700000"),
            ("memory.memsw.usage_in_bytes", "120000"),
        ];
        let group = parse(Version::One, &files).unwrap();
        assert_eq!((group.file_bytes, group.swap_left_bytes), (1500, 40_000));
        assert_eq!(group.left_bytes(0), 630_000 - 98_500);
        assert_eq!(group.left_bytes(30_000), 630_000 - 98_500 + 30_000);
        assert_eq!(group.left_bytes(u64::MAX), 630_000 - 98_500 + 40_000);
    }

    #[test]
    fn group_without_a_limit_is_none() {
        assert_eq!(parse(Version::Two, &[("memory.max", "max\n"), ("memory.current", "5")]), None);
        assert_eq!(parse(Version::Two, &[]), None);
        let unlimited = [("memory.limit_in_bytes", "9223372036854771712"), ("memory.usage_in_bytes", "5")];
        assert_eq!(parse(Version::One, &unlimited), None);
        let swap = parse(Version::Two, &[("memory.max", "64"), ("memory.current", "5"), ("memory.swap.max", "max")]);
        assert_eq!(swap.unwrap().swap_left_bytes, u64::MAX);
    }
}
