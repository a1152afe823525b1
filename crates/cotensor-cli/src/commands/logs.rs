//! `logs`: the log of a daemon that runs in the background.

use crate::args::LogsArgs;
use crate::output::print;
use cotensor::core::{Error, ErrorKind, Result};
use cotensor_client::{default_socket, log_path, open_regular};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// The most bytes of a log that are read for its last lines.
const TAIL_BYTES_MAX: u64 = 16 << 20;
/// The most bytes that are read at a time while the log is followed.
const PART_BYTES_MAX: u64 = 1 << 20;
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) fn logs(args: &LogsArgs) -> Result<()> {
    let path = log_path(&args.socket.clone().unwrap_or_else(default_socket));
    let (mut file, mut inode) = open(&path)?;
    let io = |error| Error::io("reading the log", &error).in_file(&path);
    let length = file.metadata().map_err(io)?.len();
    let mut at = length.saturating_sub(TAIL_BYTES_MAX);
    let bytes = read(&mut file, at, TAIL_BYTES_MAX).map_err(io)?;
    at += bytes.len() as u64;
    let text = String::from_utf8_lossy(&bytes);
    let first = text.lines().count().saturating_sub(args.lines as usize);
    print(&text.lines().skip(first).flat_map(|line| [line, "\n"]).collect::<String>())?;
    if !args.follow {
        return Ok(());
    }
    loop {
        std::thread::sleep(FOLLOW_INTERVAL);
        // The next daemon may begin another log.
        if std::fs::symlink_metadata(&path).is_ok_and(|found| found.ino() != inode || found.len() < at) {
            (file, inode) = open(&path)?;
            at = 0;
        }
        let bytes = read(&mut file, at, PART_BYTES_MAX).map_err(io)?;
        // An incomplete line is printed with its end.
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        at += whole as u64;
        print(&String::from_utf8_lossy(&bytes[..whole]))?;
    }
}

fn open(path: &Path) -> Result<(File, u64)> {
    let missing = "no log: a daemon in the foreground writes to its standard error, one under systemd to the journal";
    let file = open_regular(path, OFlags::RDONLY).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::new(ErrorKind::NotFound, missing).in_file(path),
        _ => Error::io("opening the log", &error).in_file(path),
    })?;
    let inode = file.metadata().map_err(|error| Error::io("opening the log", &error).in_file(path))?.ino();
    Ok((file, inode))
}

fn read(file: &mut File, at: u64, max: u64) -> std::io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}
