//! Anonymous files that any process can map and none can write once they are published.

use super::allocate::allocate;
use super::seal::{Guarantee, check_sealed, seal};
use crate::host::parallel_copy::copy_parallel;
use crate::mapping::{Access, AddressPin, AliasedMapping, Mapping, MappingCache};
use crate::process::move_above_select;
use cotensor_core::{
    ALIGNMENT, Device, Error, ErrorKind, Memory, MemoryKind, Result, Segment, SegmentMut, range_within,
};
use rustix::fs::{fstat, ftruncate};
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

/// Memory in anonymous files of the kernel, one per segment.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemfdMemory;

impl Memory for MemfdMemory {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Memfd
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        Ok(Box::new(MemfdMut::create(len)?))
    }

    fn reserve_aliased(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        let memfd = MemfdMut::create(len)?;
        memfd.inherit_on_fork()?;
        Ok(Box::new(AliasedMemfd { memfd: Some(memfd), address: AddressPin::default() }))
    }
}

/// A memfd whose address others in this process know.
struct AliasedMemfd {
    /// Always there until it is published.
    memfd: Option<MemfdMut>,
    address: AddressPin,
}

impl Drop for AliasedMemfd {
    fn drop(&mut self) {
        if let Some(memfd) = self.memfd.take() {
            self.address.retire(memfd.into_mapping());
        }
    }
}

impl SegmentMut for AliasedMemfd {
    fn len(&self) -> usize {
        self.memfd.as_ref().map_or(0, SegmentMut::len)
    }

    fn bytes(&self) -> Option<&[u8]> {
        self.memfd.as_ref()?.bytes()
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.memfd.as_mut()?.bytes_mut()
    }

    fn pin_address(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.address.handle())
    }

    fn freeze(mut self: Box<Self>) -> Result<Arc<dyn Segment>> {
        let memfd = self.memfd.take().ok_or_else(|| Error::invalid("published already"))?;
        Ok(memfd.seal_aliased(&self.address)?.listed())
    }
}

/// A memfd that this process alone knows, and writes. Children that are forked do not have it, so that they cannot keep it
/// from being sealed.
pub struct MemfdMut {
    map: Mapping,
    pub(super) fd: OwnedFd,
    /// What of the mapping is used.
    len: usize,
}

impl MemfdMut {
    /// A new one of `len` zeroed bytes, all of them backed by memory.
    ///
    /// # Errors
    /// `Invalid` for a length that cannot exist, `Io` when the system has no more memory.
    pub fn create(len: usize) -> Result<Self> {
        let (fd, map) = allocate(len, false)?;
        Ok(Self { map, fd, len })
    }

    /// Makes every page present in this process, so that filling it runs at the speed of the memory.
    ///
    /// # Errors
    /// `Io` when the system has no more memory.
    pub fn prefault(&self) -> Result<()> {
        self.map.populate()
    }

    /// The most bytes it can be used for.
    pub(crate) fn capacity(&self) -> usize {
        self.map.len()
    }

    /// Uses the first `len` bytes, at most its capacity; they keep what was written before.
    pub(crate) fn resize(&mut self, len: usize) {
        self.len = len.min(self.map.len());
    }

    /// Lets children that are forked from here on have it, too: arrays that they inherit show it.
    pub(crate) fn inherit_on_fork(&self) -> Result<()> {
        self.map.set_inherited_on_fork(true)
    }

    /// Its mapping, without the file.
    pub(crate) fn into_mapping(self) -> Mapping {
        self.map
    }

    /// Ends writing for good: the address stays, and nobody can write or resize it ever after. It cannot be used again
    /// for another tensor; that is what makes it safe to hand to anyone.
    ///
    /// # Errors
    /// `Conflict` while a forked child can still write it, `Io`.
    pub fn seal(self) -> Result<SealedMemfd> {
        let map = self.map.remap_private(self.fd.as_fd(), self.len, Access::Read)?;
        finish(&self.fd, self.len)?;
        Ok(SealedMemfd::over(map, self.fd, Guarantee::Immutable, None))
    }

    /// As [`seal`](Self::seal), where others in this process know the address and may go on writing there: what they write
    /// from now on is theirs alone. The bytes that everybody sees are mapped a second time.
    ///
    /// A child that was forked meanwhile can still write the memory, perhaps without knowing. Then they get a copy.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn seal_aliased(self, address: &AddressPin) -> Result<SealedMemfd> {
        // From here on the address is left to its keepers whatever fails.
        let exposed =
            AliasedMapping::new(self.map.remap_private(self.fd.as_fd(), self.len, Access::CopyOnWrite)?, address);
        match finish(&self.fd, self.len) {
            Ok(()) => {
                let map = Mapping::new(self.fd.as_fd(), self.len, Access::Read)?;
                Ok(SealedMemfd::over(map, self.fd, Guarantee::Immutable, Some(exposed)))
            }
            Err(error) if error.kind() == ErrorKind::Conflict => {
                let mut copy = Self::create(self.len)?;
                copy.write_at(0, exposed.bytes())?;
                let mut sealed = copy.seal()?;
                sealed._exposed = Some(exposed);
                Ok(sealed)
            }
            Err(error) => Err(error),
        }
    }
}

/// Ends writing and resizing of what has `len` bytes from here on. Succeeds only when no writable mapping is left anywhere:
/// the proof that nobody can write it any more.
fn finish(fd: &OwnedFd, len: usize) -> Result<()> {
    ftruncate(fd, len as u64).map_err(|error| Error::io("cannot size shared memory", &error.into()))?;
    seal(fd, Guarantee::Immutable)
}

impl SegmentMut for MemfdMut {
    fn len(&self) -> usize {
        self.len
    }

    fn bytes(&self) -> Option<&[u8]> {
        self.map.bytes().get(..self.len)
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.map.bytes_mut()?.get_mut(..self.len)
    }

    fn write_at(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        let range = range_within(offset, source.len(), self.len)?;
        copy_parallel(&mut self.map.bytes_mut().unwrap_or_default()[range], source);
        Ok(())
    }

    fn freeze(self: Box<Self>) -> Result<Arc<dyn Segment>> {
        Ok(self.seal()?.listed())
    }
}

/// A memfd that nobody can resize and, as its [`Guarantee`] says, write. Mapped read-only.
///
/// Where the producer can still write ([`Guarantee::ProducerOnly`]), its bytes are good for numbers: whoever takes lengths
/// or offsets from them copies them first and checks the copy.
pub struct SealedMemfd {
    map: Mapping,
    fd: OwnedFd,
    guarantee: Guarantee,
    mapping_cache: Arc<MappingCache>,
    /// Where the writer had it, if the writer may still write there: kept for the writer alone.
    _exposed: Option<AliasedMapping>,
    /// Its place in [`OPEN`].
    listed: Option<Listed>,
}

/// The segments that this process has open: one that comes over a second connection, or that this process made, is not opened
/// twice. Locked without waiting: in a forked child a thread that is not there may have locked it for ever.
static OPEN: Mutex<BTreeMap<FileNumber, Weak<SealedMemfd>>> = Mutex::new(BTreeMap::new());

/// Device and inode.
type FileNumber = (u64, u64);

struct Listed {
    file: FileNumber,
    /// A forked child leaves the table as it is.
    owner: u32,
}

fn number_of(fd: impl AsFd) -> Option<FileNumber> {
    let found = fstat(fd).ok()?;
    Some((found.st_dev, found.st_ino))
}

impl Drop for SealedMemfd {
    fn drop(&mut self) {
        let Some(listed) = self.listed.take().filter(|listed| listed.owner == std::process::id()) else { return };
        let Ok(mut open) = OPEN.lock() else { return };
        // Another may have taken the place since the last user of this one was gone.
        if open.get(&listed.file).is_some_and(|known| std::ptr::eq(known.as_ptr(), self)) {
            open.remove(&listed.file);
        }
    }
}

impl SealedMemfd {
    /// Maps what another process published, after the checks of [`check_sealed`].
    ///
    /// # Errors
    /// `Refused` when it is no memfd of `len` bytes that keeps `guarantee`, `Io` when it cannot be mapped.
    pub fn open(fd: OwnedFd, len: usize, guarantee: Guarantee) -> Result<Self> {
        check_sealed(&fd, len, guarantee)?;
        let map = Mapping::new(fd.as_fd(), len, Access::Read)?;
        Ok(Self::over(map, move_above_select(fd), guarantee, None))
    }

    /// As [`open`](Self::open); the segment that there is where this process has it open.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_once(fd: OwnedFd, len: usize, guarantee: Guarantee) -> Result<Arc<Self>> {
        let known = number_of(&fd).and_then(|file| OPEN.try_lock().ok()?.get(&file)?.upgrade());
        match known.filter(|known| known.guarantee == guarantee && known.map.len() == len) {
            Some(known) => Ok(known),
            None => Ok(Self::open(fd, len, guarantee)?.listed()),
        }
    }

    fn over(map: Mapping, fd: OwnedFd, guarantee: Guarantee, exposed: Option<AliasedMapping>) -> Self {
        Self { map, fd, guarantee, mapping_cache: Arc::default(), _exposed: exposed, listed: None }
    }

    /// From now on [`open_once`](Self::open_once) finds it.
    pub(crate) fn listed(mut self) -> Arc<Self> {
        self.listed = number_of(&self.fd).map(|file| Listed { file, owner: std::process::id() });
        let this = Arc::new(self);
        if let (Some(listed), Ok(mut open)) = (&this.listed, OPEN.try_lock()) {
            open.insert(listed.file, Arc::downgrade(&this));
        }
        this
    }

    pub(crate) fn mapping_cache(&self) -> &Arc<MappingCache> {
        &self.mapping_cache
    }

    /// What its reader can rely on.
    pub fn guarantee(&self) -> Guarantee {
        self.guarantee
    }

    /// A part of it as a segment of its own, which keeps all of it mapped. `range` is in bytes.
    ///
    /// # Errors
    /// `Invalid` when the range is not inside or does not start at a multiple of [`ALIGNMENT`].
    pub fn slice(self: &Arc<Self>, range: Range<usize>) -> Result<Arc<dyn Segment>> {
        let range = range_within(range.start, range.len(), self.map.len())?;
        if !range.start.is_multiple_of(ALIGNMENT) {
            return Err(Error::invalid(format!("byte {} is not a multiple of {ALIGNMENT}", range.start)));
        }
        Ok(Arc::new(MemfdSlice { whole: Arc::clone(self), range }))
    }
}

impl Segment for SealedMemfd {
    fn len(&self) -> usize {
        self.map.len()
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Memfd
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(self.map.bytes())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}

pub(crate) struct MemfdSlice {
    whole: Arc<SealedMemfd>,
    range: Range<usize>,
}

impl MemfdSlice {
    pub(crate) fn mapping_cache(&self) -> &Arc<MappingCache> {
        &self.whole.mapping_cache
    }
}

impl Segment for MemfdSlice {
    fn len(&self) -> usize {
        self.range.len()
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Memfd
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn bytes(&self) -> Option<&[u8]> {
        self.whole.map.bytes().get(self.range.clone())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.whole.fd.as_fd())
    }

    fn fd_offset(&self) -> usize {
        self.range.start
    }
}
