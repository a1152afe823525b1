//! Leases.

use crate::leases::{Record, Released};
use crate::{BlobSpec, CopyReason, Holder, Key, Retention, TensorId, TensorSpec};
use cotensor_core::{ContentHash, DType, Device, Error, ErrorKind, Kind, Layout, Result, Segment, Space};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A lease of one holder on a tensor: the tensor stays while the lease exists.
pub struct Lease {
    pub(crate) record: Arc<Record>,
    pub(crate) holder: Holder,
    /// Another dtype and shape of the same bytes, made by [`view_as`](Lease::view_as).
    pub(crate) reinterpreted: Option<Box<Reinterpreted>>,
}

/// A layout other than the tensor's own, and the identity of the value under that layout.
#[derive(Clone)]
pub(crate) struct Reinterpreted {
    pub(crate) layout: Layout,
    pub(crate) identity: ContentHash,
}

impl Lease {
    /// The identity of the version.
    pub fn id(&self) -> TensorId {
        self.record.id
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.record.name()
    }

    /// How the elements lie in the segment.
    pub fn layout(&self) -> &Layout {
        self.reinterpreted.as_ref().map_or(&self.record.layout, |reinterpreted| &reinterpreted.layout)
    }

    /// Dimensions, in elements.
    pub fn shape(&self) -> &[usize] {
        self.layout().shape()
    }

    /// The description under which it was published.
    pub fn spec(&self) -> TensorSpec {
        self.record.spec()
    }

    /// Whether the tensor was published as [`Retention::Cached`].
    pub fn is_cached(&self) -> bool {
        matches!(self.record.retention, Retention::Cached { .. })
    }

    /// The longest time that the tensor stays without leases.
    pub fn keep_for(&self) -> Option<Duration> {
        self.record.keep_for()
    }

    /// The computation whose result it is.
    pub fn key(&self) -> Option<Key> {
        self.record.key()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.layout().dtype()
    }

    /// The meaning of the tensor.
    pub fn kind(&self) -> Kind {
        self.record.kind
    }

    /// The publisher's metadata, a JSON object.
    pub fn metadata(&self) -> Option<&str> {
        self.record.metadata()
    }

    /// The encoder that made it, if one did.
    pub fn space(&self) -> Option<Space> {
        self.record.space()
    }

    /// The hash of the computation that made it, if the producer named one.
    pub fn provenance(&self) -> Option<ContentHash> {
        self.record.provenance()
    }

    /// The name of the producer.
    pub fn producer(&self) -> &str {
        self.record.producer()
    }

    /// The holder's name.
    pub fn holder(&self) -> Arc<str> {
        self.holder.clone().into()
    }

    /// The names of the holders in this process, with their numbers of leases.
    pub fn holders(&self) -> BTreeMap<Arc<str>, u32> {
        self.record.holders().into_iter().map(|(holder, count)| (holder.into(), count)).collect()
    }

    /// The memory. It is borrowed from the lease, because memory without a lease is in no budget.
    pub fn segment(&self) -> &dyn Segment {
        &*self.record.segment
    }

    /// The bytes from the first element to the end of the last, gaps included; `None` where the host cannot address
    /// them.
    pub fn bytes(&self) -> Option<&[u8]> {
        spanned(&self.record, self.layout())
    }

    /// The bytes that [`bytes`](Self::bytes) gives.
    ///
    /// # Errors
    /// `Unsupported` where the host cannot address them, as on a device; [`copy_to_host`](Self::copy_to_host) copies
    /// them.
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
        copied(&self.record, self.layout())
    }

    fn named(&self, error: Error) -> Error {
        error.in_field(self.name())
    }

    /// The device whose memory holds the tensor.
    pub fn device(&self) -> Device {
        self.record.device()
    }

    /// The elements as numbers, without a copy.
    ///
    /// # Errors
    /// `Invalid` when `T` is not the element type's size or the tensor is strided, `Unsupported` on a device.
    pub fn typed<T: bytemuck::AnyBitPattern>(&self) -> Result<&[T]> {
        typed(&self.record, self.layout())
    }

    /// The identity of the value: its provenance if that is known, else the hash of dtype, shape and content. Equal
    /// identities are equal values.
    pub fn identity(&self) -> ContentHash {
        let own = || self.record.identity();
        self.reinterpreted.as_ref().map_or_else(own, |reinterpreted| reinterpreted.identity)
    }

    /// Whether it is unlisted.
    pub fn is_private(&self) -> bool {
        self.record.is_private()
    }

    /// Whether both leases are on the same record of one store.
    pub fn is_of_record(&self, other: &Lease) -> bool {
        Arc::ptr_eq(&self.record, &other.record)
    }

    /// A lease of the same holder on the same bytes, with the dtype and shape of `blob`. The caller knows that the
    /// bytes are this blob.
    ///
    /// # Errors
    /// `Invalid` when `blob` has another size.
    pub fn view_as(&self, blob: &BlobSpec) -> Result<Lease> {
        let layout = Layout::contiguous(blob.dtype, &blob.shape)?;
        let (wanted, bytes) = (layout.size_bytes(), self.record.layout.size_bytes());
        if wanted != bytes {
            return Err(Error::invalid(format!("{} has {bytes} bytes, not {wanted}", self.name())));
        }
        let mut lease = self.try_clone()?;
        let layout = layout.moved(self.record.layout.offset_bytes())?;
        let is_other = layout != self.record.layout;
        lease.reinterpreted = is_other.then(|| Box::new(Reinterpreted { layout, identity: blob.identity() }));
        Ok(lease)
    }

    /// One more lease of the same holder.
    ///
    /// # Errors
    /// None while this lease exists; the signature leaves room for stores across processes.
    pub fn try_clone(&self) -> Result<Lease> {
        self.lease_for(&self.holder)
    }

    /// A lease of the same version for another holder of the same store.
    ///
    /// # Errors
    /// As [`try_clone`](Lease::try_clone).
    pub fn lease_for(&self, holder: &Holder) -> Result<Lease> {
        let mut lease = self
            .record
            .lease(holder)
            .ok_or_else(|| Error::new(ErrorKind::Conflict, format!("{} is being freed", self.name())))?;
        lease.reinterpreted.clone_from(&self.reinterpreted);
        Ok(lease)
    }

    fn new(record: &Arc<Record>, holder: &Holder) -> Self {
        Self { record: Arc::clone(record), holder: holder.clone(), reinterpreted: None }
    }
}

impl Record {
    /// A lease for `holder`; `None` once it is closed.
    pub fn lease(self: &Arc<Self>, holder: &Holder) -> Option<Lease> {
        // The count goes first: a failed attempt then never holds a record that an eviction has closed.
        self.leases.acquire(holder).then(|| Lease::new(self, holder))
    }

    /// As [`lease`](Record::lease) for a lookup, which counts as a hit.
    pub fn lease_on_lookup(self: &Arc<Self>, holder: &Holder) -> Option<Lease> {
        self.leases.acquire_on_lookup(holder).then(|| Lease::new(self, holder))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let last = self.record.leases.release(&self.holder) == Released::Last;
        if !last || self.record.is_private() {
            return;
        }
        let is_retained = self.record.is_retained();
        if (!is_retained || self.record.keep_for().is_some())
            && let Some(backend) = self.record.backend.upgrade()
        {
            if is_retained { backend.left(&self.record) } else { backend.release(&self.record) }
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} {} {:?} by {})", self.name(), self.dtype(), self.shape(), self.holder())
    }
}

pub(super) fn spanned<'a>(record: &'a Record, layout: &Layout) -> Option<&'a [u8]> {
    record.segment.bytes()?.get(layout.byte_range())
}

pub(super) fn copied(record: &Record, layout: &Layout) -> Result<Vec<u8>> {
    let range = layout.byte_range();
    let mut copy = vec![0; range.len()];
    record.segment.read_at(range.start, &mut copy).map_err(|error| error.in_field(record.name()))?;
    if let Some(backend) = record.backend.upgrade() {
        backend.count_copy(record.name(), CopyReason::DeviceTransfer, copy.len());
    }
    Ok(copy)
}

pub(super) fn typed<'a, T: bytemuck::AnyBitPattern>(record: &'a Record, layout: &Layout) -> Result<&'a [T]> {
    let name = record.name();
    if size_of::<T>() != layout.dtype().size_bytes() {
        return Err(Error::invalid(format!(
            "{name} has elements of type {}, not of {} bytes",
            layout.dtype(),
            size_of::<T>()
        )));
    }
    if !layout.is_contiguous() {
        return Err(Error::invalid(format!("{name} is strided; a slice needs contiguous elements")));
    }
    let bytes = record.segment.host_bytes().map_err(|error| error.in_field(name))?;
    let bytes = &bytes[layout.byte_range()];
    bytemuck::try_cast_slice(bytes).map_err(|error| Error::invalid(format!("{name}: {error}")))
}
