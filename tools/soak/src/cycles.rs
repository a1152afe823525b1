//! Puts, gets and releases tensors of random sizes under a budget, by clients that connect and disconnect. Nothing may
//! grow.

use crate::content::{BYTES_MIN, Random, fill, is_whole};
use crate::daemon::{Machine, Process, Usage, until};
use cotensor_client::ClientStore;
use cotensor_core::{ContentHash, DType, Error, ErrorKind, Result};
use cotensor_store::{
    Claim, ComputationStore, Holder, Key, Lease, MemoryControl, Retention, StoreReports, TensorSpec, TensorStore,
};
use serde::Serialize;
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of cycles after which a client is replaced.
const CYCLES_OF_A_CLIENT: usize = 250;
/// Number of leases that a client holds.
const HELD: usize = 8;
/// Number of names that are published repeatedly.
const NAMES: usize = 200;
/// Number of bytes written and checked of a longer tensor.
const LOOKED_AT: usize = 64 << 10;
/// Share of the samples that count as warm-up.
const WARM_UP: usize = 4;
/// Tolerated difference of private memory between two idle moments, which an allocator keeps.
const NOISE_BYTES: i64 = 8 << 20;
/// Tolerated difference of mappings, for allocators and thread stacks.
const NOISE_MAPPINGS: i64 = 24;

#[derive(clap::Args, Clone)]
pub(crate) struct Options {
    /// Number of tensors to put, get and release.
    #[arg(long, default_value_t = Options::default().cycles)]
    pub(crate) cycles: usize,
    /// Memory budget of the daemon, in bytes.
    #[arg(long, default_value_t = Options::default().max_memory)]
    pub(crate) max_memory: u64,
    /// Maximum size of a tensor, in bytes.
    #[arg(long, default_value_t = Options::default().bytes_max)]
    pub(crate) bytes_max: usize,
    /// Number of concurrent clients.
    #[arg(long, default_value_t = Options::default().clients)]
    pub(crate) clients: usize,
    /// Number of samples of the daemon's usage, taken while all clients are idle.
    #[arg(long, default_value_t = Options::default().samples)]
    pub(crate) samples: usize,
    #[arg(long, default_value_t = Options::default().seed)]
    pub(crate) seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { cycles: 1_000_000, max_memory: 1 << 30, bytes_max: 32 << 20, clients: 4, samples: 40, seed: 1 }
    }
}

/// The outcome.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    cycles: usize,
    seconds: f64,
    /// Number of tensors refused because the budget was leased.
    refused: usize,
    evictions: u64,
    /// Growth from the end of the warm-up, a quarter of the run, to the end.
    pub(crate) growth: Growth,
    samples: Vec<Sample>,
}

/// Usage while no client holds a tensor.
#[derive(Debug, Serialize)]
struct Sample {
    cycles: usize,
    seconds: f64,
    daemon: Usage,
    clients: Process,
}

#[derive(Debug, Serialize)]
pub(crate) struct Growth {
    pub(crate) server: Difference,
    pub(crate) supervisor: Difference,
    pub(crate) clients: Difference,
}

#[derive(Debug, Serialize)]
pub(crate) struct Difference {
    pub(crate) private_bytes: i64,
    pub(crate) descriptors: i64,
    pub(crate) mappings: i64,
}

impl Difference {
    /// Difference between the medians of the first and the last third of `samples`.
    fn of(samples: &[Sample], process: impl Fn(&Sample) -> Process) -> Self {
        let third = samples.len().div_ceil(3);
        let median = |part: &[Sample], value: &dyn Fn(Process) -> i64| {
            let mut values: Vec<i64> = part.iter().map(|sample| value(process(sample))).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or(0)
        };
        let between = |value: &dyn Fn(Process) -> i64| {
            median(&samples[samples.len() - third..], value) - median(&samples[..third], value)
        };
        Self {
            private_bytes: between(&|process| process.private_bytes as i64),
            descriptors: between(&|process| process.descriptors as i64),
            mappings: between(&|process| process.mappings as i64),
        }
    }

    fn is_none(&self) -> bool {
        self.private_bytes <= NOISE_BYTES && self.descriptors <= 0 && self.mappings <= NOISE_MAPPINGS
    }
}

impl Outcome {
    pub(crate) fn is_right(&self) -> bool {
        self.growth.server.is_none() && self.growth.supervisor.is_none() && self.growth.clients.is_none()
    }
}

/// # Errors
/// `Corrupt` for a tensor with wrong bytes; errors that prevent the run.
pub(crate) fn run(options: &Options) -> Result<Outcome> {
    let machine = Machine::start(options.max_memory)?;
    let daemon = ClientStore::connect(Some(&machine.socket), "inspector")?;
    let (start, mut samples, mut refused) = (Instant::now(), Vec::new(), 0);
    let each = options.cycles.div_ceil(options.clients * options.samples);
    for round in 0..options.samples {
        refused += round_of(&machine.socket, options, round, each)?;
        until("the daemon is empty", || {
            daemon.optimize();
            daemon.stats().memory_usage_bytes == 0
        })?;
        // Waits for ended threads and unread messages.
        std::thread::sleep(Duration::from_millis(50));
        let (daemon, clients) = (machine.usage()?, Process::of(std::process::id())?);
        let (cycles, seconds) = ((round + 1) * each * options.clients, start.elapsed().as_secs_f64());
        eprintln!(
            "{cycles} cycles in {seconds:.0} s: server {} KiB, {} descriptors, {} mappings; supervisor {} KiB; clients {} KiB",
            daemon.server.private_bytes >> 10,
            daemon.server.descriptors,
            daemon.server.mappings,
            daemon.supervisor.private_bytes >> 10,
            clients.private_bytes >> 10,
        );
        samples.push(Sample { cycles, seconds, daemon, clients });
    }
    let warm = &samples[samples.len().div_ceil(WARM_UP).min(samples.len() - 1)..];
    let growth = Growth {
        server: Difference::of(warm, |sample| sample.daemon.server),
        supervisor: Difference::of(warm, |sample| sample.daemon.supervisor),
        clients: Difference::of(warm, |sample| sample.clients),
    };
    let (seconds, evictions) = (start.elapsed().as_secs_f64(), daemon.stats().evictions);
    Ok(Outcome { cycles: each * options.clients * options.samples, seconds, refused, evictions, growth, samples })
}

/// Runs all clients concurrently, `cycles` each. Returns the number of refused tensors.
fn round_of(socket: &Path, options: &Options, round: usize, cycles: usize) -> Result<usize> {
    std::thread::scope(|scope| {
        let one = |index: usize| {
            move || {
                let seed = options.seed.wrapping_add((round * options.clients + index) as u64 + 1);
                let (mut random, mut refused, mut left) = (Random::new(seed), 0, cycles);
                while left > 0 {
                    let now = left.min(CYCLES_OF_A_CLIENT);
                    refused += Client::new(socket, options, index, &mut random)?.work(now)?;
                    left -= now;
                }
                Ok(refused)
            }
        };
        let clients: Vec<_> = (0..options.clients).map(|index| scope.spawn(one(index))).collect();
        let failed = || Error::new(ErrorKind::Conflict, "a client's thread failed");
        clients.into_iter().map(|client| client.join().map_err(|_| failed())?).sum()
    })
}

struct Client<'a> {
    options: &'a Options,
    random: &'a mut Random,
    store: std::sync::Arc<ClientStore>,
    /// Prefix of this client's names, which end with the client.
    life: u64,
    held: VecDeque<Lease>,
}

impl<'a> Client<'a> {
    fn new(socket: &Path, options: &'a Options, index: usize, random: &'a mut Random) -> Result<Self> {
        let life = random.next();
        // Each replacement has its own client name.
        let store = ClientStore::connect(Some(socket), &format!("client {index} {life}"))?;
        Ok(Self { options, random, store, life, held: VecDeque::new() })
    }

    fn work(mut self, cycles: usize) -> Result<usize> {
        let mut refused = 0;
        for cycle in 0..cycles {
            let holder = self.store.holder(&format!("part {}", self.random.below(40)));
            let put = if cycle % 20 == 0 { self.compute(&holder) } else { self.put(&holder) };
            match put {
                Ok(leases) => self.held.extend(leases),
                Err(error) if error.kind() == ErrorKind::OverBudget => refused += 1,
                Err(error) => return Err(error),
            }
            match self.store.get(&format!("common {}", self.random.below(NAMES)), &holder) {
                Ok(lease) => self.held.push_back(lease),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            while self.held.len() > HELD {
                check(self.held.pop_front())?;
            }
        }
        Ok(refused)
    }

    fn bytes(&mut self) -> usize {
        let (small, long) = ((4 << 10).min(self.options.bytes_max), (1 << 20).min(self.options.bytes_max / 2));
        match self.random.below(1000) {
            0..900 => self.random.magnitude(BYTES_MIN, small),
            900..992 => self.random.magnitude(small, long.max(small + 1)),
            _ => self.random.magnitude(long.max(BYTES_MIN), self.options.bytes_max),
        }
    }

    fn put(&mut self, holder: &Holder) -> Result<Vec<Lease>> {
        let name = if self.random.chance(1, 2) {
            format!("common {}", self.random.below(NAMES))
        } else {
            format!("own {} {}", self.life, self.random.next())
        };
        let bytes = self.bytes();
        Ok(vec![self.reserve(name, bytes, holder)?.publish()?])
    }

    /// Claims a new computation.
    fn compute(&mut self, holder: &Holder) -> Result<Vec<Lease>> {
        let key = Key(ContentHash::of(&[self.life.to_le_bytes(), self.random.next().to_le_bytes()].concat()));
        match self.store.claim(&key, holder)? {
            Claim::Ready(leases) => Ok(leases),
            Claim::Compute(ticket) if self.random.chance(1, 4) => {
                ticket.abandon();
                Ok(Vec::new())
            }
            Claim::Compute(ticket) => {
                let bytes = self.bytes();
                ticket.publish(vec![self.reserve(format!("result {}", key.0), bytes, holder)?])
            }
        }
    }

    fn reserve(&mut self, name: String, bytes: usize, holder: &Holder) -> Result<cotensor_store::Reservation> {
        let kept = Retention::Cached { recompute: Duration::ZERO };
        let spec = TensorSpec {
            producer: "soak".to_owned(),
            retention: if self.random.chance(1, 2) { kept } else { Retention::WhileLeased },
            ..TensorSpec::new(name, DType::U8, &[bytes])
        };
        // What is filled may lie in a block, with bytes of an earlier tensor behind those that are written here.
        let mut reservation = if self.random.chance(1, 2) {
            self.store.reserve_to_fill(spec, holder)?
        } else {
            self.store.reserve(spec, holder)?
        };
        let place = reservation.bytes_mut().ok_or_else(|| Error::unsupported("memory of a device"))?;
        fill(&mut place[..bytes.min(LOOKED_AT)], self.random.next());
        Ok(reservation)
    }
}

fn check(lease: Option<Lease>) -> Result<()> {
    let Some(lease) = lease else { return Ok(()) };
    let whole = lease.bytes().is_some_and(|bytes| is_whole(&bytes[..bytes.len().min(LOOKED_AT)]));
    if whole { Ok(()) } else { Err(Error::corrupt(format!("{lease:?} {:?} has wrong bytes", lease.id()))) }
}
