use crate::decision::{Move, Place, Strategy, View};
use crate::memory::Memory;
use crate::time::Nanos;
use crate::trace::{Operation, TensorIndex};
use cotensor_core::{Error, ErrorKind, Result};

/// Attempts of a strategy to make room for one operation; after them, everything else leaves.
const ATTEMPTS_MAX: usize = 4;
const TENSORS_MAX: usize = 1 << 20;

/// Drives a strategy for a program that runs on a real device: the caller reports operations and makes the moves.
///
/// For each operation the caller calls [`begin`](Driver::begin), makes the moves, starts the operation, calls
/// [`end`](Driver::end), and makes those moves. While a long operation runs, [`running`](Driver::running) has the moves for later ones.
/// Moves take effect in their order. A copy counts as landed at once: the caller orders copies and operations, for example by streams
/// and events.
pub struct Driver {
    strategy: Box<dyn Strategy + Send>,
    memory: Memory,
    sizes: Vec<u64>,
    /// The operation under way, and whether it runs on the device.
    current: Option<(Operation, Place)>,
    now_ns: Nanos,
}

impl Driver {
    /// A driver for a program that may hold `budget_bytes` of tensors on the device.
    pub fn new(strategy: Box<dyn Strategy + Send>, budget_bytes: u64) -> Self {
        let memory = Memory::new(Vec::new(), budget_bytes);
        Self { strategy, memory, sizes: Vec::new(), current: None, now_ns: 0 }
    }

    /// The strategy.
    pub fn strategy(&mut self) -> &mut (dyn Strategy + Send) {
        self.strategy.as_mut()
    }

    /// Adds a tensor of `size_bytes` that is on the host.
    ///
    /// # Errors
    /// `Invalid` if there are 2^20 tensors already.
    pub fn add_tensor(&mut self, size_bytes: u64) -> Result<TensorIndex> {
        if self.sizes.len() >= TENSORS_MAX {
            return Err(Error::invalid(format!("{TENSORS_MAX} tensors are the most")));
        }
        self.sizes.push(size_bytes);
        self.memory.add(size_bytes);
        Ok(self.sizes.len() - 1)
    }

    /// Sizes of the tensors, in bytes.
    pub fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// Bytes of the tensors on the device.
    pub fn used_bytes(&self) -> u64 {
        self.memory.used()
    }

    /// Bytes that tensors may use.
    pub fn budget_bytes(&self) -> u64 {
        self.memory.budget()
    }

    /// Whether a tensor is on the device.
    pub fn is_on_device(&self, tensor: TensorIndex) -> bool {
        self.memory.is_on_device(tensor)
    }

    /// The program reaches `operation`. Returns where it runs, and adds the moves before it to `moves`. An operation whose
    /// tensors exceed the budget runs on the host.
    ///
    /// # Errors
    /// `Invalid` for an unknown tensor; `Conflict` if the strategy breaks its rules.
    pub fn begin(&mut self, mut operation: Operation, moves: &mut Vec<Move>) -> Result<Place> {
        operation.uses.sort_unstable();
        operation.uses.dedup();
        if operation.uses.last().is_some_and(|&last| last >= self.sizes.len()) {
            return Err(Error::invalid("a tensor does not exist").in_field("uses"));
        }
        let view = Self::view(&self.memory, &self.sizes, self.now_ns, Some(&operation), false);
        let mut place = self.strategy.arrive(&operation, &view);
        let need = operation.uses.iter().map(|&tensor| self.sizes[tensor]).sum::<u64>() + operation.workspace_bytes;
        if need > self.memory.budget() {
            place = Place::Cpu;
        }
        self.current = Some((operation, place));
        if place == Place::Device {
            self.wait(moves)?;
        }
        Ok(place)
    }

    /// The operation runs: adds moves for later operations. [`end`](Driver::end) adds those that are left.
    ///
    /// # Errors
    /// `Conflict` if the strategy breaks its rules.
    pub fn running(&mut self, moves: &mut Vec<Move>) -> Result<()> {
        self.moves(true, moves)
    }

    /// The operation ran for `elapsed_ns`. Adds moves for later operations, then those after it.
    ///
    /// # Errors
    /// `Conflict` if the strategy breaks its rules.
    pub fn end(&mut self, elapsed_ns: Nanos, moves: &mut Vec<Move>) -> Result<()> {
        self.running(moves)?;
        let Some((operation, _)) = self.current.take() else { return Ok(()) };
        self.now_ns += elapsed_ns;
        let view = Self::view(&self.memory, &self.sizes, self.now_ns, None, false);
        self.strategy.finished(&operation, elapsed_ns, &view);
        self.moves(false, moves)
    }

    /// The operation under way failed, or ran elsewhere: the strategy does not learn from it.
    pub fn cancel(&mut self) {
        self.current = None;
    }

    /// Changes the budget. Adds the evictions that a smaller one needs.
    ///
    /// # Errors
    /// `Conflict` if the strategy breaks its rules.
    pub fn set_budget(&mut self, bytes: u64, moves: &mut Vec<Move>) -> Result<()> {
        self.memory.set_budget(bytes);
        let view = Self::view(&self.memory, &self.sizes, self.now_ns, None, false);
        self.strategy.budget_changed(&view);
        self.moves(false, moves)?;
        self.shrink(moves)
    }

    /// The device had no memory: everything leaves that the operation under way does not need.
    ///
    /// # Errors
    /// Never, if all moves of the strategy were made.
    pub fn out_of_memory(&mut self, moves: &mut Vec<Move>) -> Result<()> {
        let operation = self.current.as_ref().map(|(operation, _)| operation);
        self.strategy.out_of_memory(&Self::view(&self.memory, &self.sizes, self.now_ns, operation, false));
        for tensor in 0..self.sizes.len() {
            if self.memory.is_on_device(tensor) && !self.is_needed(tensor) {
                self.evict(tensor, moves)?;
            }
        }
        Ok(())
    }

    /// The copy on the device is no longer valid, or was not made.
    ///
    /// # Errors
    /// Never for a tensor of this driver.
    pub fn discard(&mut self, tensor: TensorIndex) -> Result<()> {
        if self.memory.is_on_device(tensor) {
            self.memory.leave(tensor)?;
        }
        Ok(())
    }

    /// Takes an eviction back: the copy on the device stays.
    ///
    /// # Errors
    /// `OverBudget` if the memory is in use by now.
    pub fn keep(&mut self, tensor: TensorIndex) -> Result<()> {
        self.memory.arrive(tensor)?;
        self.memory.landed(tensor);
        Ok(())
    }

    /// Takes back the last call, whose `moves` the caller has not made, and ends the operation under way. `budget_bytes` is the budget
    /// before the call.
    ///
    /// # Errors
    /// Never for the moves of this driver.
    pub fn revert(&mut self, moves: &[Move], budget_bytes: u64) -> Result<()> {
        self.current = None;
        self.memory.set_budget(budget_bytes);
        for moved in moves.iter().rev() {
            match *moved {
                Move::Fetch(tensor) => self.discard(tensor)?,
                Move::Evict(tensor) => self.memory.restore(tensor),
            }
        }
        Ok(())
    }

    /// Copies and evicts until all tensors of the operation are on the device.
    fn wait(&mut self, moves: &mut Vec<Move>) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            self.moves(false, moves)?;
            if self.missing().is_none() && self.memory.used() <= self.memory.budget() {
                return Ok(());
            }
            let operation = self.current.as_ref().map(|(operation, _)| operation);
            let view = Self::view(&self.memory, &self.sizes, self.now_ns, operation, false);
            self.strategy.out_of_memory(&view);
        }
        self.out_of_memory(moves)?;
        while let Some(tensor) = self.missing() {
            self.memory.arrive(tensor)?;
            self.memory.landed(tensor);
            moves.push(Move::Fetch(tensor));
        }
        Ok(())
    }

    fn missing(&self) -> Option<TensorIndex> {
        let (operation, _) = self.current.as_ref()?;
        operation.uses.iter().copied().find(|&tensor| !self.memory.is_on_device(tensor))
    }

    fn is_needed(&self, tensor: TensorIndex) -> bool {
        self.current
            .as_ref()
            .is_some_and(|(operation, place)| *place == Place::Device && operation.uses.binary_search(&tensor).is_ok())
    }

    /// Makes all moves that the strategy wants now.
    fn moves(&mut self, running: bool, moves: &mut Vec<Move>) -> Result<()> {
        // Each tensor moves at most once in each direction at one time.
        for _ in 0..2 * self.sizes.len() + ATTEMPTS_MAX {
            let operation =
                self.current.as_ref().filter(|(_, place)| *place == Place::Device).map(|(operation, _)| operation);
            let view = Self::view(&self.memory, &self.sizes, self.now_ns, operation, running);
            match self.strategy.next_move(&view) {
                None => break,
                Some(Move::Evict(tensor)) if self.is_needed(tensor) => {
                    return Err(Error::new(ErrorKind::Conflict, format!("tensor {tensor} is evicted while in use")));
                }
                Some(Move::Evict(tensor)) => self.evict(tensor, moves)?,
                Some(Move::Fetch(tensor)) => {
                    self.memory.arrive(tensor)?;
                    self.memory.landed(tensor);
                    moves.push(Move::Fetch(tensor));
                }
            }
        }
        Ok(())
    }

    /// Evicts in any order what a strategy has left above the budget.
    fn shrink(&mut self, moves: &mut Vec<Move>) -> Result<()> {
        for tensor in 0..self.sizes.len() {
            if self.memory.used() <= self.memory.budget() {
                break;
            }
            if self.memory.is_on_device(tensor) && !self.is_needed(tensor) {
                self.evict(tensor, moves)?;
            }
        }
        Ok(())
    }

    fn evict(&mut self, tensor: TensorIndex, moves: &mut Vec<Move>) -> Result<()> {
        self.memory.leave(tensor)?;
        moves.push(Move::Evict(tensor));
        Ok(())
    }

    fn view<'a>(
        memory: &'a Memory,
        sizes: &'a [u64],
        now_ns: Nanos,
        operation: Option<&'a Operation>,
        running: bool,
    ) -> View<'a> {
        View { memory, sizes, now_ns, copying: false, operation, running }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::{Flow, Genoa, Lru, Pinned};
    use crate::{Device, Trace, cyclic};
    use std::collections::HashSet;

    /// Runs `periods` of a loop over `count` tensors of 1000 bytes, and returns the copies of each period.
    fn copies(
        strategy: Box<dyn Strategy + Send>,
        count: usize,
        budget: u64,
        periods: usize,
        asks_while_running: bool,
    ) -> Vec<usize> {
        let trace = cyclic(count, 1000, 500).unwrap();
        let mut driver = Driver::new(strategy, budget);
        trace.sizes().iter().for_each(|&size| {
            driver.add_tensor(size).unwrap();
        });
        let mut on_device = HashSet::new();
        let mut made = |moves: Vec<Move>, needed: &[usize]| {
            let mut copies = 0;
            for moved in moves {
                match moved {
                    Move::Fetch(tensor) => {
                        assert!(on_device.insert(tensor));
                        copies += 1;
                    }
                    Move::Evict(tensor) => assert!(on_device.remove(&tensor)),
                }
                assert!(on_device.len() as u64 * 1000 <= budget);
            }
            assert!(needed.iter().all(|tensor| on_device.contains(tensor)));
            copies
        };
        let mut period = || {
            let mut copies = 0;
            for operation in trace.operations() {
                let mut moves = Vec::new();
                assert_eq!(driver.begin(operation.clone(), &mut moves).unwrap(), Place::Device);
                if asks_while_running {
                    driver.running(&mut moves).unwrap();
                }
                copies += made(moves, &operation.uses);
                let mut moves = Vec::new();
                driver.end(500, &mut moves).unwrap();
                copies += made(moves, &[]);
            }
            copies
        };
        (0..periods).map(|_| period()).collect()
    }

    #[test]
    fn flow_keeps_what_a_plan_keeps() {
        let device = Device::new(5000, 1_000_000_000, 0).unwrap();
        let while_running = copies(Box::new(Flow::new(device)), 10, 5000, 40, true);
        let last: usize = while_running[20..].iter().sum();
        assert!(last < 20 * 8, "{while_running:?}");
        let at_the_end = copies(Box::new(Flow::new(device)), 10, 5000, 40, false);
        assert_eq!(at_the_end[20..].iter().sum::<usize>(), last, "{at_the_end:?}");
    }

    #[test]
    fn caches_without_a_plan_copy_every_tensor_of_a_loop() {
        for strategy in [Box::<Genoa>::default() as Box<dyn Strategy + Send>, Box::<Lru>::default()] {
            assert!(copies(strategy, 10, 5000, 5, true).iter().all(|&copies| copies >= 9));
        }
    }

    #[test]
    fn failed_memory_is_not_taken_again_by_copies_ahead() {
        let trace = cyclic(4, 1000, 500).unwrap();
        let pinned = Pinned::new(&trace, &Device::new(2500, 1_000_000_000, 0).unwrap());
        for strategy in [Box::new(pinned) as Box<dyn Strategy + Send>, Box::<Lru>::default(), Box::<Genoa>::default()] {
            let mut driver = Driver::new(strategy, 2500);
            (0..4).for_each(|_| {
                driver.add_tensor(1000).unwrap();
            });
            let mut moves = Vec::new();
            for operation in trace.operations().iter().cycle().take(6) {
                driver.begin(operation.clone(), &mut moves).unwrap();
                driver.running(&mut moves).unwrap();
                driver.end(500, &mut moves).unwrap();
            }
            driver.out_of_memory(&mut moves).unwrap();
            driver.set_budget(2000, &mut moves).unwrap();
            assert_eq!(driver.used_bytes(), 0, "{}", driver.strategy().name());
        }
    }

    #[test]
    fn an_operation_above_the_budget_runs_on_the_host() {
        let trace = cyclic(2, 1000, 500).unwrap();
        let mut driver = Driver::new(Box::<Genoa>::default(), 999);
        driver.add_tensor(1000).unwrap();
        let mut moves = Vec::new();
        assert_eq!(driver.begin(trace.operations()[0].clone(), &mut moves).unwrap(), Place::Cpu);
        assert!(moves.is_empty());
    }

    /// A loop over four tensors of 1000 bytes, and a driver after its first period.
    fn after_one_period(budget: u64) -> (Trace, Driver) {
        let trace = cyclic(4, 1000, 500).unwrap();
        let mut driver = Driver::new(Box::<Lru>::default(), budget);
        (0..4).for_each(|_| {
            driver.add_tensor(1000).unwrap();
        });
        for operation in trace.operations() {
            driver.begin(operation.clone(), &mut Vec::new()).unwrap();
            driver.end(500, &mut Vec::new()).unwrap();
        }
        (trace, driver)
    }

    #[test]
    fn a_call_is_taken_back_in_spite_of_a_smaller_budget() {
        let (trace, mut driver) = after_one_period(3000);
        let on_device = |driver: &Driver| (0..4).filter(|&tensor| driver.is_on_device(tensor)).collect::<Vec<_>>();
        let before = on_device(&driver);
        let mut moves = Vec::new();
        driver.set_budget(1500, &mut moves).unwrap();
        assert!(moves.len() >= 2 && on_device(&driver) != before);
        driver.revert(&moves, 3000).unwrap();
        assert_eq!((on_device(&driver), driver.budget_bytes(), driver.used_bytes()), (before.clone(), 3000, 3000));
        let mut moves = Vec::new();
        driver.begin(trace.operations()[0].clone(), &mut moves).unwrap();
        assert!(!moves.is_empty());
        driver.revert(&moves, 3000).unwrap();
        assert_eq!((on_device(&driver), driver.used_bytes()), (before, 3000));
    }

    #[test]
    fn a_smaller_budget_evicts_at_once_and_an_invalid_copy_is_made_again() {
        let (trace, mut driver) = after_one_period(4000);
        let mut moves = Vec::new();
        driver.set_budget(1500, &mut moves).unwrap();
        assert_eq!((moves.len(), driver.used_bytes()), (3, 1000));
        let mut moves = Vec::new();
        driver.discard(3).unwrap();
        driver.begin(trace.operations()[3].clone(), &mut moves).unwrap();
        assert!(moves.contains(&Move::Fetch(3)));
    }
}
