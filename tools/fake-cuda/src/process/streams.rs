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

/// The number of the default stream of the current context.
const DEFAULT: u64 = 0;
/// The handle here of the first device's default stream. Programs have other meanings for small numbers of streams.
const FIRST_DEFAULT: u64 = 0x100;

struct Stream {
    /// The device, by its number in this process.
    ordinal: i32,
    /// The same by its index on the machine.
    device: u32,
    /// Whether the default stream waits for its work, and it for that of the default stream.
    is_blocking: bool,
    queue: VecDeque<Work>,
    /// How much work has run.
    done: u64,
}

impl Stream {
    fn new(ordinal: i32, device: u32, is_blocking: bool) -> Self {
        Self { ordinal, device, is_blocking, queue: VecDeque::new(), done: 0 }
    }

    /// After all work that it has now.
    fn position(&self) -> u64 {
        self.done + self.queue.len() as u64
    }
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
    /// Waits until another stream has run so much work.
    Wait { stream: u64, position: u64 },
}

impl Work {
    /// The device memory that it needs, and for what; none for a wait.
    fn needs(self) -> Option<(u64, u64, Access)> {
        match self {
            Self::Write { address, bytes, .. }
            | Self::Copy { address, bytes, .. }
            | Self::Fill { address, bytes, .. } => Some((address, bytes, Access::ReadWrite)),
            Self::Read { address, bytes, .. } => Some((address, bytes, Access::Read)),
            Self::Wait { .. } => None,
        }
    }

    /// The device memory and the offset of the target, and those of the source of a copy on the device.
    fn memory(self, device: u32, addresses: &Addresses) -> Option<[(&Allocation, u64); 2]> {
        let (address, bytes, access) = self.needs()?;
        let target = addresses.memory(address, bytes, device, access)?;
        let source = match self {
            Self::Copy { source, bytes, .. } => addresses.memory(source, bytes, device, Access::Read)?,
            _ => target,
        };
        Some([target, source])
    }
}

/// The streams of a process.
#[derive(Default)]
pub(crate) struct Streams {
    streams: HashMap<u64, Stream>,
}

impl Streams {
    /// Adds a stream of a device.
    pub(super) fn add(&mut self, handle: u64, ordinal: i32, device: u32, is_blocking: bool) {
        self.streams.insert(handle, Stream::new(ordinal, device, is_blocking));
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

    /// The handle here of a stream that a program names in a context of the device, which is `device` on the machine.
    pub(super) fn handle(&mut self, stream: u64, ordinal: i32, device: u32) -> Outcome<u64> {
        if stream == DEFAULT {
            let handle = FIRST_DEFAULT + ordinal as u64;
            self.streams.entry(handle).or_insert_with(|| Stream::new(ordinal, device, false));
            return Ok(handle);
        }
        let of_context = self.streams.get(&stream).is_some_and(|known| known.ordinal == ordinal);
        if of_context { Ok(stream) } else { Err(INVALID_HANDLE) }
    }

    /// Adds work to a stream, by its handle here. An address without the needed access is an error at once, and the context stays usable.
    pub(super) fn submit(&mut self, stream: u64, work: Work, addresses: &Addresses) -> Outcome {
        self.check(stream, work, addresses)?;
        self.follow_default(stream);
        self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?.queue.push_back(work);
        Ok(())
    }

    /// As [`submit`](Self::submit), without the work.
    pub(super) fn check(&self, stream: u64, work: Work, addresses: &Addresses) -> Outcome {
        let device = self.streams.get(&stream).ok_or(INVALID_HANDLE)?.device;
        if work.needs().is_some() {
            work.memory(device, addresses).ok_or(INVALID_VALUE)?;
        }
        Ok(())
    }

    /// The place after all work that a stream has now.
    pub(super) fn position(&mut self, stream: u64) -> Outcome<u64> {
        self.follow_default(stream);
        self.streams.get(&stream).map(Stream::position).ok_or(INVALID_HANDLE)
    }

    /// Orders a stream after the work that the default stream's rules put before its next work.
    fn follow_default(&mut self, stream: u64) {
        let Some(own) = self.streams.get(&stream) else { return };
        let (ordinal, default) = (own.ordinal, FIRST_DEFAULT + own.ordinal as u64);
        let is_before = |handle: u64, other: &Stream| {
            let is_ordered = if stream == default { other.is_blocking } else { own.is_blocking && handle == default };
            other.ordinal == ordinal && is_ordered && !other.queue.is_empty()
        };
        let before = self.streams.iter().filter(|(handle, other)| is_before(**handle, other));
        let waits: Vec<_> = before.map(|(&stream, other)| Work::Wait { stream, position: other.position() }).collect();
        if let Some(own) = self.streams.get_mut(&stream) {
            own.queue.extend(waits);
        }
    }

    /// Runs the work of a stream.
    pub(super) fn run(&mut self, stream: u64, addresses: &Addresses) -> Outcome {
        let position = self.position(stream)?;
        self.run_until(stream, position, addresses)
    }

    /// Runs the work of a stream up to a place. A stream that has ended has none.
    pub(super) fn run_until(&mut self, stream: u64, position: u64, addresses: &Addresses) -> Outcome {
        loop {
            let Some(own) = self.streams.get_mut(&stream).filter(|own| own.done < position) else { return Ok(()) };
            let (Some(work), device) = (own.queue.pop_front(), own.device) else { return Ok(()) };
            own.done += 1;
            match work {
                Work::Wait { stream, position } => self.run_until(stream, position, addresses)?,
                work => run(device, work, addresses)?,
            }
        }
    }
}

fn run(device: u32, work: Work, addresses: &Addresses) -> Outcome {
    let [(memory, offset), (source, source_offset)] = work.memory(device, addresses).ok_or(ILLEGAL_ADDRESS)?;
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
        Work::Wait { .. } => Ok(()),
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
