//! The lock of a file's download against other processes, `huggingface_hub`'s included.

use super::part::open_plain;
use crate::settings::Limits;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::process::{lock_file, lock_holder_name};
use rustix::fs::OFlags;
use std::fs::File;
use std::path::Path;
use std::time::{Instant, SystemTime};

/// Locks `path`. While another process has the lock, the wait goes on as long as the holder writes to `part`. `what` names the
/// download in reports.
///
/// # Errors
/// `TimedOut`, which names process and lock, when nothing was written for [`Limits::lock`]; `Io`.
pub(super) fn lock(path: &Path, part: &Path, what: &str, limits: &Limits) -> Result<File> {
    let io = |error: std::io::Error| Error::io("cannot lock a download", &error).in_file(path);
    std::fs::create_dir_all(path.parent().unwrap_or(path)).map_err(io)?;
    let file = open_plain(path, OFlags::RDWR | OFlags::CREATE).map_err(io)?;
    let (mut progress, mut since) = (written(part), Instant::now());
    let mut holder_works = || {
        let now = written(part);
        if now != progress {
            (progress, since) = (now, Instant::now());
        }
        since.elapsed() < limits.lock
    };
    if lock_file(&file, &format!("which downloads {what}"), &mut holder_works).map_err(io)? {
        return Ok(file);
    }
    let (holder, seconds) = (lock_holder_name(&file), limits.lock.as_secs());
    let message = format!("{holder} has locked this download and wrote nothing for {seconds} s");
    Err(Error::new(ErrorKind::TimedOut, message).in_file(path))
}

/// The length of a file and the time of its last write.
fn written(part: &Path) -> Option<(u64, SystemTime)> {
    let found = std::fs::metadata(part).ok()?;
    Some((found.len(), found.modified().ok()?))
}
