//! A snapshot of the daemon's tensors, and its order.

use crate::table::plain;
use cotensor::core::{Result, size};
use cotensor::store::{Stats, StoreReports};
use cotensor_client::ClientStore;
use cotensor_client::protocol::{
    DeviceShares, Empty, List, ListDevices, ListOrder, ListParams, ProgramShare, TensorInfo,
};
use std::collections::BTreeMap;

/// Maximum number of tensors of a snapshot.
const TENSORS_MAX: usize = 10_000;

/// The order of tensors: descending, except by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Bytes,
    Hits,
    Leases,
    Newest,
    Name,
}

impl Order {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Hits => "hits",
            Self::Leases => "leases",
            Self::Newest => "newest",
            Self::Name => "name",
        }
    }

    pub(super) fn next(self) -> Self {
        match self {
            Self::Bytes => Self::Hits,
            Self::Hits => Self::Leases,
            Self::Leases => Self::Newest,
            Self::Newest => Self::Name,
            Self::Name => Self::Bytes,
        }
    }
}

/// One holder, with the bytes of the tensors that it leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HolderRow {
    pub(super) name: String,
    pub(super) tensors: usize,
    pub(super) leases: u64,
    pub(super) bytes: u64,
}

/// The daemon's tensors and counters at one moment.
#[derive(Clone, Default)]
pub(super) struct Snapshot {
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) left_off: usize,
    pub(super) stats: Stats,
    pub(super) devices: Vec<DeviceShares>,
}

/// The columns of programs on devices.
pub(super) const SHARE_COLUMNS: [&str; 6] = ["share", "demand", "capacity", "state", "device", "program"];

/// A row for each program on a device.
pub(super) fn share_rows(devices: &[DeviceShares]) -> Vec<[String; 6]> {
    let row = |device: &DeviceShares, program: &ProgramShare| {
        let state = match (program.held_bytes > program.share_bytes, program.busy) {
            (true, _) => format!("frees {}", size(program.held_bytes - program.share_bytes)),
            (false, true) => "busy".to_owned(),
            (false, false) => "idle".to_owned(),
        };
        let (share, demand) = (size(program.share_bytes), size(program.demand_bytes));
        [share, demand, size(device.capacity_bytes), state, plain(&device.device), plain(&program.client)]
    };
    devices.iter().flat_map(|device| device.programs.iter().map(move |program| row(device, program))).collect()
}

pub(super) fn leases(tensor: &TensorInfo) -> u64 {
    tensor.holders.values().map(|&count| u64::from(count)).sum()
}

impl Snapshot {
    pub(super) fn take(store: &ClientStore) -> Result<Self> {
        let found =
            store.request::<List>(&ListParams { prefix: String::new(), limit: TENSORS_MAX, order: ListOrder::Size })?;
        let devices = store.request::<ListDevices>(&Empty {})?.devices;
        Ok(Self { tensors: found.tensors, left_off: found.left_off, stats: store.stats(), devices })
    }

    pub(super) fn sort(&mut self, order: Order) {
        self.tensors.sort_by(|a, b| {
            let names = a.spec.name.cmp(&b.spec.name).then(a.id.version.cmp(&b.id.version));
            match order {
                Order::Bytes => b.bytes.cmp(&a.bytes).then(names),
                Order::Hits => b.hits.cmp(&a.hits).then(names),
                Order::Leases => leases(b).cmp(&leases(a)).then(names),
                Order::Newest => a.age_s.total_cmp(&b.age_s).then(names),
                Order::Name => names,
            }
        });
    }

    /// The holders, most bytes first. A tensor counts for each of its holders.
    pub(super) fn holders(&self) -> Vec<HolderRow> {
        let mut rows: BTreeMap<&str, HolderRow> = BTreeMap::new();
        for tensor in &self.tensors {
            for (name, &count) in &tensor.holders {
                let empty = || HolderRow { name: name.clone(), tensors: 0, leases: 0, bytes: 0 };
                let row = rows.entry(name).or_insert_with(empty);
                row.tensors += 1;
                row.leases += u64::from(count);
                row.bytes += tensor.bytes;
            }
        }
        let mut rows: Vec<HolderRow> = rows.into_values().collect();
        rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        rows
    }
}
