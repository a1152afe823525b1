use crate::daemon_process::daemon_report;
use crate::regular_file::open_regular;
use crate::short_path::connect_unix;
use crate::socket_path::make_socket_folder;
use cotensor_core::waiting::Waiting;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::process::{detach, lock_file, lock_holder_name, wait_for_end};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io::{PipeReader, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A log that is longer is renamed when a daemon starts.
const LOG_BYTES_MAX: u64 = 4 << 20;
/// The end of a log in which the reason of a failure is searched.
const LOG_TAIL_BYTES: u64 = 4096;

/// The log of a daemon that was started in the background, beside its socket.
pub fn log_path(socket: &Path) -> PathBuf {
    socket.with_extension("log")
}

/// Starts a daemon by the command that `command` makes from `program`; its argument says whether in a control group of its own.
/// With `in_scope`, tries that first. See [`DaemonProgram::start`](super::DaemonProgram::start).
pub(super) fn start(
    socket: &Path,
    program: &Path,
    command: &dyn Fn(bool) -> Command,
    in_scope: bool,
    timeout: Duration,
) -> Result<()> {
    try_start(socket, program, command, in_scope, timeout).map_err(not_started)
}

/// A folder, a file or a process that the system does not give means that no daemon can be had.
fn not_started(error: Error) -> Error {
    if !matches!(error.kind(), ErrorKind::Io | ErrorKind::NotFound) {
        return error;
    }
    let message = format!("the daemon cannot be started: {}", error.message());
    let unreachable = Error::new(ErrorKind::Unreachable, message);
    error.file().into_iter().fold(unreachable, |unreachable, file| unreachable.in_file(file))
}

fn try_start(
    socket: &Path,
    program: &Path,
    command: &dyn Fn(bool) -> Command,
    in_scope: bool,
    timeout: Duration,
) -> Result<()> {
    let until = Instant::now() + timeout;
    make_socket_folder(socket)?;
    let _starting = take_lock(socket, until)?;
    if connect_unix(socket).is_ok() {
        return Ok(());
    }
    match run(socket, program, command(in_scope), until) {
        // A manager that ends, or a user without a session there.
        Err(error) if in_scope && error.kind() != ErrorKind::TimedOut => run(socket, program, command(false), until),
        outcome => outcome,
    }
}

fn run(socket: &Path, program: &Path, mut command: Command, until: Instant) -> Result<()> {
    let log = log_path(socket);
    let failed = |error: std::io::Error| Error::io("starting the daemon", &error).in_file(program);
    let (ready, theirs) = std::io::pipe().map_err(failed)?;
    command.stdin(Stdio::null()).stdout(theirs).stderr(open_log(&log)?);
    detach(&mut command);
    // This process ends at once; the daemon is its child.
    command.spawn().and_then(wait_for_end).map_err(failed)?;
    // Closes this end of the pipe.
    drop(command);
    // Another daemon may have been started in another way.
    if is_ready(ready, socket, until)? || connect_unix(socket).is_ok() {
        return Ok(());
    }
    let message = format!("the daemon did not start: {}", last_line(&log));
    Err(Error::new(ErrorKind::Unreachable, message).in_file(log))
}

/// Locks the file that one starting process has.
fn take_lock(socket: &Path, until: Instant) -> Result<OwnedFd> {
    let path = socket.with_extension("start");
    let lock = open_regular(&path, OFlags::RDWR | OFlags::CREATE);
    let lock = lock.map_err(|error| Error::io("opening the lock of a start", &error).in_file(&path))?;
    let holds = format!("which starts a daemon and has locked {}", path.display());
    match lock_file(&lock, &holds, &mut || Instant::now() < until) {
        Ok(true) => Ok(lock.into()),
        Ok(false) => {
            let message = format!("{} starts a daemon and does not finish", lock_holder_name(&lock));
            Err(Error::new(ErrorKind::TimedOut, message).in_file(path))
        }
        Err(error) => Err(Error::io("locking the start of a daemon", &error).in_file(path)),
    }
}

/// Opens the log to append to it; a long one gets another name.
fn open_log(path: &Path) -> Result<File> {
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.len() > LOG_BYTES_MAX) {
        // If this fails, the log grows on.
        let _ = std::fs::rename(path, path.with_extension("log.old"));
    }
    let log = open_regular(path, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE);
    log.map_err(|error| Error::io("opening the daemon's log", &error).in_file(path))
}

/// Waits until the daemon writes to its standard output, which means that it answers. False when it ends before. Signals of
/// the caller do not end the wait.
fn is_ready(mut ready: PipeReader, socket: &Path, until: Instant) -> Result<bool> {
    let describe = || daemon_report(socket, &format!("to start; its log is {}", log_path(socket).display()));
    let waiting = Waiting::new(&describe);
    loop {
        waiting.check();
        let left = until.saturating_duration_since(Instant::now());
        let slice = left.min(waiting.left());
        let slice = Timespec::try_from(slice).map_err(|_| Error::invalid("too long a timeout"))?;
        match poll(&mut [PollFd::new(&ready, PollFlags::IN)], Some(&slice)) {
            Ok(0) if !left.is_zero() => {}
            Ok(0) => return Err(Error::new(ErrorKind::TimedOut, "the daemon was started and is not ready")),
            Ok(_) => match ready.read(&mut [0; 512]) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                read => return Ok(read.is_ok_and(|count| count > 0)),
            },
            Err(Errno::INTR) => {}
            Err(error) => return Err(Error::io("waiting for the daemon", &error.into())),
        }
    }
}

/// The last line of a log, for an error message.
fn last_line(log: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = open_regular(log, OFlags::RDONLY)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("its log is empty");
    line.trim().trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_the_system_mean_that_no_daemon_can_be_had() {
        let folder = tempfile::tempdir().unwrap();
        let (missing, socket) = (folder.path().join("missing"), folder.path().join("s"));
        let start = |socket: &Path| start(socket, &missing, &|_| Command::new(&missing), false, Duration::from_secs(5));
        // Folders cannot be made in /proc, also by root.
        for (socket, file) in [(socket.as_path(), missing.as_path()), (Path::new("/proc/no/s"), Path::new("/proc/no"))]
        {
            let error = start(socket).unwrap_err();
            assert_eq!((error.kind(), error.file()), (ErrorKind::Unreachable, Some(file)), "{error}");
        }
    }
}
