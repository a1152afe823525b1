//! The devices of a store: a memory and a budget for each.

use crate::budget::Budget;
use cotensor_core::{Device, Error, Memory, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The memory and the budget of each device.
pub(crate) struct Devices {
    by_device: BTreeMap<Device, DeviceMemory>,
    host: Arc<Budget>,
}

struct DeviceMemory {
    /// None where other processes make the memory.
    memory: Option<Arc<dyn Memory>>,
    budget: Arc<Budget>,
}

impl Devices {
    /// The devices of `memories` and of `limits` (bytes). A device without a limit has none; `host` is the budget of
    /// the host.
    pub(crate) fn new(
        mut memories: BTreeMap<Device, Arc<dyn Memory>>,
        mut limits: BTreeMap<Device, u64>,
        host: Arc<Budget>,
    ) -> Self {
        for &device in memories.keys() {
            limits.entry(device).or_insert(u64::MAX);
        }
        let mut by_device = BTreeMap::new();
        for (device, max) in limits {
            let budget =
                if device == host.device() { Arc::clone(&host) } else { Budget::of_device(device, max, &host) };
            by_device.insert(device, DeviceMemory { memory: memories.remove(&device), budget });
        }
        Self { by_device, host }
    }

    /// The budget of the host, which holds the metadata of all tensors.
    pub(crate) fn host(&self) -> &Arc<Budget> {
        &self.host
    }

    /// The budget of `device`.
    pub(crate) fn budget(&self, device: Device) -> Result<&Arc<Budget>> {
        Ok(&self.find(device)?.budget)
    }

    /// The memory of `device`.
    pub(crate) fn memory(&self, device: Device) -> Result<&dyn Memory> {
        self.find(device)?.memory.as_deref().ok_or_else(|| self.unknown(device))
    }

    /// Every budget, in the order of the devices.
    pub(crate) fn budgets(&self) -> impl Iterator<Item = &Arc<Budget>> {
        self.by_device.values().map(|device| &device.budget)
    }

    /// Bytes in use by tensors on all devices.
    pub(crate) fn used(&self) -> u64 {
        self.budgets().map(|budget| budget.used()).sum()
    }

    fn find(&self, device: Device) -> Result<&DeviceMemory> {
        self.by_device.get(&device).ok_or_else(|| self.unknown(device))
    }

    fn unknown(&self, device: Device) -> Error {
        let known: Vec<String> = self.by_device.keys().map(Device::to_string).collect();
        Error::unsupported(format!("this store has no memory on {device}; it has {}", known.join(", ")))
            .in_field("device")
    }
}
