//! Helpers of the tests.

pub(crate) mod http;
pub(crate) mod processes;

pub(crate) use cotensor_daemon::testing::{Running, put, spec, until};

use cotensor_functions::Arguments;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;

/// Arguments of a call without any.
pub(crate) fn none() -> Arguments {
    Arguments::new()
}

/// Length and memory in bytes of each segment that this process (also a daemon in it) has open and that is not in `before`, by inode.
pub(crate) fn segments_since(before: &HashMap<u64, (u64, u64)>) -> HashMap<u64, (u64, u64)> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let memory = links.filter(|link| {
        std::fs::read_link(link.path()).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:cotensor"))
    });
    let found = memory.filter_map(|link| std::fs::metadata(link.path()).ok());
    let new = found.filter(|file| !before.contains_key(&file.ino()));
    new.map(|file| (file.ino(), (file.len(), file.blocks() * 512))).collect()
}
