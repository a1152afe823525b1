use crate::time::Nanos;
use cotensor_core::{Error, Result};

/// Largest budget and bandwidth that a device may have, in bytes and bytes per second.
const BYTES_MAX: u64 = 1 << 60;
const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A device that executes operations, and its link to the host. Copies to the device and copies from it do not slow
/// each other down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    budget_bytes: u64,
    bandwidth: u64,
    latency_ns: Nanos,
}

impl Device {
    /// A device with memory for `budget_bytes`. A copy of n bytes takes `latency_ns` + n / `bandwidth` (bytes per
    /// second) in each direction.
    ///
    /// # Errors
    /// `Invalid` names the field that is zero or too large. The latency is at most one second.
    pub fn new(budget_bytes: u64, bandwidth: u64, latency_ns: Nanos) -> Result<Self> {
        for (field, value, max) in [
            ("budget", budget_bytes, BYTES_MAX),
            ("bandwidth", bandwidth, BYTES_MAX),
            ("latency", latency_ns, 1_000_000_000),
        ] {
            if value > max || (value == 0 && field != "latency") {
                return Err(Error::invalid(format!("{value} is out of 1 to {max}")).in_field(field));
            }
        }
        Ok(Self { budget_bytes, bandwidth, latency_ns })
    }

    /// Memory for tensors and the workspace of operations, in bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// The same device with another budget.
    #[must_use]
    pub fn with_budget(self, budget_bytes: u64) -> Self {
        Self { budget_bytes, ..self }
    }

    /// Speed of a copy, in bytes per second.
    pub fn bandwidth(&self) -> u64 {
        self.bandwidth
    }

    /// Time of a copy of `bytes` in one direction, rounded up.
    pub fn copy_ns(&self, bytes: u64) -> Nanos {
        let moving = (u128::from(bytes) * NANOS_PER_SECOND).div_ceil(u128::from(self.bandwidth));
        self.latency_ns.saturating_add(Nanos::try_from(moving).unwrap_or(Nanos::MAX))
    }
}
