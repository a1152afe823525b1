//! Reports changes of the store: to clients through the shared index, and to the supervisor.

use super::index::Slots;
use super::orphans::Orphans;
use super::segment::{file_bytes, file_of};
use super::spill::SpillTable;
use cotensor_client::protocol::Spec;
use cotensor_core::sync::lock;
use cotensor_core::{Error, MemoryKind, Result};
use cotensor_store::backend::Record;
use cotensor_store::{Clock, Key, SpilledSegment, StoreObserver, TensorId};
use cotensor_supervisor::{Entry, Event, SegmentFile, SupervisorLink};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The store's observer.
pub(crate) struct StoreEvents {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) slots: Slots,
    /// The link to the supervisor; none for a daemon inside another program.
    pub(crate) link: Option<Arc<SupervisorLink>>,
    /// The files of spilled segments, with a folder for them.
    pub(crate) spilled: Option<Arc<Mutex<SpillTable>>>,
    /// Leases, slabs and claims of a former server whose sessions have not resumed.
    pub(crate) orphans: Mutex<Orphans>,
}

impl StoreObserver for StoreEvents {
    fn on_publish(&self, record: &Record) {
        self.slots.invalidate(record.id().name_id);
        if let Some(link) = &self.link
            && let Err(error) = record_published(link, record)
        {
            tracing::error!("{} was not recorded and ends with this server: {error}", record.name());
        }
    }

    fn on_unlist(&self, record: &Record) {
        self.slots.invalidate(record.id().name_id);
        self.record(Event::Unlisted(record.id().into()));
    }

    fn on_free(&self, record: &Record) {
        self.slots.on_free(record);
        if let Some(link) = &self.link {
            link.record_without_segment(Event::Freed(record.id().into()), record.segment().fd());
        }
    }

    fn on_left(&self, record: &Record, since: Duration) {
        if let Ok(at_ns) = u64::try_from(since.as_nanos()) {
            self.record(Event::Left { id: record.id().into(), at_ns });
        }
    }

    fn on_spill(&self, record: &Record, spilled: &dyn SpilledSegment) {
        self.slots.on_free(record);
        let file = self.spilled.as_ref().and_then(|files| lock(files).file(spilled.number()));
        if let (Some(link), Some(file)) = (&self.link, file) {
            link.record_without_segment(Event::Spilled { id: record.id().into(), file }, record.segment().fd());
        }
    }

    fn on_spilled_free(&self, id: TensorId) {
        self.record(Event::Freed(id.into()));
    }

    fn on_abandon(&self, key: &Key) {
        self.record(Event::Abandoned(key.0.to_string()));
    }

    fn on_results(&self, key: &Key, results: &[TensorId]) {
        let results = results.iter().map(|id| (*id).into()).collect();
        self.record(Event::Finished { key: key.0.to_string(), results });
    }

    fn retained_memory(&self) -> Option<String> {
        self.orphans().reason(self.clock.now())
    }
}

impl StoreEvents {
    pub(crate) fn record(&self, event: Event) {
        if let Some(link) = &self.link {
            link.record(event);
        }
    }

    pub(crate) fn orphans(&self) -> MutexGuard<'_, Orphans> {
        lock(&self.orphans)
    }
}

/// Reports a published tensor and, with the first tensor of a segment, the segment's descriptor.
fn record_published(link: &SupervisorLink, record: &Record) -> Result<()> {
    let segment = record.segment();
    let fd = segment.fd().ok_or_else(|| Error::unsupported("this segment has no descriptor"))?;
    let entry = Entry {
        id: record.id().into(),
        spec: Spec::from(&record.spec()),
        segment: 0,
        offset: record.layout().offset_bytes() + segment.fd_offset(),
        key: record.key().map(|key| key.0.to_string()),
        versions: record.id().version,
        current: true,
        removed: false,
        spilled: None,
        created_ns: u64::try_from(record.created().as_nanos()).ok(),
        left_ns: None,
    };
    link.record_published(entry, fd, || {
        let file = file_of(&**segment).ok_or_else(|| Error::unsupported("this segment is not the daemon's"))?;
        let slab = segment.kind() == MemoryKind::Slab;
        Ok(SegmentFile { bytes: file_bytes(&**segment) as u64, slab, device: segment.device(), file })
    })
}
