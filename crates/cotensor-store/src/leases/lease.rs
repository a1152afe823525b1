use crate::leases::Record;
use crate::leases::Released;
use crate::{BlobSpec, CopyReason, Holder, Key, Retention, TensorId, TensorSpec};
use cotensor_core::{ContentHash, DType, Device, Error, ErrorKind, Kind, Layout, Result, Segment, Slice, Space};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// One holder's claim on a tensor: the tensor stays while the lease lives.
pub struct Lease {
    pub(crate) record: Arc<Record>,
    pub(crate) holder: u32,
    /// Another way to look at the same bytes, where one was asked for.
    pub(crate) look: Option<Box<Look>>,
}

/// A layout other than the tensor's own, and what the value is when looked at so.
#[derive(Clone)]
pub(crate) struct Look {
    pub(crate) layout: Layout,
    pub(crate) identity: ContentHash,
}

impl Lease {
    /// Which version of which tensor.
    pub fn id(&self) -> TensorId {
        self.record.id
    }

    /// The name it was published under.
    pub fn name(&self) -> &str {
        self.record.name()
    }

    /// How the elements lie in the segment.
    pub fn layout(&self) -> &Layout {
        self.look.as_ref().map_or(&self.record.layout, |look| &look.layout)
    }

    /// Dimensions, in elements.
    pub fn shape(&self) -> &[usize] {
        self.layout().shape()
    }

    /// What was published.
    pub fn spec(&self) -> TensorSpec {
        self.record.spec()
    }

    /// Whether it was published to stay when nobody leases it.
    pub fn is_cached(&self) -> bool {
        matches!(self.record.retention, Retention::Cached { .. })
    }

    /// The claim whose result it is part of.
    pub fn key(&self) -> Option<Key> {
        self.record.key()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.layout().dtype()
    }

    /// What it means.
    pub fn kind(&self) -> Kind {
        self.record.kind
    }

    /// Which encoder made it, when one did.
    pub fn space(&self) -> Option<Space> {
        self.record.space()
    }

    /// Who made it.
    pub fn producer(&self) -> &str {
        self.record.producer()
    }

    /// The holder's name.
    pub fn holder(&self) -> Arc<str> {
        self.record.home.upgrade().map_or_else(|| Arc::from("?"), |home| home.holder_name(self.holder))
    }

    /// Who leases it in this process, and how often, by name.
    pub fn holders(&self) -> BTreeMap<Arc<str>, u32> {
        let home = self.record.home.upgrade();
        let name = |holder| home.as_ref().map_or_else(|| Arc::from("?"), |home| home.holder_name(holder));
        self.record.holders().into_iter().map(|(holder, count)| (name(holder), count)).collect()
    }

    /// The allocation. Borrowed from the lease: whoever kept it longer would use memory that no budget counts.
    pub fn segment(&self) -> &dyn Segment {
        &*self.record.segment
    }

    /// The bytes from the first element to the end of the last, where the host can address them.
    /// For a strided tensor that includes the gaps.
    pub fn bytes(&self) -> Option<&[u8]> {
        spanned(&self.record, self.layout())
    }

    /// The bytes that [`bytes`](Self::bytes) gives.
    ///
    /// # Errors
    /// `Unsupported` where the host cannot address them, as on a device; [`copy_to_host`](Self::copy_to_host) copies them.
    pub fn host_bytes(&self) -> Result<&[u8]> {
        self.record
            .segment
            .host_bytes()
            .map(|bytes| &bytes[self.layout().byte_range()])
            .map_err(|error| self.named(error))
    }

    /// A copy of the bytes from the first element to the end of the last. The copy is counted as
    /// [`CopyReason::DeviceTransfer`].
    ///
    /// # Errors
    /// `Unsupported` where the host cannot read the memory.
    pub fn copy_to_host(&self) -> Result<Vec<u8>> {
        let range = self.layout().byte_range();
        let mut copy = vec![0; range.len()];
        self.record.segment.read_at(range.start, &mut copy).map_err(|error| self.named(error))?;
        if let Some(home) = self.record.home.upgrade() {
            home.count_copy(self.name(), CopyReason::DeviceTransfer, copy.len());
        }
        Ok(copy)
    }

    fn named(&self, error: Error) -> Error {
        error.in_field(self.name())
    }

    /// The device whose memory holds the tensor.
    pub fn device(&self) -> Device {
        self.record.device()
    }

    /// The elements as numbers, where they lie.
    ///
    /// # Errors
    /// `Invalid` when `T` is not the element type's size or the tensor is strided, `Unsupported` on a device.
    pub fn typed<T: bytemuck::AnyBitPattern>(&self) -> Result<&[T]> {
        typed(&self.record, self.layout())
    }

    /// A window on the tensor. No byte is copied; the view keeps the tensor leased.
    ///
    /// # Errors
    /// `Invalid` when a slice is out of bounds.
    pub fn view(&self, slices: &[Slice]) -> Result<TensorView> {
        Ok(TensorView { layout: self.layout().view(slices)?, parent: Arc::new(self.try_clone()?) })
    }

    /// What the value is: how it was made where that is known, else its content, and always its dtype and shape.
    /// Equal identities are equal values.
    pub fn identity(&self) -> ContentHash {
        self.look.as_ref().map_or_else(|| self.record.identity(), |look| look.identity)
    }

    /// Whether it is its process's alone: unlisted, and in no store that others see.
    pub fn is_private(&self) -> bool {
        self.record.is_private()
    }

    /// Whether both are leases of one store's, and of the same tensor.
    pub fn is_of_record(&self, other: &Lease) -> bool {
        Arc::ptr_eq(&self.record, &other.record)
    }

    /// Another lease of the same holder on the same bytes, looked at with the dtype and shape of `content`, which they
    /// are known to be.
    ///
    /// # Errors
    /// `Invalid` when `content` has another size.
    pub fn view_as(&self, content: &BlobSpec) -> Result<Lease> {
        let layout = Layout::contiguous(content.dtype, &content.shape)?;
        let (asked, held) = (layout.size_bytes(), self.record.layout.size_bytes());
        if asked != held {
            return Err(Error::invalid(format!("{} has {held} bytes, asked for as {asked}", self.name())));
        }
        let mut lease = self.try_clone()?;
        let layout = layout.moved(self.record.layout.offset_bytes())?;
        lease.look = (layout != self.record.layout).then(|| Box::new(Look { layout, identity: content.identity() }));
        Ok(lease)
    }

    /// Another lease of the same holder.
    ///
    /// # Errors
    /// Never while this lease lives; the signature leaves room for stores across processes.
    pub fn try_clone(&self) -> Result<Lease> {
        self.lease_as(self.holder)
    }

    /// A lease of the same version for another holder of the same store.
    ///
    /// # Errors
    /// As [`try_clone`](Lease::try_clone).
    pub fn lease_for(&self, holder: &Holder) -> Result<Lease> {
        self.lease_as(holder.id)
    }

    fn lease_as(&self, holder: u32) -> Result<Lease> {
        let mut lease = Lease::take(&self.record, holder)
            .ok_or_else(|| Error::new(ErrorKind::Conflict, format!("{} is being freed", self.name())))?;
        lease.look.clone_from(&self.look);
        Ok(lease)
    }

    /// A lease for `holder` unless the tensor is being freed.
    pub(crate) fn take(record: &Arc<Record>, holder: u32) -> Option<Lease> {
        // Counted first: a failed attempt need not keep alive, for a moment, what an eviction has just closed.
        record.leases.acquire(holder).then(|| Lease { record: Arc::clone(record), holder, look: None })
    }

    /// Like [`take`](Lease::take) for a lookup.
    pub(crate) fn find(record: &Arc<Record>, holder: u32) -> Option<Lease> {
        record.leases.find(holder).then(|| Lease { record: Arc::clone(record), holder, look: None })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let last = self.record.leases.release(self.holder) == Released::Last;
        if last
            && !self.record.is_private()
            && !self.record.kept.load(std::sync::atomic::Ordering::SeqCst)
            && let Some(home) = self.record.home.upgrade()
        {
            home.release(&self.record);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} {} {:?} by {})", self.name(), self.dtype(), self.shape(), self.holder())
    }
}

/// A bounds-checked window on a leased tensor.
#[derive(Clone, Debug)]
pub struct TensorView {
    parent: Arc<Lease>,
    layout: Layout,
}

impl TensorView {
    /// How the window's elements lie in the segment.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Dimensions, in elements.
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// The tensor.
    pub fn parent(&self) -> &Lease {
        &self.parent
    }

    /// A window on the window.
    ///
    /// # Errors
    /// `Invalid` when a slice is out of bounds.
    pub fn view(&self, slices: &[Slice]) -> Result<TensorView> {
        Ok(TensorView { layout: self.layout.view(slices)?, parent: Arc::clone(&self.parent) })
    }

    /// The bytes from the first element to the end of the last, gaps included.
    pub fn bytes(&self) -> Option<&[u8]> {
        spanned(&self.parent.record, &self.layout)
    }

    /// The elements as numbers, when they lie without gaps.
    ///
    /// # Errors
    /// As [`Lease::typed`].
    pub fn typed<T: bytemuck::AnyBitPattern>(&self) -> Result<&[T]> {
        typed(&self.parent.record, &self.layout)
    }
}

fn spanned<'a>(record: &'a Record, layout: &Layout) -> Option<&'a [u8]> {
    record.segment.bytes()?.get(layout.byte_range())
}

fn typed<'a, T: bytemuck::AnyBitPattern>(record: &'a Record, layout: &Layout) -> Result<&'a [T]> {
    let name = record.name();
    if size_of::<T>() != layout.dtype().size_bytes() {
        return Err(Error::invalid(format!(
            "{name} holds {}, asked for elements of {} bytes",
            layout.dtype(),
            size_of::<T>()
        )));
    }
    if !layout.is_contiguous() {
        return Err(Error::invalid(format!("{name} is strided; its elements do not lie side by side")));
    }
    let bytes = record.segment.host_bytes().map_err(|error| error.in_field(name))?;
    let bytes = &bytes[layout.byte_range()];
    bytemuck::try_cast_slice(bytes).map_err(|error| Error::invalid(format!("{name}: {error}")))
}
