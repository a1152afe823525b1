//! Files that are read in parts.

use cotensor_core::Result;
use std::io::{self, Read, Seek, SeekFrom};
use symphonia::core::io::MediaSource;

/// Fills a buffer from an offset of a file. The decoders want sources that other threads may use.
pub trait ReadPart: Fn(usize, &mut [u8]) -> Result<()> + Send + Sync {}

impl<F: Fn(usize, &mut [u8]) -> Result<()> + Send + Sync> ReadPart for F {}

/// A file of `len` bytes from its beginning.
pub(super) struct Parts<F> {
    read: F,
    len: usize,
    at: usize,
}

impl<F: ReadPart> Parts<F> {
    pub(super) fn new(len: usize, read: F) -> Self {
        Self { read, len, at: 0 }
    }
}

impl<F: ReadPart> Read for Parts<F> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let count = target.len().min(self.len.saturating_sub(self.at));
        (self.read)(self.at, &mut target[..count]).map_err(io::Error::other)?;
        self.at += count;
        Ok(count)
    }
}

impl<F: ReadPart> Seek for Parts<F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => usize::try_from(at).ok(),
            SeekFrom::End(by) => isize::try_from(by).ok().and_then(|by| self.len.checked_add_signed(by)),
            SeekFrom::Current(by) => isize::try_from(by).ok().and_then(|by| self.at.checked_add_signed(by)),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at as u64)
    }
}

impl<F: ReadPart> MediaSource for Parts<F> {
    fn is_seekable(&self) -> bool {
        true
    }

    fn byte_len(&self) -> Option<u64> {
        Some(self.len as u64)
    }
}
