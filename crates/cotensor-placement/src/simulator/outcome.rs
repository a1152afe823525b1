use crate::time::Nanos;

/// What a simulation measured, without its first part.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Operations that ran.
    pub operations: usize,
    /// Time from the end of the first part to the end.
    pub elapsed_ns: Nanos,
    /// Time in which the next operation waited for its tensors.
    pub stall_ns: Nanos,
    /// Bytes copied to the device, and from it.
    pub copied_bytes: u64,
    /// Bytes copied from the device.
    pub returned_bytes: u64,
    /// The most memory used at once, in bytes, workspace included; of the whole simulation.
    pub peak_bytes: u64,
    /// Uses of tensors that were on the device or on their way when the operation arrived, and all uses on the device.
    pub hits: u64,
    /// All uses of tensors by operations on the device.
    pub uses: u64,
    /// Copies and operations that found no memory at first.
    pub out_of_memory: u64,
    /// Used memory over time, at each change, up to a limit of samples.
    pub timeline: Vec<Sample>,
}

/// Used memory from a point in time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Time since the end of the first part.
    pub at_ns: Nanos,
    /// Used memory, in bytes.
    pub bytes: u64,
}
