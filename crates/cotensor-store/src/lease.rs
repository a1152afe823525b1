use crate::budget::Charge;
use crate::count::Released;
use crate::record::{Home, Record};
use crate::{Holder, Key, TensorId, TensorSpec};
use cotensor_core::{
    ContentHash, DType, Device, Error, ErrorKind, Kind, Layout, Result, Segment, SegmentMut, Slice, Space,
};
use std::fmt;
use std::sync::{Arc, Weak};

/// One holder's claim on a tensor: the tensor stays while the lease lives.
pub struct Lease {
    pub(crate) record: Arc<Record>,
    pub(crate) holder: u32,
    /// Another way to look at the same bytes, where one was asked for.
    pub(crate) layout: Option<Box<Layout>>,
}

impl Lease {
    /// Which version of which tensor.
    pub fn id(&self) -> TensorId {
        self.record.id
    }

    /// The name it was published under.
    pub fn name(&self) -> &str {
        &self.record.spec.name
    }

    /// How the elements lie in the segment.
    pub fn layout(&self) -> &Layout {
        self.layout.as_deref().unwrap_or(&self.record.layout)
    }

    /// Dimensions, in elements.
    pub fn shape(&self) -> &[usize] {
        self.layout().shape()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.layout().dtype()
    }

    /// What it means.
    pub fn kind(&self) -> Kind {
        self.record.spec.kind
    }

    /// Which encoder made it, when one did.
    pub fn space(&self) -> Option<Space> {
        self.record.spec.space
    }

    /// Who made it.
    pub fn producer(&self) -> &str {
        &self.record.spec.producer
    }

    /// The holder's name.
    pub fn holder(&self) -> Arc<str> {
        self.record.home.upgrade().map_or_else(|| Arc::from("?"), |home| home.holder_name(self.holder))
    }

    /// The allocation.
    pub fn segment(&self) -> &Arc<dyn Segment> {
        &self.record.segment
    }

    /// The bytes from the first element to the end of the last, where the host can address them.
    /// For a strided tensor that includes the gaps.
    pub fn bytes(&self) -> Option<&[u8]> {
        spanned(&self.record, self.layout())
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

    /// What the value is: how it was made where that is known, else its content. Equal identities are equal values.
    pub fn identity(&self) -> ContentHash {
        self.record.identity()
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
    pub fn another(&self, holder: &Holder) -> Result<Lease> {
        self.lease_as(holder.id)
    }

    fn lease_as(&self, holder: u32) -> Result<Lease> {
        let mut lease = Lease::take(&self.record, holder)
            .ok_or_else(|| Error::new(ErrorKind::Conflict, format!("{} is being freed", self.name())))?;
        lease.layout.clone_from(&self.layout);
        Ok(lease)
    }

    /// A lease for `holder` unless the tensor is being freed.
    pub(crate) fn take(record: &Arc<Record>, holder: u32) -> Option<Lease> {
        // Counted first: a failed attempt must not keep alive, for a moment, what an eviction has just closed.
        record.leases.acquire(holder).then(|| Lease { record: Arc::clone(record), holder, layout: None })
    }

    /// Like [`take`](Lease::take) for a lookup.
    pub(crate) fn find(record: &Arc<Record>, holder: u32) -> Option<Lease> {
        record.leases.find(holder).then(|| Lease { record: Arc::clone(record), holder, layout: None })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let last = self.record.leases.release(self.holder) == Released::Last;
        if last
            && !self.record.kept.load(std::sync::atomic::Ordering::SeqCst)
            && let Some(home) = self.record.home.upgrade()
        {
            home.forget(&self.record);
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
    let name = &record.spec.name;
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
    let bytes = spanned(record, layout).ok_or_else(|| {
        Error::unsupported(format!("{name} is on {}, the host cannot address it", record.segment.device()))
    })?;
    bytemuck::try_cast_slice(bytes).map_err(|error| Error::invalid(format!("{name}: {error}")))
}

/// Memory that one holder writes before anybody sees it. Dropping it gives the memory back.
pub struct Reservation {
    pub(crate) spec: TensorSpec,
    pub(crate) layout: Layout,
    pub(crate) segment: Box<dyn SegmentMut>,
    pub(crate) charge: Arc<Charge>,
    pub(crate) holder: Holder,
    pub(crate) private: bool,
    pub(crate) device: Device,
    pub(crate) home: Arc<dyn Home>,
}

impl Reservation {
    /// How the elements lie: row-major from the start.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where it lies.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The bytes so far, where the host can address them.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.segment.bytes()
    }

    /// The bytes for writing in place, where the host can address them.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.segment.bytes_mut()
    }

    /// Copies `bytes` to the start of the tensor.
    ///
    /// # Errors
    /// `Invalid` when they do not fit.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.segment.write_at(0, bytes)
    }

    /// Makes the tensor immutable and visible under its name, and leases it to its holder.
    ///
    /// # Errors
    /// `Io` when the memory cannot be sealed.
    pub fn publish(self) -> Result<Lease> {
        let home = Arc::clone(&self.home);
        home.publish(self, None)
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} {:?})", self.spec.name, self.layout)
    }
}

/// The right and the duty to compute a claimed key. Dropping it hands both to one of those who wait.
pub struct Ticket {
    pub(crate) key: Key,
    pub(crate) home: Weak<dyn Home>,
    pub(crate) open: bool,
}

impl Ticket {
    /// What is to be computed.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Publishes the results; whoever waits gets them.
    ///
    /// # Errors
    /// As [`Reservation::publish`]; the claim is then given up.
    pub fn publish(mut self, results: Vec<Reservation>) -> Result<Vec<Lease>> {
        let home = self.home.upgrade().ok_or_else(|| Error::new(ErrorKind::Conflict, "the store is closed"))?;
        let leases: Vec<Lease> =
            results.into_iter().map(|result| home.publish(result, Some(self.key))).collect::<Result<_>>()?;
        self.finish(&leases);
        Ok(leases)
    }

    /// Makes tensors that are published already the claim's results.
    pub(crate) fn finish(&mut self, leases: &[Lease]) {
        if let Some(home) = self.home.upgrade() {
            self.open = false;
            home.finish(self.key, leases.iter().map(|lease| Arc::downgrade(&lease.record)).collect());
        }
    }

    /// Gives the claim up: the result stays the caller's own.
    pub fn decline(self) {}
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.open
            && let Some(home) = self.home.upgrade()
        {
            home.abandon(self.key);
        }
    }
}
