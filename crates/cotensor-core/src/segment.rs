use crate::{Device, Error, Result, TENSOR_BYTES_MAX};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// Every segment starts at a multiple of this many bytes, and so does every tensor packed into one.
pub const ALIGNMENT: usize = 64;

/// `len` rounded up to a multiple of [`ALIGNMENT`], in bytes.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for more than [`TENSOR_BYTES_MAX`] bytes, or more than this
/// machine can address.
pub fn padded(len: usize) -> Result<usize> {
    len.checked_next_multiple_of(ALIGNMENT)
        .filter(|&padded| padded as u64 <= TENSOR_BYTES_MAX && isize::try_from(padded).is_ok())
        .ok_or_else(|| Error::invalid(format!("{len} bytes are more than a segment may have")))
}

/// Which implementation of [`Memory`] made a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryKind {
    /// The process's own heap.
    Heap,
    /// An anonymous file of the kernel, sealed when published.
    Memfd,
    /// Memory that many small tensors of one producer share, which can still write in it: an anonymous file, or memory of a device.
    Slab,
    /// A file of Cotensor's own cache, mapped.
    MappedFile,
    /// Memory of a device.
    Device,
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            MemoryKind::Heap => "heap",
            MemoryKind::Memfd => "memfd",
            MemoryKind::Slab => "slab",
            MemoryKind::MappedFile => "mapped file",
            MemoryKind::Device => "device",
        })
    }
}

/// Reserves segments of one kind.
pub trait Memory: Send + Sync {
    /// What this memory is.
    fn kind(&self) -> MemoryKind;

    /// Where its segments lie.
    fn device(&self) -> Device;

    /// Reserves `len` bytes, zeroed, physically backed, and aligned to [`ALIGNMENT`].
    /// `len` may be zero.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a length that cannot exist,
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when the system has no memory left.
    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>>;

    /// As [`reserve`](Memory::reserve) for a caller that writes all `len` bytes before others see them: they may have any values. Bytes behind
    /// them, which other processes may see, are zero.
    ///
    /// # Errors
    /// As [`reserve`](Memory::reserve).
    fn reserve_to_fill(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        self.reserve(len)
    }

    /// Reserves as many bytes as `source` has and copies it there: the shortest way to publish bytes that exist, since
    /// memory that was used before need not be zeroed first.
    ///
    /// # Errors
    /// As [`reserve`](Memory::reserve).
    fn copy_of(&self, source: &[u8]) -> Result<Box<dyn SegmentMut>> {
        let mut segment = self.reserve(source.len())?;
        segment.write_at(0, source)?;
        Ok(segment)
    }

    /// As [`reserve`](Memory::reserve), for code that keeps the address of the bytes and may write there later, such as
    /// an array of another language. After [`freeze`](SegmentMut::freeze), writes at that address stay private to
    /// the writer: the segment then has its bytes at a second address. The first address stays mapped while the
    /// segment or a handle of [`pin_address`](SegmentMut::pin_address) exists. Memory of a device has one address, at which
    /// writes fail after [`freeze`](SegmentMut::freeze).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for memory that cannot be mapped twice; else as
    /// [`reserve`](Memory::reserve).
    fn reserve_aliased(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        Err(Error::unsupported(format!(
            "{} bytes of {} memory cannot be reserved with an address that other code keeps",
            len,
            self.kind()
        )))
    }

    /// Opens a segment of `len` bytes that another process made in the same kind of memory, from the descriptor that
    /// [`Segment::fd`] returned there. `kind` is [`Segment::kind`] there. The segment lives while any process has its
    /// descriptor, also after the process that made it has ended.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`](crate::ErrorKind::Refused) for a descriptor of other memory or of another length;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for memory that processes cannot share;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io).
    #[cfg(unix)]
    fn import(&self, fd: std::os::fd::OwnedFd, len: usize, kind: MemoryKind) -> Result<Arc<dyn Segment>> {
        drop(fd);
        let own = self.kind();
        Err(Error::unsupported(format!("{own} memory cannot open {len} bytes of {kind} memory of another process")))
    }

    /// Prefaults memory for `count` segments of `len` bytes, so that reserving them is fast. Returns the number of
    /// segments that are prefaulted: 0 for memory that does not support it.
    ///
    /// # Errors
    /// As [`reserve`](Memory::reserve).
    fn prefault(&self, len: usize, count: usize) -> Result<usize> {
        let _ = (len, count);
        Ok(0)
    }

    /// Whether [`create_slab`](Memory::create_slab) makes slabs, for small tensors on a device.
    fn has_slabs(&self) -> bool {
        false
    }

    /// Makes a slab of `len` bytes, all of them zero.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for memory without slabs; else as [`reserve`](Memory::reserve).
    #[cfg(unix)]
    fn create_slab(&self, len: usize) -> Result<Arc<dyn SlabMemory>> {
        Err(Error::unsupported(format!("{} memory has no slabs, so none of {len} bytes", self.kind())))
    }
}

/// Memory of one producer for many small tensors. Its segments are ranges of it, and their [`MemoryKind`] is `Slab`.
///
/// The producer alone writes it, also after a segment is published. A range is used again after its segment is dropped. The publisher
/// therefore keeps a segment until no process leases the tensor.
#[cfg(unix)]
pub trait SlabMemory: Memory {
    /// As [`reserve`](Memory::reserve), but the bytes may have values of an earlier segment. For callers that write all of them.
    ///
    /// # Errors
    /// [`ErrorKind::OverBudget`](crate::ErrorKind::OverBudget) when no free range is long enough; as [`reserve`](Memory::reserve).
    fn reserve_unzeroed(&self, len: usize) -> Result<Box<dyn SegmentMut>>;

    /// The descriptor for other processes.
    fn fd(&self) -> std::os::fd::BorrowedFd<'_>;

    /// The length in bytes.
    fn size_bytes(&self) -> usize;

    /// Whether it has no segment.
    fn is_unused(&self) -> bool;

    /// Whether another library places its arrays in it, so that it gets no other tensors.
    fn is_placed_by_owner(&self) -> bool {
        false
    }
}

/// A segment of one writer, before it is shared.
///
/// Dropping it gives the memory back. [`freeze`](SegmentMut::freeze) ends writing for good.
pub trait SegmentMut: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// Whether the length is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, where the host can address them.
    fn bytes(&self) -> Option<&[u8]>;

    /// The bytes for writing, where the host can address them.
    fn bytes_mut(&mut self) -> Option<&mut [u8]>;

    /// The address of the first byte, where the host can address the bytes, for code that calls [`populate`](Self::populate) for the bytes
    /// that it is about to write there.
    fn unpopulated_address(&mut self) -> Option<NonNull<u8>> {
        self.bytes_mut().map(|bytes| NonNull::from(bytes).cast())
    }

    /// Makes the memory of a range of bytes exist, unless it does. Other accesses make all of it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when the range is not inside the segment;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when the system has no memory left.
    fn populate(&self, range: Range<usize>) -> Result<()> {
        range_within(range.start, range.len(), self.len()).map(drop)
    }

    /// The address of the first byte for programs on the device. They may write there until the segment is frozen, which waits for
    /// the work that this process has given to the device.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for memory that no device addresses, and for a range of a slab, which
    /// would stay writable at that address: [`reserve_aliased`](Memory::reserve_aliased) gives memory of its own.
    fn device_address(&self) -> Result<u64> {
        Err(Error::unsupported("this segment's memory has no address on a device"))
    }

    /// Copies `source` into the segment from byte `offset` on.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when the range is not inside the segment.
    fn write_at(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        let range = range_within(offset, source.len(), self.len())?;
        match self.bytes_mut() {
            Some(bytes) => {
                bytes[range].copy_from_slice(source);
                Ok(())
            }
            None => Err(Error::unsupported("the host cannot write this segment's memory")),
        }
    }

    /// The concrete type of the segment, for the crate that made it.
    fn as_any_mut(&mut self) -> Option<&mut dyn Any> {
        None
    }

    /// A handle that keeps the address of the bytes mapped, also after the segment is dropped or published. `None`
    /// unless the segment comes from [`reserve_aliased`](Memory::reserve_aliased).
    fn pin_address(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }

    /// The descriptor by which another process of this user may map the bytes for writing, until they are frozen. `None`
    /// unless the segment comes from [`reserve_aliased`](Memory::reserve_aliased), and for memory without one.
    #[cfg(unix)]
    fn writable_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    /// Makes the bytes immutable and shareable. Their address does not change.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when the kernel refuses to seal them.
    fn freeze(self: Box<Self>) -> Result<Arc<dyn Segment>>;
}

/// An immutable segment: one allocation that any number of readers share.
pub trait Segment: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// Whether the length is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Which memory made it.
    fn kind(&self) -> MemoryKind;

    /// The concrete type of the segment, or of the segment that it is a part of, for the crate that made it.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// Where it lies.
    fn device(&self) -> Device;

    /// The bytes, where the host can address them. Their address never changes while the segment lives.
    fn bytes(&self) -> Option<&[u8]>;

    /// The bytes, as [`bytes`](Segment::bytes) gives them.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the host cannot address them, as on a device.
    fn host_bytes(&self) -> Result<&[u8]> {
        self.bytes().ok_or_else(|| {
            let device = self.device();
            Error::unsupported(format!("the host cannot address {device} memory; copy the tensor to the host first"))
        })
    }

    /// The address of the first byte for programs on the device. They may read there while the segment exists: its drop waits for the
    /// work that this process has given to the device.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for memory that no device addresses.
    fn device_address(&self) -> Result<u64> {
        Err(Error::unsupported(format!("{} memory has no address on a device", self.kind())))
    }

    /// Waits until no work of this process can read the memory at the address that [`device_address`](Segment::device_address) gave. False
    /// where that cannot be found out: the memory must not be used again then, while this process runs. Only a slab's memory is used
    /// again; for other memory, the drop waits.
    fn end_use(&self) -> bool {
        true
    }

    /// Called by the publisher of a range of a slab when it no longer learns which processes lease the tensor. The range must not be used
    /// again then, also after the drop of the segment; a slab from which no range is reserved any more needs nothing for that.
    fn retire(&self) {}

    /// The same memory for one more tensor in it. A segment that keeps the users of its address, and in which many tensors lie, has a part for
    /// each of them. `whole` is this segment.
    fn for_tensor(&self, whole: &Arc<dyn Segment>) -> Arc<dyn Segment> {
        Arc::clone(whole)
    }

    /// Copies bytes from `offset` on into `target`: the way to read a device, and never the way to share.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when the range is not inside the segment.
    fn read_at(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        let range = range_within(offset, target.len(), self.len())?;
        match self.bytes() {
            Some(bytes) => {
                target.copy_from_slice(&bytes[range]);
                Ok(())
            }
            None => Err(Error::unsupported(format!("the host cannot read {} memory", self.device()))),
        }
    }

    /// The descriptor by which [`Memory::import`] opens the segment in another process, where there is one: a memfd, or
    /// the handle that a device's driver exports. An imported segment of a device has none: its mapping alone keeps the memory.
    #[cfg(unix)]
    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    /// Where the bytes start in the file behind [`fd`](Segment::fd), in bytes: more than zero for a part of a slab.
    #[cfg(unix)]
    fn fd_offset(&self) -> usize {
        0
    }
}

/// `offset .. offset + len`, checked to lie inside `0 .. total`; all in bytes.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when it does not.
pub fn range_within(offset: usize, len: usize, total: usize) -> Result<Range<usize>> {
    match offset.checked_add(len) {
        Some(end) if end <= total => Ok(offset..end),
        _ => Err(Error::invalid(format!("{len} bytes at offset {offset} do not fit a segment of {total} bytes"))),
    }
}

/// The most bytes that [`copy_by_host`] has in host memory.
const HOST_BYTES: usize = 64 << 20;

/// Copies `len` bytes by way of host memory, in parts. `read` and `write` get the offset of a part.
///
/// # Errors
/// Those of `read` and `write`.
pub fn copy_by_host(
    len: usize,
    mut read: impl FnMut(usize, &mut [u8]) -> Result<()>,
    mut write: impl FnMut(usize, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut host = vec![0; len.min(HOST_BYTES)];
    for offset in (0..len).step_by(HOST_BYTES) {
        let part = &mut host[..(len - offset).min(HOST_BYTES)];
        read(offset, part)?;
        write(offset, part)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_never_overflows() {
        assert_eq!([0, 1, 64, 65].map(|len| padded(len).ok()), [Some(0), Some(64), Some(64), Some(128)]);
        for len in [usize::MAX, usize::MAX - 62, usize::MAX - 63, isize::MAX as usize] {
            assert_eq!(padded(len).unwrap_err().kind(), crate::ErrorKind::Invalid, "{len}");
        }
    }
}
