//! Locks of files that other processes hold (`flock`).

use super::waited::{process_name, wait_report};
use cotensor_core::waiting::Waiting;
use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::Errno;
use std::io::Result;
use std::os::fd::AsFd;
use std::time::Duration;

/// The interval between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// A holder whose number is not known.
const UNKNOWN: &str = "another process";

/// Locks a file exclusively while `keep_waiting` returns true. It is called between attempts. Returns whether the file is locked.
/// A long wait is reported with the process that has the lock; `holds` says what that process does, such as "which has locked x".
///
/// # Errors
/// The system's, as for a file of a file system without locks.
pub fn lock_file(file: impl AsFd, holds: &str, keep_waiting: &mut dyn FnMut() -> bool) -> Result<bool> {
    let describe = || {
        let holders: Vec<u32> = lock_holder(&file).into_iter().collect();
        wait_report(&holders, UNKNOWN, &format!(", {holds}"), false)
    };
    let waiting = Waiting::new(&describe);
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) if keep_waiting() => {}
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        waiting.check();
        std::thread::sleep(RETRY_INTERVAL);
    }
}

/// The process that has locked a file, as messages name it.
pub fn lock_holder_name(file: impl AsFd) -> String {
    lock_holder(file).map_or_else(|| UNKNOWN.to_owned(), process_name)
}

/// The process that has locked a file, by the kernel's list of locks. `None` for a file that is not locked, and for a process of
/// another container. A process that inherited the lock is not found: the list has the process that took it.
fn lock_holder(file: impl AsFd) -> Option<u32> {
    let inode = format!(":{}", fstat(file).ok()?.st_ino);
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (kind, process, place) = (words.nth(1)?, words.nth(2)?, words.next()?);
        (kind == "FLOCK" && place.ends_with(&inode)).then(|| process.parse().ok().filter(|&process| process > 0))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::waiting::{WaitReport, set_wait_reporter};
    use std::fs::File;
    use std::sync::{Arc, mpsc::channel};

    #[test]
    fn held_lock_is_reported_with_its_process_and_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lock");
        let held = File::create(&path).unwrap();
        assert!(lock_file(&held, "which has locked x", &mut || false).unwrap());
        let second = File::open(&path).unwrap();
        assert!(!lock_file(&second, "", &mut || false).unwrap(), "it does not wait");
        let (reported, reports) = channel();
        set_wait_reporter(Some(Arc::new(move |report: &WaitReport| drop(reported.send(report.clone())))));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| lock_file(&second, "which has locked x", &mut || true));
            let report = reports.recv().unwrap();
            let (start, end) = report.text.split_once(')').unwrap();
            assert!(start.starts_with(&format!("waiting for process {} (", std::process::id())), "{report:?}");
            assert_eq!((end, report.is_expected), (", which has locked x", false));
            drop(held);
            assert!(waiting.join().unwrap().unwrap());
        });
    }
}
