//! Decides which tensors sit on a device, for `cotensor.tensorref`.

use crate::errors::{OrRaise, raise};
use crate::program_strategy::{Program, ProgramStrategy};
use cotensor::{Error, ErrorKind};
use cotensor_placement::{
    AllCpu, Device, Flow, Genoa, Lru, Move, Operation, Pinned, Place, Strategy, Tensor, Trace, divide,
};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::{PyTraverseError, PyVisit};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Different operations that are remembered at most.
const OPERATIONS_MAX: usize = 1 << 20;

/// Moves in their order: a tensor, and whether it is copied to the device.
type Moves = Vec<(usize, bool)>;
/// An expected operation: name, tensors, whether it runs on the device, copied and evicted tensors.
type Expected = (String, Vec<usize>, bool, Vec<usize>, Vec<usize>);

struct State {
    driver: cotensor_placement::Driver,
    /// The object that decides, if it is one of the program.
    program: Option<Arc<Program>>,
    operations: Vec<Operation>,
    /// The time of operations on the host, where they may run there.
    cpu_ns: Option<u64>,
}

/// Decides which tensors of one program sit on one device.
///
/// The strategies are ``flow`` (plans), ``genoa`` (copies before each operation and frees after it), ``lru`` (frees what was
/// not used for the longest time), ``pinned`` (keeps the first tensors) and ``cpu`` (uses no device). Moves are pairs (tensor, whether it is copied to the device), or None; make them in their order.
#[pyclass(frozen, module = "cotensor")]
pub(crate) struct Driver {
    state: Mutex<State>,
    /// As in the state, for callers that would wait for themselves.
    program: Option<Arc<Program>>,
}

fn pairs(moves: Vec<Move>) -> Option<Moves> {
    let pair = |moved| match moved {
        Move::Fetch(tensor) => (tensor, true),
        Move::Evict(tensor) => (tensor, false),
    };
    (!moves.is_empty()).then(|| moves.into_iter().map(pair).collect())
}

impl State {
    /// Shows the device to the program's object.
    fn show(&self, py: Python<'_>) -> PyResult<()> {
        let Some(program) = &self.program else { return Ok(()) };
        program.show(py, |tensor| self.driver.is_on_device(tensor), self.driver.budget_bytes())
    }

    /// Something has changed that the program's object will be shown.
    fn changed(&self) {
        self.program.iter().for_each(|program| program.changed());
    }

    /// Calls the driver. An exception of the program's object ends the operation, and none of the moves is made.
    fn call<T>(
        &mut self,
        py: Python<'_>,
        call: impl FnOnce(&mut cotensor_placement::Driver, &mut Vec<Move>) -> Result<T, Error>,
    ) -> PyResult<(T, Option<Moves>)> {
        let (mut moves, budget) = (Vec::new(), self.driver.budget_bytes());
        let made = call(&mut self.driver, &mut moves);
        if let Some(error) = self.program.as_ref().and_then(|program| program.raised()) {
            self.driver.revert(&moves, budget).or_raise(py)?;
            self.changed();
            self.show(py)?;
            return Err(error);
        }
        // The strategy knows its own moves and the budget, but not what the driver evicts beside them.
        if !moves.is_empty() {
            self.changed();
        }
        self.show(py)?;
        Ok((made.or_raise(py)?, pairs(moves)))
    }
}

impl Driver {
    /// The state. The program's object may be running in another thread, which needs the interpreter to end.
    ///
    /// # Errors
    /// `Conflict` for a method of the program's object, which the driver calls.
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, State>> {
        if self.program.as_ref().is_some_and(|program| program.is_called_by_this_thread()) {
            let message = "a method of a strategy uses its own session, which waits for the method";
            return Err(raise(py, &Error::new(ErrorKind::Conflict, message).in_field("strategy")));
        }
        Ok(self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner))
    }

    fn moves(
        &self,
        py: Python<'_>,
        make: impl FnOnce(&mut cotensor_placement::Driver, &mut Vec<Move>) -> Result<(), Error>,
    ) -> PyResult<Option<Moves>> {
        self.lock(py)?.call(py, make).map(|((), moves)| moves)
    }
}

#[pymethods]
impl Driver {
    /// A strategy by its name, or an object of a class derived from :class:`cotensor.tensorref.Strategy`, for ``budget`` bytes on
    /// the device and a link of ``bandwidth`` bytes per second.
    #[new]
    #[pyo3(signature = (strategy, budget, bandwidth, latency_ns = 0))]
    fn new(
        py: Python<'_>,
        strategy: &Bound<'_, PyAny>,
        budget: u64,
        bandwidth: u64,
        latency_ns: u64,
    ) -> PyResult<Self> {
        let device = Device::new(budget, bandwidth, latency_ns).or_raise(py)?;
        let Ok(name) = strategy.extract::<String>() else {
            let program = Program::new(strategy.clone().unbind());
            let driver = cotensor_placement::Driver::new(Box::new(ProgramStrategy::new(Arc::clone(&program))), budget);
            let own = Some(Arc::clone(&program));
            let state = State { driver, program: Some(program), operations: Vec::new(), cpu_ns: None };
            state.show(py)?;
            return Ok(Self { state: Mutex::new(state), program: own });
        };
        let chosen: Box<dyn Strategy + Send> = match name.as_str() {
            "flow" => Box::new(Flow::new(device)),
            "genoa" => Box::new(Genoa::default()),
            "lru" => Box::new(Lru::default()),
            "pinned" => Box::new(Pinned::default()),
            "cpu" => Box::new(AllCpu),
            other => {
                let text = format!("{other:?} is none of \"flow\", \"genoa\", \"lru\", \"pinned\", \"cpu\"");
                return Err(raise(py, &Error::invalid(text).in_field("strategy")));
            }
        };
        // The times are not measured: "cpu" needs none.
        let cpu_ns = (name == "cpu").then_some(0);
        let driver = cotensor_placement::Driver::new(chosen, budget);
        Ok(Self { state: Mutex::new(State { driver, program: None, operations: Vec::new(), cpu_ns }), program: None })
    }

    /// Adds a tensor of ``size`` bytes, which is on the host, and returns its number.
    fn add_tensor(&self, py: Python<'_>, size: u64) -> PyResult<usize> {
        let mut state = self.lock(py)?;
        let tensor = state.driver.add_tensor(size).or_raise(py)?;
        state.program.as_ref().map_or(Ok(()), |program| program.add_tensor(py, size))?;
        Ok(tensor)
    }

    /// Adds an operation that uses these tensors, and returns its number.
    fn add_operation(&self, py: Python<'_>, name: String, mut uses: Vec<usize>) -> PyResult<usize> {
        // As in a trace, so that an announced operation is the one that arrives.
        uses.sort_unstable();
        uses.dedup();
        let mut state = self.lock(py)?;
        if state.operations.len() >= OPERATIONS_MAX {
            return Err(raise(py, &Error::invalid(format!("{OPERATIONS_MAX} operations are the most"))));
        }
        let cpu_ns = state.cpu_ns;
        let operation = Operation { name, uses, writes: Vec::new(), compute_ns: 0, cpu_ns, workspace_bytes: 0 };
        state.operations.push(operation);
        Ok(state.operations.len() - 1)
    }

    /// Announces the operations of one period, before the first operation: pairs (operation, nanoseconds).
    fn announce(&self, py: Python<'_>, operations: Vec<(usize, u64)>) -> PyResult<()> {
        let mut state = self.lock(py)?;
        let known = |(index, compute_ns): (usize, u64)| {
            state.operations.get(index).map(|operation| Operation { compute_ns, ..operation.clone() })
        };
        let Some(operations) = operations.into_iter().map(known).collect::<Option<Vec<_>>>() else {
            return Err(raise(py, &Error::invalid("an operation does not exist").in_field("operations")));
        };
        state.call(py, |driver, _| {
            driver.strategy().announce(operations);
            Ok(())
        })?;
        Ok(())
    }

    /// The program reaches an operation. Returns whether it runs on the device, and the moves before it.
    fn begin(&self, py: Python<'_>, operation: usize) -> PyResult<(bool, Option<Moves>)> {
        let mut state = self.lock(py)?;
        let Some(operation) = state.operations.get(operation).cloned() else {
            return Err(raise(py, &Error::new(ErrorKind::Invalid, "no such operation").in_field("operation")));
        };
        let (place, moves) = state.call(py, |driver, moves| driver.begin(operation, moves))?;
        Ok((place == Place::Device, moves))
    }

    /// The operation runs. Returns moves for later operations; :meth:`end` returns those that are left.
    fn running(&self, py: Python<'_>) -> PyResult<Option<Moves>> {
        self.moves(py, |driver, moves| driver.running(moves))
    }

    /// The operation ran for ``elapsed_ns`` nanoseconds. Returns moves for later operations, then those after it.
    fn end(&self, py: Python<'_>, elapsed_ns: u64) -> PyResult<Option<Moves>> {
        self.moves(py, |driver, moves| driver.end(elapsed_ns, moves))
    }

    /// The operation failed, or ran elsewhere: the strategy does not learn from it.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.lock(py)?.driver.cancel();
        Ok(())
    }

    /// Changes the budget. Returns the evictions that a smaller one needs.
    fn set_budget(&self, py: Python<'_>, size: u64) -> PyResult<Option<Moves>> {
        self.moves(py, |driver, moves| driver.set_budget(size, moves))
    }

    /// The device had no memory. Returns the evictions of all that the operation does not need.
    fn out_of_memory(&self, py: Python<'_>) -> PyResult<Option<Moves>> {
        self.moves(py, cotensor_placement::Driver::out_of_memory)
    }

    /// The copy on the device is no longer valid, or was not made.
    fn discard(&self, py: Python<'_>, tensor: usize) -> PyResult<()> {
        let mut state = self.lock(py)?;
        state.changed();
        state.driver.discard(tensor).or_raise(py)
    }

    /// Takes an eviction back. Returns whether there was memory for it.
    fn keep(&self, py: Python<'_>, tensor: usize) -> PyResult<bool> {
        let mut state = self.lock(py)?;
        state.changed();
        Ok(state.driver.keep(tensor).is_ok())
    }

    /// Whether a tensor is on the device, or a move that was returned copies it there.
    fn is_on_device(&self, py: Python<'_>, tensor: usize) -> PyResult<bool> {
        let state = self.lock(py)?;
        Ok(tensor < state.driver.sizes().len() && state.driver.is_on_device(tensor))
    }

    /// Bytes of the tensors on the device.
    #[getter]
    fn used(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.lock(py)?.driver.used_bytes())
    }

    /// Bytes that tensors may use on the device.
    #[getter]
    fn budget(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.lock(py)?.driver.budget_bytes())
    }

    /// The next ``count`` operations: name, tensors, whether it runs on the device, copied and evicted tensors. Empty while
    /// nothing is planned.
    fn forecast(&self, py: Python<'_>, count: usize) -> PyResult<Vec<Expected>> {
        let expected = self.lock(py)?.driver.strategy().forecast(count);
        let tuple = |next: cotensor_placement::Expected| {
            (next.name, next.uses, next.place == Place::Device, next.copied, next.evicted)
        };
        Ok(expected.into_iter().map(tuple).collect())
    }

    /// For the garbage collector: the program's object may refer to this one.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.program.as_ref().map_or(Ok(()), |program| visit.call(&program.object))
    }
}

/// Divides the operations of a period among devices. Returns the device of each.
///
/// ``sizes`` are the bytes of the tensors, ``operations`` pairs (tensors, nanoseconds), and ``devices`` pairs (bytes for tensors,
/// bytes per second of the link). An operation that fits on no device gets one in spite of that.
#[pyfunction]
pub(crate) fn divide_operations(
    py: Python<'_>,
    sizes: Vec<u64>,
    operations: Vec<(Vec<usize>, u64)>,
    devices: Vec<(u64, u64)>,
) -> PyResult<Vec<usize>> {
    let divided = || {
        let largest = devices.iter().map(|&(budget, _)| budget).max().unwrap_or(0);
        let operation = |(uses, compute_ns): (Vec<usize>, u64)| {
            let bytes = uses.iter().filter_map(|&tensor| sizes.get(tensor)).sum::<u64>();
            let cpu_ns = (bytes > largest).then_some(compute_ns);
            Operation { name: String::new(), uses, writes: Vec::new(), compute_ns, cpu_ns, workspace_bytes: 0 }
        };
        let operations = operations.into_iter().map(operation).collect();
        let tensor = |(index, &size_bytes): (usize, &u64)| Tensor { id: index.to_string(), size_bytes };
        let trace = Trace::new(sizes.iter().enumerate().map(tensor).collect(), operations, 1)?;
        let devices = devices.iter().map(|&(budget, bandwidth)| Device::new(budget, bandwidth, 0));
        divide(&trace, &devices.collect::<Result<Vec<_>, Error>>()?)
    };
    py.detach(divided).or_raise(py)
}
