use super::faults::Faults;
use super::outcome::{Outcome, Sample};
use super::queues::Queues;
use crate::decision::{Move, Place, Strategy, View};
use crate::device::Device;
use crate::memory::Memory;
use crate::time::Nanos;
use crate::trace::{Operation, Trace};
use cotensor_core::{Error, ErrorKind, Result};

const SAMPLES_MAX: usize = 4096;
/// Attempts to find memory for one operation before it fails.
const ATTEMPTS_MAX: u32 = 4;
/// Virtual times stay below this, so that sums of them fit into 64 bits.
const CLOCK_MAX: u128 = 1 << 62;

/// A device on a virtual clock, with the state that a program leaves there.
#[derive(Debug)]
pub struct Simulator<'a> {
    trace: &'a Trace,
    device: Device,
    faults: Faults,
    sizes: Vec<u64>,
    memory: Memory,
    queues: Queues,
    now: Nanos,
    /// When the current outcome began.
    began: Nanos,
    /// Virtual time that everything so far may have taken at most.
    longest: u128,
    /// Thefts that have begun.
    thefts: usize,
    /// Attempts to copy to the device, over all.
    attempts: u64,
    outcome: Outcome,
}

impl<'a> Simulator<'a> {
    /// A device without tensors, for the operations of `trace`.
    pub fn new(trace: &'a Trace, device: &Device, faults: Faults) -> Self {
        let sizes = trace.sizes();
        Self {
            trace,
            device: *device,
            faults,
            memory: Memory::new(sizes.clone(), device.budget_bytes()),
            sizes,
            queues: Queues::default(),
            now: 0,
            began: 0,
            longest: 0,
            thefts: 0,
            attempts: 0,
            outcome: Outcome::default(),
        }
    }

    /// Runs operations, named by their positions in the trace, under a strategy.
    ///
    /// # Errors
    /// - `OverBudget` names the first operation that does not fit on the device and has no time on the host.
    /// - `Conflict` if the strategy breaks its rules: it evicts a tensor in use, copies into used memory, or makes no
    ///   progress.
    /// - `Invalid` if the simulation would take more than about 140 years of virtual time.
    ///
    /// # Panics
    /// If the trace has no operation at a position.
    pub fn run(&mut self, order: impl IntoIterator<Item = usize>, strategy: &mut dyn Strategy) -> Result<()> {
        let trace = self.trace;
        for index in order {
            self.run_one(&trace.operations()[index], strategy)?;
        }
        Ok(())
    }

    /// Runs an operation, and returns how long it took with its wait.
    pub(super) fn run_one(&mut self, operation: &Operation, strategy: &mut dyn Strategy) -> Result<Nanos> {
        let began = self.now;
        let copies: u128 =
            operation.uses.iter().map(|&tensor| u128::from(self.device.copy_ns(self.sizes[tensor]))).sum();
        self.longest += 4 * copies + u128::from(operation.compute_ns.max(operation.cpu_ns.unwrap_or(0)));
        if self.longest > CLOCK_MAX {
            return Err(Error::invalid("the simulation takes too much virtual time"));
        }
        self.sample();
        self.step(operation, strategy)
            .map_err(|error| error.prefixed(format!("strategy {}: operation {:?}", strategy.name(), operation.name)))?;
        Ok(self.now - began)
    }

    /// Runs whole periods of the trace; see [`Simulator::run`].
    ///
    /// # Errors
    /// Those of [`Simulator::run`].
    pub fn run_periods(&mut self, periods: usize, strategy: &mut dyn Strategy) -> Result<()> {
        let count = self.trace.operations().len();
        self.run((0..periods).flat_map(|_| 0..count), strategy)
    }

    /// What happened since the last call, or since the start.
    pub fn take_outcome(&mut self) -> Outcome {
        let mut outcome = std::mem::take(&mut self.outcome);
        outcome.elapsed_ns = self.now - self.began;
        outcome.peak_bytes = self.memory.peak();
        self.began = self.now;
        outcome
    }

    fn step(&mut self, operation: &Operation, strategy: &mut dyn Strategy) -> Result<()> {
        let arrived = self.now;
        let mut place = strategy.arrive(operation, &self.view(Some(operation), false));
        let need = operation.workspace_bytes + operation.uses.iter().map(|&tensor| self.sizes[tensor]).sum::<u64>();
        if need > self.memory.budget() && operation.cpu_ns.is_some() {
            place = Place::Cpu;
        }
        if operation.cpu_ns.is_none() && (place == Place::Cpu || need > self.device.budget_bytes()) {
            let text = format!(
                "needs {need} bytes, more than the budget of {} bytes, and has no time on the CPU",
                self.device.budget_bytes()
            );
            return Err(Error::new(ErrorKind::OverBudget, text));
        }
        if place == Place::Device {
            self.outcome.uses += operation.uses.len() as u64;
            let present = operation.uses.iter().filter(|&&tensor| !self.memory.is_absent(tensor));
            self.outcome.hits += present.count() as u64;
            self.wait(operation, strategy)?;
        } else {
            self.return_changed(operation, strategy)?;
            self.memory.change_on_host(&operation.writes, true);
        }
        let started = self.now;
        self.outcome.stall_ns += started - arrived;
        let on_device = place == Place::Device;
        let duration = if on_device { operation.compute_ns } else { operation.cpu_ns.unwrap_or(0) };
        let (end, running) = (started + duration, on_device.then_some(operation));
        loop {
            self.moves(running, true, strategy)?;
            let next = self.next_event().filter(|&next| next < end);
            self.advance(next.unwrap_or(end), strategy, running);
            if next.is_none() {
                break;
            }
        }
        if on_device {
            self.memory.end();
            operation.writes.iter().for_each(|&tensor| self.memory.changed(tensor));
        } else {
            self.memory.change_on_host(&operation.writes, false);
        }
        self.outcome.operations += 1;
        strategy.finished(operation, duration, &self.view(None, false));
        Ok(())
    }

    /// Waits until the operation has its tensors and its workspace.
    fn wait(&mut self, operation: &Operation, strategy: &mut dyn Strategy) -> Result<()> {
        let mut attempts = 0;
        loop {
            self.moves(Some(operation), false, strategy)?;
            if operation.uses.iter().all(|&tensor| self.memory.is_on_device(tensor)) {
                match self.memory.start(&operation.uses, operation.workspace_bytes) {
                    Ok(()) => return Ok(()),
                    // Memory of changed tensors is about to be free.
                    Err(_) if self.memory.leaving() > 0 => {}
                    Err(_) if attempts < ATTEMPTS_MAX => {
                        attempts += 1;
                        self.outcome.out_of_memory += 1;
                        strategy.out_of_memory(&self.view(Some(operation), false));
                        continue;
                    }
                    Err(error) if self.next_event().is_none() => return Err(error),
                    Err(_) => {}
                }
            }
            let Some(next) = self.next_event() else {
                return Err(Error::new(ErrorKind::Conflict, "waits, but nothing moves"));
            };
            self.advance(next, strategy, Some(operation));
        }
    }

    /// Before an operation runs on the host: copies tensors back that the device changed, and drops device copies that the
    /// host will change.
    fn return_changed(&mut self, operation: &Operation, strategy: &mut dyn Strategy) -> Result<()> {
        for &tensor in &operation.uses {
            let stale = operation.writes.binary_search(&tensor).is_ok();
            // A copy of the old content must not land after the change.
            while stale && !self.memory.is_on_host(tensor) && !self.memory.is_on_device(tensor) {
                let Some(next) = self.next_event() else { break };
                self.advance(next, strategy, None);
            }
            if self.memory.is_changed(tensor) || (stale && self.memory.is_on_device(tensor)) {
                self.evict(tensor)?;
            }
        }
        while operation.uses.iter().any(|&tensor| self.memory.is_absent(tensor) && !self.memory.is_on_host(tensor)) {
            let Some(next) = self.next_event() else { break };
            self.advance(next, strategy, None);
        }
        Ok(())
    }

    /// Makes all moves that the strategy wants now.
    fn moves(&mut self, operation: Option<&Operation>, running: bool, strategy: &mut dyn Strategy) -> Result<()> {
        let mut failed = 0;
        // Each tensor moves at most once in each direction at one time.
        for _ in 0..2 * self.sizes.len() + 2 * ATTEMPTS_MAX as usize {
            match strategy.next_move(&self.view(operation, running)) {
                None => break,
                Some(Move::Evict(tensor)) => {
                    if running && operation.is_some_and(|operation| operation.uses.binary_search(&tensor).is_ok()) {
                        return Err(Error::new(
                            ErrorKind::Conflict,
                            format!("tensor {tensor} is evicted while in use"),
                        ));
                    }
                    self.evict(tensor)?;
                }
                Some(Move::Fetch(tensor)) => {
                    if self.queues.is_copying() {
                        return Err(Error::new(ErrorKind::Conflict, "two copies to the device at once"));
                    }
                    let fails = self.faults.failing_copies.contains(&self.attempts);
                    self.attempts += 1;
                    if fails {
                        self.outcome.out_of_memory += 1;
                        failed += 1;
                        if failed > ATTEMPTS_MAX {
                            return Err(Error::new(ErrorKind::OverBudget, "the device has no memory"));
                        }
                        strategy.out_of_memory(&self.view(operation, running));
                        continue;
                    }
                    self.memory.arrive(tensor)?;
                    self.outcome.copied_bytes += self.sizes[tensor];
                    self.queues.fetch(tensor, self.sizes[tensor], self.now, &self.device);
                }
            }
        }
        self.check(operation.filter(|_| running))
    }

    fn evict(&mut self, tensor: usize) -> Result<()> {
        if self.memory.leave(tensor)? {
            self.outcome.returned_bytes += self.sizes[tensor];
            self.queues.write_back(tensor, self.sizes[tensor], self.now, &self.device);
        }
        Ok(())
    }

    /// More than the budget is used only while what is above it cannot be freed: by copies and by the running operation.
    fn check(&self, running: Option<&Operation>) -> Result<()> {
        let used = self.memory.used();
        if used <= self.memory.budget() + self.memory.leaving() {
            return Ok(());
        }
        let busy = running.map_or(0, |operation| {
            operation.workspace_bytes + operation.uses.iter().map(|&tensor| self.sizes[tensor]).sum::<u64>()
        });
        if used > busy + self.memory.moving() {
            let text = format!("{used} bytes stay on the device, but the budget is {} bytes", self.memory.budget());
            return Err(Error::new(ErrorKind::Conflict, text));
        }
        Ok(())
    }

    fn next_event(&self) -> Option<Nanos> {
        let theft = self.faults.thefts.get(self.thefts).map(|theft| theft.at_ns.max(self.now));
        [self.queues.next_end(), theft].into_iter().flatten().min()
    }

    /// Moves the clock to `to`, at most the next event.
    fn advance(&mut self, to: Nanos, strategy: &mut dyn Strategy, operation: Option<&Operation>) {
        self.now = to;
        self.queues.end_due(to, &mut self.memory);
        while let Some(theft) = self.faults.thefts.get(self.thefts).filter(|theft| theft.at_ns <= to) {
            self.thefts += 1;
            self.memory.set_budget(self.device.budget_bytes().saturating_sub(theft.bytes));
            strategy.budget_changed(&self.view(operation, false));
        }
    }

    fn view<'b>(&'b self, operation: Option<&'b Operation>, running: bool) -> View<'b> {
        let Self { memory, sizes, now: now_ns, queues, .. } = self;
        View { memory, sizes, now_ns: *now_ns, copying: queues.is_copying(), operation, running }
    }

    fn sample(&mut self) {
        let sample = Sample { at_ns: self.now - self.began, bytes: self.memory.used() };
        if self.outcome.timeline.len() < SAMPLES_MAX {
            self.outcome.timeline.push(sample);
        }
    }
}
