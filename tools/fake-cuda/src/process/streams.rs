//! Streams. Their work runs when a function must wait for it, and not before.

use super::addresses::{Access, Addresses};
use crate::codes::{ILLEGAL_ADDRESS, INVALID_HANDLE, INVALID_VALUE, Outcome, UNKNOWN};
use crate::machine::Allocation;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::slice::{from_raw_parts, from_raw_parts_mut};

/// The most bytes that a fill or a copy writes at once.
const PART_BYTES: u64 = 1 << 20;

struct Stream {
    /// The device, by its number in this process.
    ordinal: i32,
    /// The same by its index on the machine.
    device: u32,
    queue: VecDeque<Work>,
}

/// Work of a stream. The caller keeps the host's memory until the work has run, as the driver's documentation demands.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// Copies from the host.
    Write { address: u64, source: usize, bytes: u64 },
    /// Copies to the host.
    Read { address: u64, target: usize, bytes: u64 },
    /// Copies on the device.
    Copy { address: u64, source: u64, bytes: u64 },
    /// Sets each byte.
    Fill { address: u64, value: u8, bytes: u64 },
}

impl Work {
    /// The device memory that it needs, and for what.
    fn needs(self) -> (u64, u64, Access) {
        match self {
            Self::Write { address, bytes, .. }
            | Self::Copy { address, bytes, .. }
            | Self::Fill { address, bytes, .. } => (address, bytes, Access::ReadWrite),
            Self::Read { address, bytes, .. } => (address, bytes, Access::Read),
        }
    }

    /// The device memory and the offset of the source of a copy on the device; that of [`needs`](Self::needs) for other work.
    fn source(self, device: u32, addresses: &Addresses) -> Option<(&Allocation, u64)> {
        match self {
            Self::Copy { source, bytes, .. } => addresses.memory(source, bytes, device, Access::Read),
            Self::Write { address, bytes, .. }
            | Self::Fill { address, bytes, .. }
            | Self::Read { address, bytes, .. } => addresses.memory(address, bytes, device, Access::Read),
        }
    }
}

/// The streams of a process.
#[derive(Default)]
pub(crate) struct Streams {
    streams: HashMap<u64, Stream>,
}

impl Streams {
    /// Adds a stream of a device.
    pub(super) fn add(&mut self, handle: u64, ordinal: i32, device: u32) {
        self.streams.insert(handle, Stream { ordinal, device, queue: VecDeque::new() });
    }

    /// Removes the streams of a device, with their work.
    pub(super) fn remove_all(&mut self, ordinal: i32) {
        self.streams.retain(|_, stream| stream.ordinal != ordinal);
    }

    /// Removes a stream.
    pub(super) fn remove(&mut self, stream: u64) {
        self.streams.remove(&stream);
    }

    /// The streams of a device.
    pub(super) fn all(&self, ordinal: i32) -> Vec<u64> {
        let of = self.streams.iter().filter(|(_, stream)| stream.ordinal == ordinal);
        of.map(|(stream, _)| *stream).collect()
    }

    /// Adds work to a stream of a device. An address without the needed access is an error at once, and the context stays usable.
    pub(super) fn submit(&mut self, stream: u64, ordinal: i32, work: Work, addresses: &Addresses) -> Outcome {
        let stream = self.streams.get_mut(&stream).filter(|stream| stream.ordinal == ordinal);
        let stream = stream.ok_or(INVALID_HANDLE)?;
        let (address, bytes, access) = work.needs();
        addresses.memory(address, bytes, stream.device, access).ok_or(INVALID_VALUE)?;
        work.source(stream.device, addresses).ok_or(INVALID_VALUE)?;
        stream.queue.push_back(work);
        Ok(())
    }

    /// Runs the work of a stream.
    pub(super) fn run(&mut self, stream: u64, addresses: &Addresses) -> Outcome {
        let stream = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        std::mem::take(&mut stream.queue).into_iter().try_for_each(|work| run(stream.device, work, addresses))
    }
}

fn run(device: u32, work: Work, addresses: &Addresses) -> Outcome {
    let (address, bytes, access) = work.needs();
    let (memory, offset) = addresses.memory(address, bytes, device, access).ok_or(ILLEGAL_ADDRESS)?;
    let (source, source_offset) = work.source(device, addresses).ok_or(ILLEGAL_ADDRESS)?;
    let done = match work {
        Work::Write { source, bytes, .. } => {
            // SAFETY: the caller of the copy promises that these bytes exist until the work has run.
            let source = unsafe { from_raw_parts(source as *const u8, bytes as usize) };
            memory.file.write_all_at(source, offset)
        }
        Work::Read { target, bytes, .. } => {
            // SAFETY: the caller of the copy promises that these bytes exist until the work has run, and that no other
            // code uses them meanwhile.
            let target = unsafe { from_raw_parts_mut(target as *mut u8, bytes as usize) };
            memory.file.read_exact_at(target, offset)
        }
        Work::Copy { bytes, .. } => (0..bytes).step_by(PART_BYTES as usize).try_for_each(|start| {
            let mut part = vec![0; (bytes - start).min(PART_BYTES) as usize];
            source.file.read_exact_at(&mut part, source_offset + start)?;
            memory.file.write_all_at(&part, offset + start)
        }),
        // Where the file system has holes, they take less time than writing zeros.
        Work::Fill { value: 0, bytes, .. } if clear(&memory.file, offset, bytes).is_ok() => Ok(()),
        Work::Fill { value, bytes, .. } => {
            let part = vec![value; bytes.min(PART_BYTES) as usize];
            let mut parts = (0..bytes).step_by(PART_BYTES as usize);
            let len = |start: u64| (bytes - start).min(PART_BYTES) as usize;
            parts.try_for_each(|start| memory.file.write_all_at(&part[..len(start)], offset + start))
        }
    };
    done.map_err(|_| UNKNOWN)
}

fn clear(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let out_of_range = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let (offset, bytes) = (i64::try_from(offset).map_err(out_of_range)?, i64::try_from(bytes).map_err(out_of_range)?);
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the call has no pointers. No mapping of the file exists.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, bytes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
