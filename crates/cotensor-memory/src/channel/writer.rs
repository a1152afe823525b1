//! The producer's end of a channel.

use super::Entry;
use super::files::ChannelFiles;
use super::ring::Ring;
use super::size::{ChannelSize, LOANS};
use crate::host::Slab;
use crate::process::duplicate_fd;
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result, Segment, SegmentMut};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// The producer's end of a channel. Dropping it closes the channel.
pub struct ChannelWriter {
    size: ChannelSize,
    memory: Slab,
    ring: Ring,
    frames: Mutex<Frames>,
    /// A forked child does not change the ring.
    owner: u32,
}

/// The frames that may not be written.
#[derive(Default)]
struct Frames {
    /// The number of the newest frame.
    newest: u64,
    is_closed: bool,
    /// Loans that exist.
    loans: usize,
    /// Those in the ring, the oldest first.
    listed: VecDeque<Frame>,
    /// Those that readers held when they left the ring.
    held: Vec<Frame>,
}

struct Frame {
    entry: Entry,
    /// Its slot is free when this is dropped.
    _memory: Arc<dyn Segment>,
}

/// Memory for the next frame, which only this process can read. It has bytes of earlier frames.
pub struct Loan {
    segment: Box<dyn SegmentMut>,
    loaned: Loaned,
}

/// Counts a loan while it exists.
struct Loaned(Arc<ChannelWriter>);

impl Drop for Loaned {
    fn drop(&mut self) {
        lock(&self.0.frames).loans -= 1;
    }
}

impl ChannelWriter {
    /// A channel without frames, in new memory.
    ///
    /// # Errors
    /// `Invalid` for sizes beyond the limits; `OverBudget` when the system's memory or this process's descriptors do not suffice; `Io`.
    pub fn create(size: ChannelSize) -> Result<Arc<Self>> {
        size.check()?;
        let (memory, ring) = (Slab::create(size.memory_bytes()?)?, Ring::create(size)?);
        Ok(Arc::new(Self { size, memory, ring, frames: Mutex::default(), owner: std::process::id() }))
    }

    /// The sizes.
    pub fn size(&self) -> &ChannelSize {
        &self.size
    }

    /// Its files, to send.
    ///
    /// # Errors
    /// `OverBudget` when the limit of descriptors is reached.
    pub fn files(&self) -> Result<ChannelFiles> {
        self.ring.files(duplicate_fd(self.memory.fd())?)
    }

    /// Takes memory for the next frame.
    ///
    /// # Errors
    /// `Conflict` in a forked child, after the channel was closed, and while three loans exist.
    pub fn loan(self: &Arc<Self>) -> Result<Loan> {
        let mut frames = lock(&self.frames);
        self.check_open(&frames)?;
        if frames.loans >= LOANS {
            let message = format!("{LOANS} frames are loaned: publish or drop one of them first");
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        frames.loans += 1;
        drop(frames);
        let loaned = Loaned(Arc::clone(self));
        let segment = match self.memory.reserve_unzeroed(self.size.frame_bytes) {
            Ok(segment) => segment,
            // The locks of readers are looked at only when slots are missing.
            Err(_) => {
                self.release_held(&mut lock(&self.frames), true);
                self.memory.reserve_unzeroed(self.size.frame_bytes)?
            }
        };
        Ok(Loan { segment, loaned })
    }

    /// The number of the newest frame; 0 before the first one.
    pub fn newest(&self) -> u64 {
        lock(&self.frames).newest
    }

    /// Ends as by the end of the process.
    #[cfg(test)]
    pub(super) fn abandon(self) {
        lock(&self.frames).is_closed = true;
    }

    /// Closes the channel: readers get the frames that are left, and then its end. Returns whether it was open before. A forked child
    /// closes nothing.
    pub fn close(&self) -> bool {
        if self.owner != std::process::id() {
            return false;
        }
        let mut frames = lock(&self.frames);
        let was_open = !std::mem::replace(&mut frames.is_closed, true);
        if was_open {
            self.ring.close();
        }
        was_open
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        lock(&self.frames).is_closed
    }

    fn check_open(&self, frames: &Frames) -> Result<()> {
        let conflict = |why: &str| Err(Error::new(ErrorKind::Conflict, why));
        match () {
            () if self.owner != std::process::id() => conflict("this channel belongs to the parent process"),
            () if frames.is_closed => conflict("this channel is closed"),
            () => Ok(()),
        }
    }

    /// Releases frames that left the ring while a reader held them, and that none holds now.
    fn release_held(&self, frames: &mut Frames, living: bool) {
        if !frames.held.is_empty() {
            let holds = self.ring.holds(living);
            frames.held.retain(|frame| holds.contains(frame.entry));
        }
    }

    fn publish(&self, segment: Box<dyn SegmentMut>) -> Result<u64> {
        let memory = segment.freeze()?;
        let slot = memory.fd_offset() / self.size.stride();
        let slot = u16::try_from(slot).map_err(|_| Error::corrupt("a frame beyond the channel's memory"))?;
        let mut frames = lock(&self.frames);
        self.check_open(&frames)?;
        frames.newest += 1;
        let entry = Entry { number: frames.newest, slot };
        self.ring.publish(entry);
        frames.listed.push_back(Frame { entry, _memory: memory });
        if frames.listed.len() > self.size.slots as usize {
            let oldest = frames.listed.pop_front();
            frames.held.extend(oldest);
        }
        // Used soon again, memory is still in the processor's cache.
        self.release_held(&mut frames, false);
        Ok(entry.number)
    }
}

impl Drop for ChannelWriter {
    fn drop(&mut self) {
        self.close();
    }
}

impl Loan {
    /// The bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // None only in a forked child, which cannot publish it.
        self.segment.bytes_mut().unwrap_or_default()
    }

    /// Copies `source` into the frame, on several threads if it is long.
    ///
    /// # Errors
    /// `Invalid` for another length than the frame's; `Conflict` in a forked child.
    pub fn write(&mut self, source: &[u8]) -> Result<()> {
        if source.len() != self.segment.len() {
            return Err(Error::invalid(format!("{} bytes for a frame of {}", source.len(), self.segment.len())));
        }
        self.segment.write_at(0, source)
    }

    /// Publishes the frame. Returns its number.
    ///
    /// # Errors
    /// `Conflict` after the channel was closed, and in a forked child.
    pub fn publish(self) -> Result<u64> {
        let Self { segment, loaned } = self;
        loaned.0.publish(segment)
    }
}
