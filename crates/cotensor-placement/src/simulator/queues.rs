use crate::device::Device;
use crate::memory::Memory;
use crate::time::Nanos;
use crate::trace::TensorIndex;
use std::collections::VecDeque;

/// The two copy queues of a device.
#[derive(Debug, Default)]
pub(super) struct Queues {
    /// The copy to the device that is under way, and its end.
    arriving: Option<(TensorIndex, Nanos)>,
    /// The copies from the device, and their ends.
    leaving: VecDeque<(TensorIndex, Nanos)>,
}

impl Queues {
    pub(super) fn is_copying(&self) -> bool {
        self.arriving.is_some()
    }

    pub(super) fn fetch(&mut self, tensor: TensorIndex, size: u64, now: Nanos, device: &Device) {
        self.arriving = Some((tensor, now + device.copy_ns(size)));
    }

    pub(super) fn write_back(&mut self, tensor: TensorIndex, size: u64, now: Nanos, device: &Device) {
        let start = self.leaving.back().map_or(now, |&(_, end)| end.max(now));
        self.leaving.push_back((tensor, start + device.copy_ns(size)));
    }

    /// When the next copy ends.
    pub(super) fn next_end(&self) -> Option<Nanos> {
        let ends = [self.arriving.map(|(_, end)| end), self.leaving.front().map(|&(_, end)| end)];
        ends.into_iter().flatten().min()
    }

    /// Ends the copies that are due.
    pub(super) fn end_due(&mut self, now: Nanos, memory: &mut Memory) {
        while let Some((tensor, _)) = self.leaving.pop_front_if(|(_, end)| *end <= now) {
            memory.left(tensor);
        }
        if let Some((tensor, _)) = self.arriving.take_if(|(_, end)| *end <= now) {
            memory.landed(tensor);
        }
    }
}
