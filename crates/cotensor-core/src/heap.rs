use crate::{ALIGNMENT, Device, Error, ErrorKind, Memory, MemoryKind, Result, Segment, SegmentMut, padded, size};
use std::ops::Range;
use std::sync::Arc;

/// Memory on the heap of the process. Threads share it, processes do not.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapMemory;

impl Memory for HeapMemory {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Heap
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn reserve(&self, len: usize) -> Result<Box<dyn SegmentMut>> {
        // The additional bytes allow an aligned start without an unsafe allocation.
        let capacity = padded(len)? + ALIGNMENT;
        let mut buffer = Vec::new();
        buffer
            .try_reserve_exact(capacity)
            .map_err(|_| Error::new(ErrorKind::Io, format!("the heap has no room for {}", size(len as u64))))?;
        buffer.resize(capacity, 0);
        let start = buffer.as_ptr().align_offset(ALIGNMENT);
        Ok(Box::new(HeapSegment { used: start..start + len, buffer }))
    }
}

struct HeapSegment {
    buffer: Vec<u8>,
    used: Range<usize>,
}

impl SegmentMut for HeapSegment {
    fn len(&self) -> usize {
        self.used.len()
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(&self.buffer[self.used.clone()])
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.buffer[self.used.clone()])
    }

    fn freeze(self: Box<Self>) -> Result<Arc<dyn Segment>> {
        Ok(Arc::new(*self))
    }
}

impl Segment for HeapSegment {
    fn len(&self) -> usize {
        self.used.len()
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Heap
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(&self.buffer[self.used.clone()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_memory_conforms() {
        crate::testing::conformance(&HeapMemory);
    }

    #[test]
    fn impossible_lengths_are_refused() {
        assert!(HeapMemory.reserve(usize::MAX).is_err());
    }
}
