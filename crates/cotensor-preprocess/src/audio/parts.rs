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
        // A seek may go beyond the end, where no part can be read.
        if count == 0 {
            return Ok(0);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::Error;

    #[test]
    fn read_beyond_the_end_is_the_end() {
        let bytes: [u8; 4] = [1, 2, 3, 4];
        let read = |at: usize, target: &mut [u8]| {
            let part = bytes.get(at..at + target.len()).ok_or_else(|| Error::invalid("no such part"))?;
            target.copy_from_slice(part);
            Ok(())
        };
        let mut parts = Parts::new(bytes.len(), read);
        let mut target = [0; 3];
        assert_eq!(parts.seek(SeekFrom::End(-1)).unwrap(), 3);
        assert_eq!((parts.read(&mut target).unwrap(), target), (1, [4, 0, 0]));
        assert_eq!(parts.read(&mut target).unwrap(), 0);
        assert_eq!(parts.seek(SeekFrom::Start(100)).unwrap(), 100);
        assert_eq!(parts.read(&mut target).unwrap(), 0);
    }
}
