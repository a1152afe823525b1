use super::is_of_network;
use super::lock::lock;
use super::part::open_part;
use super::remote::Remote;
use crate::cache::{Digest, FileState, RepoFile, Repository};
use crate::id::ModelId;
use crate::settings::Limits;
use cotensor_core::{Error, ErrorKind, Result, size};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The pause before the second request of a file. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The most bytes of one read.
const BUFFER_BYTES: usize = 256 << 10;
/// A request that brings this many bytes does not count as a failed one.
const PROGRESS_BYTES_MIN: u64 = 1 << 20;

/// The download of a model's files at a commit.
pub(crate) struct Download<'a> {
    pub(crate) remote: &'a dyn Remote,
    pub(crate) repository: &'a Repository,
    pub(crate) id: &'a ModelId,
    pub(crate) commit: &'a str,
    pub(crate) limits: &'a Limits,
}

/// Reports the progress of one file.
pub(crate) trait Transfer {
    /// This many bytes of the file on disk were compared with its hash.
    fn hashed(&self, bytes: u64);
    /// The file has this many bytes on disk.
    fn has(&self, bytes: u64);
}

impl Download<'_> {
    /// Adds a file to the snapshot. The bytes come from the cache if it has them undamaged, else from the hub. Returns the
    /// number of bytes received, and whether the cache had damaged ones.
    ///
    /// # Errors
    /// `Corrupt` for bytes with another size or hash than the list of files states, `TimedOut` for a slow server or a lock
    /// whose holder does nothing, `Io` for a failure of the disk; as [`Remote::open`].
    pub(crate) fn add(&self, file: &RepoFile, transfer: &dyn Transfer) -> Result<(u64, bool)> {
        let state = || self.repository.blob_state(file, &|bytes| transfer.hashed(bytes));
        let found = state();
        let mut received = 0;
        if found != FileState::Whole {
            let blob = self.repository.blob(file);
            let part = PathBuf::from(format!("{}.incomplete", blob.display()));
            let what = format!("{} of {}", file.path, self.id);
            let _lock = lock(&self.repository.lock(file), &part, &what, self.limits)?;
            // Another process may have made it while this one waited.
            if state() != FileState::Whole {
                received = self.fetch(file, &blob, &part, transfer)?;
                self.repository.set_verified(file);
            }
        }
        self.repository.link(self.commit, file)?;
        Ok((received, found == FileState::Damaged))
    }

    /// Downloads a file, continues the part that an earlier download left, and gives it its name when it is verified.
    fn fetch(&self, file: &RepoFile, blob: &Path, path: &Path, transfer: &dyn Transfer) -> Result<u64> {
        let io = |error: std::io::Error| Error::io("cannot write the hub's cache", &error).in_file(path);
        std::fs::create_dir_all(path.parent().unwrap_or(path)).map_err(io)?;
        let mut part = open_part(path).map_err(io)?;
        if part.metadata().map_err(io)?.len() > file.size {
            part.set_len(0).map_err(io)?;
        }
        let (mut received, mut attempt, mut started_anew) = (0, 0, false);
        loop {
            let from = part.metadata().map_err(io)?.len();
            part.seek(SeekFrom::Start(0)).map_err(io)?;
            let mut digest = Digest::of(file);
            digest.read(&part, &|bytes| transfer.hashed(bytes)).map_err(io)?;
            let before = received;
            let result = if from == file.size {
                Ok(())
            } else {
                self.receive(file, &mut part, from, &mut digest, &mut received, transfer)
            };
            attempt = if received - before >= PROGRESS_BYTES_MIN { 1 } else { attempt + 1 };
            match result {
                Ok(()) if digest.finish() == file.etag() => break,
                // The part of an earlier download, or a server that ignores offsets, can be the cause.
                Ok(()) if from > 0 && !started_anew => {
                    started_anew = true;
                    part.set_len(0).map_err(io)?;
                }
                Ok(()) => {
                    let _ = std::fs::remove_file(path);
                    return Err(Error::corrupt(
                        "the bytes that arrived have another hash than the list of files states",
                    )
                    .in_field(&*file.path));
                }
                Err(error) if attempt < self.limits.attempts && is_of_network(&error) => {
                    std::thread::sleep(FIRST_PAUSE * 2_u32.saturating_pow(attempt - 1));
                }
                Err(error) => {
                    if error.kind() == ErrorKind::Corrupt {
                        let _ = std::fs::remove_file(path);
                    }
                    return Err(error.in_field(&*file.path));
                }
            }
        }
        part.sync_all().map_err(io)?;
        std::fs::rename(path, blob).map_err(io)?;
        Ok(received)
    }

    /// Appends the bytes of a file from `from` on.
    fn receive(
        &self,
        file: &RepoFile,
        part: &mut File,
        from: u64,
        digest: &mut Digest,
        received: &mut u64,
        transfer: &dyn Transfer,
    ) -> Result<()> {
        let mut body = self.remote.open(self.id, self.commit, file, from)?;
        let mut have = from;
        let (mut window, mut in_window) = (Instant::now(), 0);
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let bytes = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => &buffer[..read],
                Err(error) => return Err(broken(&error, have, file.size)),
            };
            have += bytes.len() as u64;
            if have > file.size {
                let message = format!("the server sends more than the {} of the list of files", size(file.size));
                return Err(Error::corrupt(message));
            }
            part.write_all(bytes).map_err(|error| {
                Error::io("cannot write the hub's cache", &error).in_file(self.repository.blob(file))
            })?;
            digest.update(bytes);
            *received += bytes.len() as u64;
            in_window += bytes.len() as u64;
            transfer.has(have);
            if window.elapsed() >= self.limits.slow {
                if in_window < self.limits.slow_bytes {
                    let (bytes, seconds) = (size(in_window), self.limits.slow.as_secs());
                    let message = format!("the server is too slow: {bytes} in {seconds} s");
                    return Err(Error::new(ErrorKind::TimedOut, message));
                }
                (window, in_window) = (Instant::now(), 0);
            }
        }
        if have == file.size { Ok(()) } else { Err(broken(&std::io::ErrorKind::UnexpectedEof.into(), have, file.size)) }
    }
}

/// The error for a connection that ended within a file.
fn broken(error: &std::io::Error, have: u64, all: u64) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock => ErrorKind::TimedOut,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("the download ended after {} of {}: {error}", size(have), size(all)))
}
