use crate::trace::TensorIndex;
use cotensor_core::ContentHash;

/// What to do in each period of a program, for one device.
///
/// A plan covers a cycle of one or more periods and repeats. A step is an operation of the cycle: step s is operation
/// s mod [`Plan::operations`] of its period.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Operations in a period.
    pub operations: usize,
    /// Periods in the cycle, at least 1.
    pub periods: usize,
    /// Tensors that never leave the device.
    pub residents: Vec<TensorIndex>,
    /// Copies to the device in their order, which is the order of need.
    pub prefetches: Vec<Prefetch>,
    /// Tensors that leave the device, by the step after which they leave.
    pub evictions: Vec<Eviction>,
    /// Operations of a period that run on the host.
    pub on_cpu: Vec<usize>,
    /// Expected time of a period, in nanoseconds.
    pub period_ns: f64,
}

/// A copy to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// The tensor.
    pub tensor: TensorIndex,
    /// The step that needs the tensor.
    pub step: usize,
    /// The copy may start when the step this many steps before has ended; at least 1. Before that there is no memory.
    pub lead: usize,
    /// Expected start of the copy, in nanoseconds since the start of the cycle. Negative: in the cycle before.
    pub start_ns: i64,
}

/// A tensor that leaves the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The tensor.
    pub tensor: TensorIndex,
    /// The step after which it leaves.
    pub step: usize,
}

impl Plan {
    /// A hash of everything that the plan decides. Equal traces and devices give equal plans with equal hashes, in every
    /// process and on every machine.
    pub fn hash(&self) -> ContentHash {
        let numbers = |numbers: &mut dyn Iterator<Item = usize>, bytes: &mut Vec<u8>| {
            let start = bytes.len();
            numbers.for_each(|number| bytes.extend((number as u64).to_le_bytes()));
            bytes.extend(((bytes.len() - start) as u64).to_le_bytes());
        };
        let mut bytes = Vec::new();
        numbers(&mut [self.operations, self.periods].into_iter(), &mut bytes);
        numbers(&mut self.residents.iter().copied(), &mut bytes);
        numbers(&mut self.prefetches.iter().flat_map(|copy| [copy.tensor, copy.step, copy.lead]), &mut bytes);
        numbers(&mut self.evictions.iter().flat_map(|eviction| [eviction.tensor, eviction.step]), &mut bytes);
        numbers(&mut self.on_cpu.iter().copied(), &mut bytes);
        ContentHash::of(&bytes)
    }

    /// Steps in the cycle.
    pub fn steps(&self) -> usize {
        self.operations * self.periods
    }
}
