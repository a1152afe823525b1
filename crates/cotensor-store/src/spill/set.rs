//! The state of spilled tensors.

use super::{SpillStorage, SpilledSegment};
use crate::budget::SpilledCharge;
use crate::leases::Record;
use crate::{Key, TensorId, TensorSpec};
use cotensor_core::sync::lock;
use cotensor_core::{Device, Error, ErrorKind, Layout, Result, Segment};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// A tensor on spill storage.
#[derive(Clone, Debug)]
pub struct SpilledTensor {
    /// The identity of the version.
    pub id: TensorId,
    /// The description under which it was published.
    pub spec: TensorSpec,
    /// How its elements lie in the spilled segment.
    pub layout: Layout,
    /// The computation whose result it is.
    pub key: Option<Key>,
    /// The time of publication, by the store's clock; `None` if it is unknown.
    pub created: Option<Duration>,
    /// For a tensor of a former store, since when it had no lease, if that is known.
    pub left: Option<Duration>,
}

impl SpilledTensor {
    pub(crate) fn of(record: &Record) -> Result<Self> {
        let layout = record.layout.moved(record.layout.offset_bytes() + offset_in_file(&*record.segment))?;
        let (id, spec, key, created) = (record.id, record.spec(), record.key(), Some(record.created));
        Ok(Self { id, spec, layout, key, created, left: None })
    }
}

/// The offset of a host segment in its file. A copy of a device's segment starts at zero.
#[cfg(unix)]
fn offset_in_file(segment: &dyn Segment) -> usize {
    if segment.device().is_host() { segment.fd_offset() } else { 0 }
}

#[cfg(not(unix))]
fn offset_in_file(_: &dyn Segment) -> usize {
    0
}

/// A spilled tensor in a list.
#[derive(Clone, Debug)]
pub struct SpilledTensorInfo {
    /// The tensor.
    pub tensor: SpilledTensor,
    /// Time since it was published.
    pub age: Duration,
    /// The reason why it cannot be read, if it cannot. Only publishing or removing its name ends that.
    pub lost: Option<String>,
}

/// The tensors of one spilled segment. The table of names holds it; the segment is removed with the last of them.
pub(crate) struct SpilledSet {
    /// None once the tensors are in memory again.
    segment: Mutex<Option<Arc<dyn SpilledSegment>>>,
    pub(crate) bytes: u64,
    pub(crate) tensors: Vec<SpilledTensor>,
    _metadata: SpilledCharge,
    /// The error of the last attempt to read them.
    lost: Mutex<Option<String>>,
}

impl SpilledSet {
    pub(crate) fn new(segment: Arc<dyn SpilledSegment>, tensors: Vec<SpilledTensor>, metadata: SpilledCharge) -> Self {
        let (bytes, segment) = (segment.bytes(), Mutex::new(Some(segment)));
        Self { segment, bytes, tensors, _metadata: metadata, lost: Mutex::default() }
    }

    pub(crate) fn tensor(&self, id: TensorId) -> Option<&SpilledTensor> {
        self.tensors.iter().find(|tensor| tensor.id == id)
    }

    /// The name of its first tensor, for messages.
    pub(crate) fn name(&self) -> &str {
        self.tensors.first().map(|tensor| tensor.spec.name.as_str()).unwrap_or_default()
    }

    /// The device whose memory the tensors need.
    pub(crate) fn device(&self) -> Device {
        self.tensors.first().map(|tensor| tensor.spec.device).unwrap_or_default()
    }

    pub(crate) fn segment(&self) -> MutexGuard<'_, Option<Arc<dyn SpilledSegment>>> {
        lock(&self.segment)
    }

    /// The reason why it cannot be read. While another thread reads it, that is unknown.
    pub(crate) fn lost(&self) -> Option<String> {
        let known = lock(&self.lost).clone();
        known.or_else(|| self.segment.try_lock().ok()?.as_ref()?.check().err().map(|error| error.to_string()))
    }

    /// Whether an attempt to read a set failed because its content is lost. After another error another attempt may succeed.
    pub(crate) fn is_lost(error: &Error) -> bool {
        matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound)
    }

    /// Notes the error of an attempt to read it, unless another attempt may succeed.
    pub(crate) fn note_lost(&self, error: &Error) {
        if Self::is_lost(error) {
            *lock(&self.lost) = Some(error.to_string());
        }
    }
}

/// The state of a store that spills.
pub(crate) struct SpillState {
    pub(crate) storage: Arc<dyn SpillStorage>,
    /// One thread spills at a time: two would write the same segment.
    spilling: Mutex<()>,
    /// The results of computations of which at least one is spilled.
    results: Mutex<HashMap<Key, Vec<TensorId>>>,
}

impl SpillState {
    pub(crate) fn new(storage: Arc<dyn SpillStorage>) -> Self {
        Self { storage, spilling: Mutex::default(), results: Mutex::default() }
    }

    pub(crate) fn begin(&self) -> MutexGuard<'_, ()> {
        lock(&self.spilling)
    }

    pub(crate) fn results(&self) -> MutexGuard<'_, HashMap<Key, Vec<TensorId>>> {
        lock(&self.results)
    }

    /// Removes these results, unless they were computed again.
    pub(crate) fn forget_results(&self, key: &Key, ids: &[TensorId]) {
        let mut results = self.results();
        if results.get(key).is_some_and(|known| known == ids) {
            results.remove(key);
        }
    }

    /// Removes the results that `id` is one of, unless they were computed again.
    pub(crate) fn forget_result(&self, key: &Key, id: TensorId) {
        let mut results = self.results();
        if results.get(key).is_some_and(|ids| ids.contains(&id)) {
            results.remove(key);
        }
    }
}

/// The state of a version that cannot be leased.
pub(crate) enum Location {
    /// It does not exist.
    Absent,
    /// Its record is closed: it is about to be freed or spilled.
    Closing,
    Spilled(Arc<SpilledSet>),
}
