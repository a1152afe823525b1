//! Memory that JavaScript owns.

use cotensor_core::sync::lock;
use cotensor_core::{Device, Memory, MemoryKind, Result, Segment, SegmentMut, padded};
use std::any::Any;
use std::sync::{Arc, Mutex};

/// The numbers of a store's segments.
///
/// JavaScript frees the memory of freed segments after each call, so that no JavaScript runs inside the store.
#[derive(Default)]
pub(crate) struct Segments(Mutex<Numbers>);

#[derive(Default)]
struct Numbers {
    latest: u64,
    freed: Vec<f64>,
}

impl Segments {
    /// The number of the latest segment; they count from 1.
    pub(crate) fn latest(&self) -> u64 {
        lock(&self.0).latest
    }

    /// Whether segments were freed since [`take_freed`](Self::take_freed).
    pub(crate) fn has_freed(&self) -> bool {
        !lock(&self.0).freed.is_empty()
    }

    /// The numbers of the segments that were freed since the last call.
    pub(crate) fn take_freed(&self) -> Vec<f64> {
        std::mem::take(&mut lock(&self.0).freed)
    }
}

/// The memory of one device.
pub(crate) struct ScriptMemory {
    pub(crate) device: Device,
    pub(crate) segments: Arc<Segments>,
}

impl Memory for ScriptMemory {
    fn kind(&self) -> MemoryKind {
        if self.device.is_host() { MemoryKind::Heap } else { MemoryKind::Device }
    }

    fn device(&self) -> Device {
        self.device
    }

    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        padded(len)?;
        let mut numbers = lock(&self.segments.0);
        numbers.latest += 1;
        let (number, segments) = (numbers.latest, Arc::clone(&self.segments));
        Ok(Box::new(ScriptSegment { number, len, kind: self.kind(), device: self.device, segments }))
    }
}

/// A segment whose bytes only JavaScript reaches.
pub(crate) struct ScriptSegment {
    pub(crate) number: u64,
    len: usize,
    kind: MemoryKind,
    device: Device,
    segments: Arc<Segments>,
}

impl Drop for ScriptSegment {
    fn drop(&mut self) {
        // Exact: there are fewer than 2^53 segments.
        lock(&self.segments.0).freed.push(self.number as f64);
    }
}

impl SegmentMut for ScriptSegment {
    fn len(&self) -> usize {
        self.len
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }

    fn freeze(self: Box<Self>) -> Result<Arc<dyn Segment>> {
        Ok(Arc::from(self as Box<dyn Segment>))
    }
}

impl Segment for ScriptSegment {
    fn len(&self) -> usize {
        self.len
    }

    fn kind(&self) -> MemoryKind {
        self.kind
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn device(&self) -> Device {
        self.device
    }

    fn bytes(&self) -> Option<&[u8]> {
        None
    }
}
