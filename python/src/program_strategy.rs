//! Strategies that programs bring: objects of `cotensor.tensorref.Strategy`.

use crate::errors::raise;
use cotensor::{Error, ErrorKind};
use cotensor_core::sync::lock;
use cotensor_placement::{Move, Nanos, Operation, Place, Strategy, TensorIndex, View};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// The object of a program, which both its driver and its strategy use.
pub(crate) struct Program {
    pub(crate) object: Py<PyAny>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Tensors in the order of their last use or copy.
    order: Vec<TensorIndex>,
    /// The first exception since the driver asked.
    raised: Option<PyErr>,
}

impl Program {
    pub(crate) fn new(object: Py<PyAny>) -> Arc<Self> {
        Arc::new(Self { object, state: Mutex::default() })
    }

    /// Adds a tensor of `size` bytes to the object's `sizes`.
    pub(crate) fn add_tensor(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.object.getattr(py, "sizes")?.call_method1(py, "append", (size,)).map(drop)
    }

    /// Sets the object's `on_device` and `budget`.
    pub(crate) fn show(&self, py: Python<'_>, is_on_device: impl Fn(TensorIndex) -> bool, budget: u64) -> PyResult<()> {
        let shown = PyDict::new(py);
        let order = lock(&self.state).order.clone();
        for tensor in order.into_iter().filter(|&tensor| is_on_device(tensor)) {
            shown.set_item(tensor, py.None())?;
        }
        self.object.setattr(py, "on_device", shown)?;
        self.object.setattr(py, "budget", budget)
    }

    /// The exception that the object has raised, once.
    pub(crate) fn raised(&self) -> Option<PyErr> {
        lock(&self.state).raised.take()
    }

    fn has_raised(&self) -> bool {
        lock(&self.state).raised.is_some()
    }

    fn touch(&self, tensor: TensorIndex) {
        let order = &mut lock(&self.state).order;
        order.retain(|&other| other != tensor);
        order.push(tensor);
    }

    /// What a method of the object returns. After an exception, no method is called until the driver has asked for it.
    fn ask<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Option<T> {
        if self.has_raised() {
            return None;
        }
        Python::attach(|py| match call(self.object.bind(py)) {
            Ok(answer) => Some(answer),
            Err(error) => {
                lock(&self.state).raised = Some(error);
                None
            }
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

    /// Calls a method with the operation under way, after the object has been shown the device.
    fn ask<T>(
        &self,
        view: &View<'_>,
        call: impl FnOnce(&Bound<'_, PyAny>, &str, Bound<'_, PyTuple>) -> PyResult<T>,
    ) -> Option<T> {
        self.program.ask(|object| {
            self.program.show(object.py(), |tensor| view.is_on_device(tensor), view.budget_bytes())?;
            let (name, uses) = &self.current;
            call(object, name, PyTuple::new(object.py(), uses)?)
        })
    }

    /// The tensor that the object evicts. `None` if all are in use.
    fn evicted(&self, view: &View<'_>) -> Option<TensorIndex> {
        if view.on_device().all(|tensor| view.is_needed_now(tensor)) {
            return None;
        }
        self.ask(view, |object, name, uses| {
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
        Place::Device
    }

    fn next_move(&mut self, view: &View<'_>) -> Option<Move> {
        if self.program.has_raised() {
            return None;
        }
        if view.short_bytes() > 0 {
            return self.evicted(view).map(Move::Evict);
        }
        if view.waiting().is_some() {
            return view.missing().filter(|&tensor| view.can_fetch(tensor)).map(Move::Fetch);
        }
        if std::mem::take(&mut self.is_to_ask) {
            let asked = self.ask(view, |object, name, uses| numbers(&object.call_method1("ahead", (name, uses))?));
            self.ahead = asked.unwrap_or_default();
        }
        let known = view.sizes().len();
        while let Some(tensor) = self.leaving.pop_front() {
            if tensor < known && view.is_on_device(tensor) {
                return Some(Move::Evict(tensor));
            }
        }
        while let Some(tensor) = self.ahead.pop_front() {
            if tensor < known && view.can_fetch(tensor) {
                self.program.touch(tensor);
                return Some(Move::Fetch(tensor));
            }
        }
        None
    }

    fn finished(&mut self, _: &Operation, elapsed_ns: Nanos, view: &View<'_>) {
        let after = |object: &Bound<'_, PyAny>, name: &str, uses: Bound<'_, PyTuple>| {
            numbers(&object.call_method1("after", (name, uses, elapsed_ns))?)
        };
        self.leaving = self.ask(view, after).unwrap_or_default();
        self.is_to_ask = false;
        self.current = (String::new(), Vec::new());
    }

    fn announce(&mut self, operations: Vec<Operation>) {
        let tuple = |operation: Operation| (operation.name, operation.uses, operation.compute_ns);
        let announced: Vec<_> = operations.into_iter().map(tuple).collect();
        let _ = self.program.ask(|object| object.call_method1("announce", (announced,)).map(drop));
    }
}
