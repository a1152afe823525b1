//! The lock of a file's download against other processes, `huggingface_hub`'s included.

use super::part::open_plain;
use crate::settings::Limits;
use cotensor_core::{Error, ErrorKind, Result};
use rustix::fs::OFlags;
use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Locks `path`. While another process has the lock, `waits` is called with its number, if the kernel tells it, and the
/// wait goes on as long as the holder writes to `part`.
///
/// # Errors
/// `TimedOut`, which names process and lock, when nothing was written for [`Limits::lock`]; `Io`.
pub(super) fn lock(path: &Path, part: &Path, limits: &Limits, waits: &dyn Fn(Option<u32>)) -> Result<File> {
    let io = |error: std::io::Error| Error::io("cannot lock a download", &error).in_file(path);
    std::fs::create_dir_all(path.parent().unwrap_or(path)).map_err(io)?;
    let file = open_plain(path, OFlags::RDWR | OFlags::CREATE).map_err(io)?;
    let (mut progress, mut since) = (written(part), Instant::now());
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
        let holder = holder(&file);
        waits(holder);
        let now = written(part);
        if now != progress {
            (progress, since) = (now, Instant::now());
        }
        if since.elapsed() >= limits.lock {
            let holder = holder.map_or_else(|| "another process".to_owned(), |holder| format!("process {holder}"));
            let seconds = limits.lock.as_secs();
            let message = format!("{holder} has locked this download and wrote nothing for {seconds} s");
            return Err(Error::new(ErrorKind::TimedOut, message).in_file(path));
        }
        std::thread::sleep(PAUSE);
    }
}

/// The length of a file and the time of its last write.
fn written(part: &Path) -> Option<(u64, SystemTime)> {
    let found = std::fs::metadata(part).ok()?;
    Some((found.len(), found.modified().ok()?))
}

/// The process that has locked `file`, by the kernel's list of locks.
fn holder(file: &File) -> Option<u32> {
    let inode = format!(":{}", file.metadata().ok()?.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (kind, process, place) = (words.nth(1)?, words.nth(2)?, words.next()?);
        (kind == "FLOCK" && place.ends_with(&inode)).then(|| process.parse().ok().filter(|&process| process > 0))?
    })
}
