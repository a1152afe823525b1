//! A client that puts, gets, claims and releases at random, and checks every byte. It can be killed at any moment.

use crate::content::{BYTES_MIN, Random, fill, is_whole};
use crate::daemon::now_ns;
use crate::frames::Frames;
use cotensor_client::ClientStore;
use cotensor_core::sync::lock;
use cotensor_core::{ContentHash, DType, Error, ErrorKind, MemoryKind, Result};
use cotensor_store::{Claim, ComputationStore, Holder, Key, Lease, Retention, TensorSpec, TensorStore};
use std::collections::{HashSet, VecDeque};
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Number of round trips whose times are kept.
const REMEMBERED_MAX: usize = 10_000;
/// The pause of a client while the daemon has no descriptors left.
const PAUSE: Duration = Duration::from_millis(20);
/// How often a client connects while the daemon has no descriptors left.
const CONNECT_ATTEMPTS: usize = 3000;
/// One in this many actions closes the store and opens another one.
const REOPENING: usize = 2000;
/// Number of computations that the workers share.
const CLAIMS: usize = 16;
/// A longer tensor in a slab has it alone: the slab is a block.
const SHARED_SLAB_BYTES_MAX: usize = 256 << 10;

#[derive(clap::Args)]
pub(crate) struct Options {
    socket: PathBuf,
    /// Index of the worker.
    index: usize,
    /// Number of workers.
    workers: usize,
    /// Number of leases to hold.
    leases: usize,
    seed: u64,
}

/// State shared by the threads.
#[derive(Default)]
struct Shared {
    rest: AtomicBool,
    /// Start and end of the latest round trips.
    trips: Mutex<VecDeque<(u64, u64)>>,
}

/// Sends a line to the parent, in one write.
fn send(line: &str) {
    let mut out = std::io::stdout().lock();
    // The parent has ended: standard input is closed as well.
    drop(writeln!(out, "{line}").and_then(|()| out.flush()));
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let shared = Arc::new(Shared::default());
    let receiving = Arc::clone(&shared);
    std::thread::spawn(move || on_messages(&receiving));
    let outcome = Worker::new(options, Arc::clone(&shared))?.work();
    if let Err(error) = &outcome {
        send(&format!("wrong {error}"));
    }
    outcome
}

/// Handles messages of the parent: `killed AT DEAD` of a server, in nanoseconds, and `rest`. Exits when the parent
/// ends.
fn on_messages(shared: &Arc<Shared>) {
    for line in std::io::stdin().lines().map_while(std::io::Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["killed", at, dead] => {
                if let (Ok(at), Ok(dead)) = (at.parse(), dead.parse()) {
                    let shared = Arc::clone(shared);
                    std::thread::spawn(move || report_when_back(&shared, at, dead));
                }
            }
            _ => shared.rest.store(true, Ordering::SeqCst),
        }
    }
    std::process::exit(0);
}

/// Waits for the first round trip that started after the server's death, and so was answered by its successor.
fn report_when_back(shared: &Shared, at: u64, dead: u64) {
    loop {
        let trips = lock(&shared.trips);
        let back = trips.iter().find(|(began, _)| *began >= dead).map(|(_, ended)| ended - at);
        drop(trips);
        if let Some(back) = back {
            return send(&format!("back {at} {back}"));
        }
        if shared.rest.load(Ordering::SeqCst) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Worker<'a> {
    options: &'a Options,
    shared: Arc<Shared>,
    store: Arc<ClientStore>,
    holder: Holder,
    random: Random,
    held: Vec<Lease>,
    frames: Frames,
    /// The number of tensors that were published in blocks.
    blocks: usize,
}

impl<'a> Worker<'a> {
    fn new(options: &'a Options, shared: Arc<Shared>) -> Result<Self> {
        let store = connect(options)?;
        let (holder, random) = (store.holder(""), Random::new(options.seed));
        let frames = Frames::default();
        Ok(Self { options, shared, store, holder, random, held: Vec::new(), frames, blocks: 0 })
    }

    fn work(mut self) -> Result<()> {
        let mut full = false;
        while !self.shared.rest.load(Ordering::SeqCst) {
            if self.random.chance(1, REOPENING) {
                self.reopen()?;
            }
            let outcome = match self.random.below(100) {
                0 => self.claim(),
                1..50 => self.put(),
                50..86 => self.get(),
                86..88 => self.frames.publish(&self.store, self.options.index, &mut self.random),
                88..90 => {
                    let other = self.random.below(self.options.workers);
                    self.frames.check(&self.store, other)
                }
                _ => self.check_one(),
            };
            match outcome {
                // The daemon has as many descriptors as it may have.
                Err(error) if error.kind() == ErrorKind::OverBudget => {
                    if !std::mem::replace(&mut full, true) {
                        send("full");
                    }
                    if self.held.is_empty() { std::thread::sleep(PAUSE) } else { self.let_go()? }
                }
                outcome => outcome?,
            }
            while self.held.len() > self.options.leases {
                self.let_go()?;
            }
            if !full && self.held.len() == self.options.leases {
                full = true;
                send("full");
            }
        }
        self.rest()
    }

    fn rest(self) -> Result<()> {
        loop {
            // Before the message: the parent may send the next one immediately.
            self.shared.rest.store(false, Ordering::SeqCst);
            for lease in &self.held {
                check(lease)?;
            }
            let distinct: HashSet<_> = self.held.iter().map(Lease::id).collect();
            send(&format!("rests {} {} {}", distinct.len(), self.blocks, self.frames.checked));
            while !self.shared.rest.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Mostly small tensors: in slabs, in blocks and in separate memory. Ranges of slabs, and blocks, are used again.
    fn put(&mut self) -> Result<()> {
        let bytes = match self.random.below(100) {
            0..90 => self.random.magnitude(BYTES_MIN, 4 << 10),
            90..98 => self.random.magnitude(4 << 10, 64 << 10),
            _ => self.random.magnitude(257 << 10, 1 << 20),
        };
        let name = self.name(self.options.index);
        let mut reservation = if self.random.chance(2, 3) {
            self.store.reserve_to_fill(spec(name, bytes), &self.holder)?
        } else {
            self.store.reserve(spec(name, bytes), &self.holder)?
        };
        let place = reservation.bytes_mut().ok_or_else(|| Error::unsupported("memory of a device"))?;
        fill(place, self.random.next());
        let began = now_ns();
        let lease = reservation.publish()?;
        self.went(began);
        self.blocks += usize::from(bytes > SHARED_SLAB_BYTES_MAX && lease.segment().kind() == MemoryKind::Slab);
        self.held.push(lease);
        Ok(())
    }

    fn get(&mut self) -> Result<()> {
        let other = self.random.below(self.options.workers);
        let name = self.name(other);
        match self.store.get(&name, &self.holder) {
            Ok(lease) => {
                check(&lease)?;
                self.held.push(lease);
                Ok(())
            }
            // The tensor is unleased.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Computes a claimed result, or abandons the claim.
    fn claim(&mut self) -> Result<()> {
        let number = self.random.below(CLAIMS);
        match self.store.claim(&Key(ContentHash::of(&number.to_le_bytes())), &self.holder)? {
            Claim::Ready(leases) => self.held.extend(leases),
            Claim::Compute(ticket) if self.random.chance(1, 4) => ticket.abandon(),
            Claim::Compute(ticket) => {
                let mut result = self.store.reserve(spec(format!("result {number}"), 3000), &self.holder)?;
                let place = result.bytes_mut().ok_or_else(|| Error::unsupported("memory of a device"))?;
                fill(place, number as u64);
                match ticket.publish(vec![result]) {
                    Ok(leases) => self.held.extend(leases),
                    // Another process took the claim while this one was disconnected.
                    Err(error) if error.kind() == ErrorKind::Conflict => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Ends the session, also while no server runs, and begins another one.
    fn reopen(&mut self) -> Result<()> {
        self.held.clear();
        self.frames.close()?;
        self.store.disconnect();
        self.store = connect(self.options)?;
        self.holder = self.store.holder("");
        Ok(())
    }

    fn check_one(&mut self) -> Result<()> {
        let Some(last) = self.held.len().checked_sub(1) else { return Ok(()) };
        check(&self.held[self.random.below(last + 1)])
    }

    fn let_go(&mut self) -> Result<()> {
        let at = self.random.below(self.held.len());
        check(&self.held.swap_remove(at))
    }

    fn name(&mut self, worker: usize) -> String {
        format!("{worker} {}", self.random.below(2 * self.options.leases.max(1)))
    }

    fn went(&self, began: u64) {
        let mut trips = lock(&self.shared.trips);
        if trips.len() == REMEMBERED_MAX {
            trips.pop_front();
        }
        trips.push_back((began, now_ns()));
    }
}

fn connect(options: &Options) -> Result<Arc<ClientStore>> {
    let connect = || ClientStore::connect(Some(&options.socket), &format!("worker {}", options.index));
    let mut store = connect();
    // Until another client lets a tensor go.
    for _ in 0..CONNECT_ATTEMPTS {
        if !store.as_ref().is_err_and(|error| error.kind() == ErrorKind::OverBudget) {
            break;
        }
        std::thread::sleep(PAUSE);
        store = connect();
    }
    store
}

fn spec(name: String, bytes: usize) -> TensorSpec {
    TensorSpec {
        producer: "soak".to_owned(),
        retention: Retention::WhileLeased,
        ..TensorSpec::new(name, DType::U8, &[bytes])
    }
}

fn check(lease: &Lease) -> Result<()> {
    if lease.bytes().is_some_and(is_whole) {
        Ok(())
    } else {
        Err(Error::corrupt(format!("{:?} {:?} has wrong bytes", lease, lease.id())))
    }
}
