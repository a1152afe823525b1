//! Sealed memfds and parts of them.

use super::seal::{Guarantee, check_sealed};
use crate::mapping::{Access, AliasedMapping, Mapping, MappingCache, Windows};
use crate::process::{move_above_select, reopen_to_read};
use cotensor_core::{ALIGNMENT, Device, Error, MemoryKind, Result, Segment, range_within};
use rustix::fs::fstat;
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// A memfd that no process can resize and that no process can write, with the exception that its [`Guarantee`] names.
/// Mapped read-only.
///
/// With [`Guarantee::ProducerOnly`] the producer can still write the bytes. A reader that takes lengths or offsets from
/// them copies them first and checks the copy.
pub struct SealedMemfd {
    map: Mapping,
    /// See [`shared_bytes`].
    shared: OnceLock<Mapping>,
    pub(super) fd: OwnedFd,
    guarantee: Guarantee,
    mapping_cache: Arc<MappingCache>,
    /// For readers of parts, if it is a slab.
    windows: Windows,
    /// Keeps the address at which the producer wrote mapped as long as the segment.
    _aliased: Option<AliasedMapping>,
    registration: Option<Registration>,
}

/// The open segments of this process by file, so that a memfd that arrives again is not mapped again. A forked child
/// only tries the lock: a thread that does not exist in the child may hold it for ever.
static OPEN: Mutex<BTreeMap<FileNumber, Weak<SealedMemfd>>> = Mutex::new(BTreeMap::new());

/// Device and inode.
type FileNumber = (u64, u64);

/// An entry of [`OPEN`].
struct Registration {
    file: FileNumber,
    /// The process that added the entry. A forked child does not change the table.
    owner: u32,
}

fn file_number(fd: impl AsFd) -> Option<FileNumber> {
    let found = fstat(fd).ok()?;
    Some((found.st_dev, found.st_ino))
}

impl Drop for SealedMemfd {
    fn drop(&mut self) {
        let Some(registration) = self.registration.take().filter(|entry| entry.owner == std::process::id()) else {
            return;
        };
        let Ok(mut open) = OPEN.lock() else { return };
        // A newer segment may have replaced the entry since the last `Arc` of this one was dropped.
        if open.get(&registration.file).is_some_and(|known| std::ptr::eq(known.as_ptr(), self)) {
            open.remove(&registration.file);
        }
    }
}

impl SealedMemfd {
    /// Maps a memfd that another process published, after [`check_sealed`].
    ///
    /// # Errors
    /// `Refused` when it is not a memfd of `len` bytes that keeps `guarantee`, `Io` when it cannot be mapped.
    pub fn open(fd: OwnedFd, len: usize, guarantee: Guarantee) -> Result<Self> {
        check_sealed(&fd, len, guarantee)?;
        let map = Mapping::new(fd.as_fd(), len, Access::Read)?;
        Ok(Self::new(map, move_above_select(fd), guarantee))
    }

    /// Returns the segment that this process already has open for the same memfd, and otherwise [opens](Self::open) it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_once(fd: OwnedFd, len: usize, guarantee: Guarantee) -> Result<Arc<Self>> {
        let known = file_number(&fd).and_then(|file| OPEN.try_lock().ok()?.get(&file)?.upgrade());
        match known.filter(|known| known.guarantee == guarantee && known.map.len() == len) {
            Some(known) => Ok(known),
            None => Ok(Self::open(fd, len, guarantee)?.register()),
        }
    }

    pub(super) fn new(map: Mapping, fd: OwnedFd, guarantee: Guarantee) -> Self {
        Self {
            map,
            shared: OnceLock::new(),
            fd,
            guarantee,
            mapping_cache: Arc::default(),
            windows: Windows::default(),
            _aliased: None,
            registration: None,
        }
    }

    pub(super) fn with_aliased(self, aliased: AliasedMapping) -> Self {
        let mut this = self;
        this._aliased = Some(aliased);
        this
    }

    /// Lets [`open_once`](Self::open_once) find the segment.
    pub(crate) fn register(mut self) -> Arc<Self> {
        self.registration = file_number(&self.fd).map(|file| Registration { file, owner: std::process::id() });
        let this = Arc::new(self);
        if let (Some(registration), Ok(mut open)) = (&this.registration, OPEN.try_lock()) {
            open.insert(registration.file, Arc::downgrade(&this));
        }
        this
    }

    pub(crate) fn mapping_cache(&self) -> &Arc<MappingCache> {
        &self.mapping_cache
    }

    /// The windows and the length in bytes of a slab; `None` for other memory.
    pub(crate) fn windows(&self) -> Option<(&Windows, usize)> {
        (self.guarantee == Guarantee::ProducerOnly).then_some((&self.windows, self.map.len()))
    }

    /// The guarantee that the seals give.
    pub fn guarantee(&self) -> Guarantee {
        self.guarantee
    }

    /// The mapping of [`shared_bytes`].
    fn shared_map(&self) -> Result<&Mapping> {
        if let Some(map) = self.shared.get() {
            return Ok(map);
        }
        // A shared mapping of a descriptor that can write counts as a writable one, which Linux before 6.7 refuses for a
        // sealed memfd.
        let read_only = reopen_to_read(&self.fd)?;
        let map = Mapping::new(read_only.as_fd(), self.map.len(), Access::ReadShared)?;
        Ok(self.shared.get_or_init(|| map))
    }

    /// A part of the memfd as a segment, which keeps the whole memfd mapped. `range` is in bytes.
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

/// As [`Memory::import`](cotensor_core::Memory::import), for all host memory that processes share.
///
/// # Errors
/// As there.
pub(crate) fn import(fd: OwnedFd, len: usize, kind: MemoryKind) -> Result<Arc<dyn Segment>> {
    let guarantee = match kind {
        MemoryKind::Memfd => Guarantee::Immutable,
        MemoryKind::Slab => Guarantee::ProducerOnly,
        other => return Err(Error::unsupported(format!("{other} memory is not host memory that processes share"))),
    };
    Ok(SealedMemfd::open_once(fd, len, guarantee)?)
}

/// The memory that all processes share behind a segment, in a shared mapping of the whole memfd, and the offset of the
/// segment in it, in bytes. The mapping is made by the first call and lives as long as the memfd is open here.
///
/// It is for drivers that lock pages. From other mappings of this process, which are private, they get copies; where huge
/// pages are mapped privately, Linux does not come to an end (seen on 6.18 with `cudaHostRegister`).
///
/// # Errors
/// `Unsupported` for other memory than a sealed memfd: the pages of a slab change, and hold several tensors. `OverBudget`
/// when a limit of this process is reached, `Io` when the memory cannot be mapped.
pub fn shared_bytes(segment: &dyn Segment) -> Result<(&[u8], usize)> {
    let any = segment.as_any();
    let slice = any.and_then(|any| any.downcast_ref::<MemfdSlice>()).map(MemfdSlice::whole);
    let whole = slice.or_else(|| any.and_then(|any| any.downcast_ref::<SealedMemfd>()));
    let whole = whole.filter(|whole| whole.guarantee == Guarantee::Immutable);
    let whole =
        whole.ok_or_else(|| Error::unsupported(format!("{} memory has no pages of its own", segment.kind())))?;
    Ok((whole.shared_map()?.bytes(), segment.fd_offset()))
}

/// A part of a sealed memfd.
pub(crate) struct MemfdSlice {
    whole: Arc<SealedMemfd>,
    range: Range<usize>,
}

impl MemfdSlice {
    pub(crate) fn whole(&self) -> &SealedMemfd {
        &self.whole
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
