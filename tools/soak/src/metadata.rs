//! Measures the metadata of many small tensors in server and supervisor, and the time of a takeover.

use crate::daemon::{Machine, now_ns, until};
use cotensor_client::ClientStore;
use cotensor_core::{DType, Error, ErrorKind, Result};
use cotensor_store::{CopyReason, Lease, Retention, StoreReports, TensorSpec, TensorStore};
use serde::Serialize;
use std::time::Duration;

const BYTES: usize = 64;

#[derive(clap::Args, Clone)]
pub(crate) struct Options {
    /// Number of tensors, of 64 bytes each.
    #[arg(long, default_value_t = Options::default().tensors)]
    pub(crate) tensors: usize,
    /// Number of kills of the server.
    #[arg(long, default_value_t = Options::default().takeovers)]
    pub(crate) takeovers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { tensors: 200_000, takeovers: 3 }
    }
}

/// The outcome: bytes of private memory per tensor.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    tensors: usize,
    /// With all tensors leased by one client.
    pub(crate) leased: Bytes,
    /// With all tensors unleased.
    pub(crate) kept: Bytes,
    /// Bytes that the budget counts.
    pub(crate) counted: u64,
    /// Time from the kill of the server until a new client has a tensor of the next server.
    pub(crate) takeovers_ms: Vec<f64>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Bytes {
    pub(crate) server: u64,
    pub(crate) supervisor: u64,
}

impl Bytes {
    pub(crate) fn sum(&self) -> u64 {
        self.server + self.supervisor
    }
}

impl Outcome {
    pub(crate) fn is_right(&self) -> bool {
        self.leased.sum() <= self.counted && self.kept.sum() <= self.counted
    }

    /// Median time of a takeover, in milliseconds.
    pub(crate) fn takeover_ms(&self) -> f64 {
        let mut times = self.takeovers_ms.clone();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().unwrap_or_default()
    }
}

/// # Errors
/// Errors that prevent the run.
pub(crate) fn run(options: &Options) -> Result<Outcome> {
    let machine = Machine::start(u64::MAX)?;
    let client = ClientStore::connect(Some(&machine.socket), "metadata")?;
    let before = machine.usage()?;
    let each = || -> Result<Bytes> {
        let (now, count) = (machine.usage()?, options.tensors.max(1) as u64);
        let of = |now: u64, before: u64| now.saturating_sub(before) / count;
        let server = of(now.server.private_bytes, before.server.private_bytes);
        Ok(Bytes { server, supervisor: of(now.supervisor.private_bytes, before.supervisor.private_bytes) })
    };
    let held = (0..options.tensors).map(|number| put(&client, number)).collect::<Result<Vec<Lease>>>()?;
    // The supervisor reads its messages asynchronously.
    std::thread::sleep(Duration::from_millis(100));
    let leased = each()?;
    let counted = client.stats().metadata_bytes / options.tensors.max(1) as u64;
    drop((held, client));
    let inspector = ClientStore::connect(Some(&machine.socket), "inspector")?;
    until("all leases are released", || inspector.stats().total_models == 0)?;
    // Heaps are trimmed one second after the end of a session.
    std::thread::sleep(Duration::from_secs(2));
    let kept = each()?;
    drop(inspector);
    let takeovers_ms = (0..options.takeovers).map(|_| takeover(&machine, options)).collect::<Result<Vec<f64>>>()?;
    Ok(Outcome { tensors: options.tensors, leased, kept, counted, takeovers_ms })
}

fn put(client: &ClientStore, number: usize) -> Result<Lease> {
    let retention = Retention::Cached { recompute: Duration::ZERO };
    let spec = TensorSpec { retention, ..TensorSpec::new(name(number), DType::U8, &[BYTES]) };
    let mut reservation = client.reserve(spec, &client.holder(""))?;
    reservation.write(&[number as u8; BYTES], CopyReason::Put)?;
    reservation.publish()
}

fn name(number: usize) -> String {
    format!("tensor number {number}")
}

fn takeover(machine: &Machine, options: &Options) -> Result<f64> {
    let killed_ns = machine.kill_server()?.killed_ns;
    let client = ClientStore::connect(Some(&machine.socket), "after")?;
    let found = client.get(&name(options.tensors - 1), &client.holder(""))?;
    let took_ms = (now_ns() - killed_ns) as f64 / 1e6;
    let stats = client.stats();
    if stats.total_tensors == options.tensors && found.bytes() == Some(&[(options.tensors - 1) as u8; BYTES]) {
        Ok(took_ms)
    } else {
        Err(Error::new(ErrorKind::Corrupt, format!("{} tensors were taken over", stats.total_tensors)))
    }
}
