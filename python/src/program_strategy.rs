//! Strategies that programs bring: objects of `cotensor.tensorref.Strategy`.

use crate::errors::raise;
use cotensor::{Error, ErrorKind};
use cotensor_core::sync::lock;
use cotensor_placement::{Move, Nanos, Operation, Place, Strategy, TensorIndex, View};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

/// The object of a program, which both its driver and its strategy use.
pub(crate) struct Program {
    pub(crate) object: Py<PyAny>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of the last use or copy of each tensor.
    last: HashMap<TensorIndex, u64>,
    uses: u64,
    /// Whether the object shows the device and the budget as they are.
    is_shown: bool,
    /// The first exception since the driver asked.
    raised: Option<PyErr>,
    /// The thread in which a method of the object runs.
    caller: Option<ThreadId>,
}

impl Program {
    pub(crate) fn new(object: Py<PyAny>) -> Arc<Self> {
        Arc::new(Self { object, state: Mutex::default() })
    }

    /// Adds a tensor of `size` bytes to the object's `sizes`.
    pub(crate) fn add_tensor(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.object.getattr(py, "sizes")?.call_method1(py, "append", (size,)).map(drop)
    }

    /// Sets the object's `on_device`, in the order of the last uses, and `budget`, if something has [changed](Self::changed).
    pub(crate) fn show(&self, py: Python<'_>, is_on_device: impl Fn(TensorIndex) -> bool, budget: u64) -> PyResult<()> {
        let mut order: Vec<(u64, TensorIndex)> = {
            let mut state = lock(&self.state);
            if std::mem::replace(&mut state.is_shown, true) {
                return Ok(());
            }
            let there = state.last.iter().filter(|&(&tensor, _)| is_on_device(tensor));
            there.map(|(&tensor, &last)| (last, tensor)).collect()
        };
        order.sort_unstable();
        let shown = PyDict::new(py);
        for (_, tensor) in order {
            shown.set_item(tensor, py.None())?;
        }
        self.object.setattr(py, "on_device", shown)?;
        self.object.setattr(py, "budget", budget)
    }

    /// The device or the budget has changed.
    pub(crate) fn changed(&self) {
        lock(&self.state).is_shown = false;
    }

    /// Whether a method of the object runs in this thread.
    pub(crate) fn is_called_by_this_thread(&self) -> bool {
        lock(&self.state).caller == Some(thread::current().id())
    }

    /// The exception that the object has raised, once.
    pub(crate) fn raised(&self) -> Option<PyErr> {
        lock(&self.state).raised.take()
    }

    fn has_raised(&self) -> bool {
        lock(&self.state).raised.is_some()
    }

    fn touch(&self, tensor: TensorIndex) {
        let mut state = lock(&self.state);
        state.uses += 1;
        let uses = state.uses;
        state.last.insert(tensor, uses);
        state.is_shown = false;
    }

    /// What a method of the object returns. After an exception, no method is called until the driver has asked for it.
    fn ask<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Option<T> {
        if self.has_raised() {
            return None;
        }
        Python::attach(|py| {
            lock(&self.state).caller = Some(thread::current().id());
            let answer = call(self.object.bind(py));
            let mut state = lock(&self.state);
            state.caller = None;
            answer.map_err(|error| state.raised = Some(error)).ok()
        })
    }
}

/// The decisions of a [`Program`].
pub(crate) struct ProgramStrategy {
    program: Arc<Program>,
    /// Name and tensors of the operation under way.
    current: (String, Vec<TensorIndex>),
    /// Whether copies beside the operation are still to be asked for.
    is_to_ask: bool,
    ahead: VecDeque<TensorIndex>,
    leaving: VecDeque<TensorIndex>,
}

impl ProgramStrategy {
    pub(crate) fn new(program: Arc<Program>) -> Self {
        let (ahead, leaving) = (VecDeque::new(), VecDeque::new());
        Self { program, current: (String::new(), Vec::new()), is_to_ask: false, ahead, leaving }
    }

    /// Calls a method with an operation, after the object has been shown the device.
    fn ask<T>(
        &self,
        view: &View<'_>,
        (name, uses): (&str, &[TensorIndex]),
        call: impl FnOnce(&Bound<'_, PyAny>, &str, Bound<'_, PyTuple>) -> PyResult<T>,
    ) -> Option<T> {
        self.program.ask(|object| {
            self.program.show(object.py(), |tensor| view.is_on_device(tensor), view.budget_bytes())?;
            call(object, name, PyTuple::new(object.py(), uses)?)
        })
    }

    fn operation(&self) -> (&str, &[TensorIndex]) {
        (&self.current.0, &self.current.1)
    }

    /// A move that the driver makes.
    fn moved(&self, moved: Move) -> Option<Move> {
        if let Move::Fetch(tensor) = moved {
            self.program.touch(tensor);
        }
        self.program.changed();
        Some(moved)
    }

    /// The tensor that the object evicts. `None` if all are in use.
    fn evicted(&self, view: &View<'_>) -> Option<TensorIndex> {
        if view.on_device().all(|tensor| view.is_needed_now(tensor)) {
            return None;
        }
        // One that was cancelled, or runs on the host, needs nothing.
        let is_now = self.current.1.iter().any(|&tensor| view.is_needed_now(tensor));
        let operation = if is_now { self.operation() } else { ("", &[][..]) };
        self.ask(view, operation, |object, name, uses| {
            let tensor: TensorIndex = object.call_method1("evict", (name, uses))?.extract()?;
            if view.sizes().len() > tensor && view.is_on_device(tensor) && !view.is_needed_now(tensor) {
                return Ok(tensor);
            }
            let message = format!("the strategy evicts weight {tensor}, which is in use or not on the device");
            Err(raise(object.py(), &Error::new(ErrorKind::Conflict, message)))
        })
    }
}

fn numbers(answer: &Bound<'_, PyAny>) -> PyResult<VecDeque<TensorIndex>> {
    answer.try_iter()?.map(|number| number?.extract()).collect()
}

impl Strategy for ProgramStrategy {
    fn name(&self) -> &str {
        "program"
    }

    fn arrive(&mut self, operation: &Operation, _: &View<'_>) -> Place {
        operation.uses.iter().for_each(|&tensor| self.program.touch(tensor));
        self.current = (operation.name.clone(), operation.uses.clone());
        self.is_to_ask = true;
        self.ahead.clear();
        self.leaving.clear();
        Place::Device
    }

    fn next_move(&mut self, view: &View<'_>) -> Option<Move> {
        if self.program.has_raised() {
            return None;
        }
        if view.short_bytes() > 0 {
            return self.evicted(view).and_then(|tensor| self.moved(Move::Evict(tensor)));
        }
        if view.waiting().is_some() {
            let missing = view.missing().filter(|&tensor| view.can_fetch(tensor));
            return missing.and_then(|tensor| self.moved(Move::Fetch(tensor)));
        }
        if std::mem::take(&mut self.is_to_ask) {
            let ahead = |object: &Bound<'_, PyAny>, name: &str, uses: Bound<'_, PyTuple>| {
                numbers(&object.call_method1("ahead", (name, uses))?)
            };
            self.ahead = self.ask(view, self.operation(), ahead).unwrap_or_default();
        }
        let known = view.sizes().len();
        while let Some(tensor) = self.leaving.pop_front() {
            if tensor < known && view.is_on_device(tensor) && !view.is_needed_now(tensor) {
                return self.moved(Move::Evict(tensor));
            }
        }
        while let Some(tensor) = self.ahead.pop_front() {
            if tensor < known && view.can_fetch(tensor) {
                return self.moved(Move::Fetch(tensor));
            }
        }
        None
    }

    fn finished(&mut self, _: &Operation, elapsed_ns: Nanos, view: &View<'_>) {
        let after = |object: &Bound<'_, PyAny>, name: &str, uses: Bound<'_, PyTuple>| {
            numbers(&object.call_method1("after", (name, uses, elapsed_ns))?)
        };
        self.leaving = self.ask(view, self.operation(), after).unwrap_or_default();
        self.is_to_ask = false;
        self.current = (String::new(), Vec::new());
    }

    fn budget_changed(&mut self, _: &View<'_>) {
        self.is_to_ask = false;
        self.program.changed();
    }

    fn out_of_memory(&mut self, _: &View<'_>) {
        self.is_to_ask = false;
    }

    fn announce(&mut self, operations: Vec<Operation>) {
        let tuple = |operation: Operation| (operation.name, operation.uses, operation.compute_ns);
        let announced: Vec<_> = operations.into_iter().map(tuple).collect();
        let _ = self.program.ask(|object| object.call_method1("announce", (announced,)).map(drop));
    }
}
