//! The parts of a request for blobs. Each blob exists once on a device; the new blobs of a request are packed into one segment.

use crate::budget::TensorCharge;
use crate::types::check_metadata;
use crate::{BlobSpec, Holder, Key, Lease, Retention, TensorSpec, Ticket};
use cotensor_core::{ALIGNMENT, ContentHash, DType, Device, Error, Hasher, Kind, Layout, Result, TENSOR_BYTES_MAX};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// The most bytes of a name with a label.
const BLOB_NAME_BYTES_MAX: usize = 512;

/// A blob that this request provides.
pub(crate) struct Missing {
    pub(crate) ticket: Ticket,
    pub(crate) hash: ContentHash,
    pub(crate) name: String,
    /// Its first index in the request.
    pub(crate) index: usize,
    pub(crate) len: usize,
}

impl Missing {
    /// The blob of `spec`, which is the `index`th of the request and has `len` bytes.
    pub(crate) fn new(ticket: Ticket, hash: ContentHash, spec: &BlobSpec, index: usize, len: usize) -> Self {
        Self { ticket, hash, name: name_of(&hash, spec), index, len }
    }

    /// The description and the layout of the tensor that holds it at `range` of a segment. A blob that lies at no multiple of its elements'
    /// size is a tensor of bytes.
    pub(crate) fn tensor(
        &self,
        spec: &BlobSpec,
        range: &Range<usize>,
        recompute: Duration,
    ) -> Result<(TensorSpec, Layout)> {
        let aligned = range.start.is_multiple_of(spec.dtype.size_bytes());
        let (dtype, shape) = if aligned { (spec.dtype, spec.shape.clone()) } else { (DType::U8, vec![self.len]) };
        let layout = Layout::contiguous(dtype, &shape)?.moved(range.start)?;
        let listed = BlobSpec { dtype, shape, ..spec.clone() };
        let spec = TensorSpec {
            name: self.name.clone(),
            provenance: Some(listed.identity()),
            dtype,
            shape: listed.shape,
            device: listed.device,
            kind: Kind::Weight,
            space: None,
            producer: listed.producer,
            retention: Retention::Cached { recompute },
            keep_for: None,
            metadata: listed.metadata,
            members: None,
        };
        Ok((spec, layout))
    }
}

/// Each blob once, with its first index in the request and its length, in the order of the hashes. Requests claim in
/// that order, so that they cannot wait for each other in a circle.
///
/// # Errors
/// `Invalid` for a blob with two sizes, for two devices in one request, and for metadata that are too long.
pub(crate) fn distinct(specs: &[BlobSpec]) -> Result<BTreeMap<ContentHash, (usize, usize)>> {
    let mut wanted = BTreeMap::new();
    for (index, spec) in specs.iter().enumerate() {
        if spec.device != specs[0].device {
            let message = format!(
                "blobs on {} and on {} in one request; make one request for each device",
                specs[0].device, spec.device
            );
            return Err(Error::invalid(message).in_field("device"));
        }
        check_metadata(spec.metadata.as_deref())?;
        let len = Layout::contiguous(spec.dtype, &spec.shape)?.size_bytes();
        let (_, first) = *wanted.entry(spec.hash).or_insert((index, len));
        if first != len {
            return Err(Error::invalid(format!("blob {} has two sizes in one request", spec.hash.short())));
        }
    }
    Ok(wanted)
}

/// The lease of a blob, of the results of its computation.
pub(crate) fn only(mut leases: Vec<Lease>, hash: &ContentHash) -> Result<Lease> {
    leases.pop().ok_or_else(|| Error::not_found(format!("blob {} was freed", hash.short())))
}

/// The computation key of a blob on a device.
pub fn blob_key(hash: &ContentHash, device: Device) -> Key {
    let mut hasher = Hasher::new("cotensor weight v1");
    hasher.field(hash.as_bytes());
    if !device.is_host() {
        hasher.field(device.to_string().as_bytes());
    }
    Key(hasher.finish())
}

/// The name of a blob: its label and the start of its hash, so that contents do not become versions of one name. It has the
/// device as a suffix, unless that is the host.
fn name_of(hash: &ContentHash, spec: &BlobSpec) -> String {
    let label = &spec.label;
    let named = format!("weight/{label}/{}", hash.short());
    let name = if label.is_empty() || named.len() > BLOB_NAME_BYTES_MAX { format!("weight/{hash}") } else { named };
    if spec.device.is_host() { name } else { format!("{name}@{}", spec.device) }
}

/// The answer to a request that does not wait.
pub struct UploadPlan {
    /// The blobs that exist, with their indexes in the request.
    pub ready: Vec<(usize, Lease)>,
    /// Indexes of blobs that other callers provide now.
    pub pending: Vec<usize>,
    /// The blobs that the caller provides.
    pub pack: Option<BlobPack>,
}

/// Blobs that their caller provides in one segment. Dropping it passes them to other callers.
pub struct BlobPack {
    pub(crate) specs: Vec<BlobSpec>,
    pub(crate) missing: Vec<Missing>,
    pub(crate) ranges: Vec<Range<usize>>,
    pub(crate) bytes: usize,
    pub(crate) charges: Vec<TensorCharge>,
    pub(crate) holder: Holder,
}

impl BlobPack {
    /// The device of all its contents.
    pub fn device(&self) -> Device {
        self.specs.first().map(|spec| spec.device).unwrap_or_default()
    }

    /// Length of the segment, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Indexes in the request, with the byte ranges of the blobs in the segment.
    pub fn indexes(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.missing.iter().map(|each| each.index).zip(self.ranges.iter().cloned())
    }

    /// Hashes with the byte ranges of the blobs in the segment.
    pub fn hashes(&self) -> impl Iterator<Item = (&ContentHash, Range<usize>)> {
        self.missing.iter().map(|each| &each.hash).zip(self.ranges.iter().cloned())
    }

    /// The holder of the leases.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }
}

/// The byte ranges of blobs in one segment, at multiples of [`ALIGNMENT`], and the length of the segment.
pub(crate) fn packed(lens: impl IntoIterator<Item = usize>) -> Result<(Vec<Range<usize>>, usize)> {
    let mut ranges = Vec::new();
    let mut total = 0usize;
    for len in lens {
        let next = len.checked_next_multiple_of(ALIGNMENT).and_then(|padded| total.checked_add(padded));
        let next = next.filter(|&next| next as u64 <= TENSOR_BYTES_MAX && isize::try_from(next).is_ok());
        let too_many = || Error::invalid(format!("the blobs of one request exceed {TENSOR_BYTES_MAX} bytes"));
        // At most the padded sum, which is checked below.
        ranges.push(total..total.saturating_add(len));
        total = next.ok_or_else(too_many)?;
    }
    Ok((ranges, total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cotensor_core::ErrorKind;

    #[test]
    fn packing_pads_and_checks_overflow() {
        let (ranges, total) = packed([5, 0, 64, 65]).unwrap();
        assert_eq!((ranges, total), (vec![0..5, 64..64, 64..128, 128..193], 256));
        // As much as a tensor may have, or as this machine addresses.
        let max = usize::try_from(TENSOR_BYTES_MAX).unwrap_or(isize::MAX as usize / 64 * 64);
        assert_eq!(packed([max]).unwrap().1, max);
        for lens in [&[usize::MAX][..], &[usize::MAX - 62], &[max, 1], &[64, usize::MAX - 64 - 63]] {
            assert_eq!(packed(lens.iter().copied()).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
