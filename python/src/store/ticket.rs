//! The right to compute a claimed result.

use super::builder::TensorBuilder;
use super::tensor::Tensor;
use crate::errors::{OrRaise, raise};
use crate::process::ProcessLocal;
use cotensor::{Error, ErrorKind, Store};
use cotensor_core::sync::lock;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex};

/// The right to compute a claimed result: ``publish`` the result, or ``abandon`` the claim. Dropping a ticket abandons
/// the claim, and one of the waiting callers computes.
#[pyclass(frozen, module = "cotensor")]
pub(crate) struct Ticket {
    ticket: Mutex<Option<ProcessLocal<cotensor_store::Ticket>>>,
    store: ProcessLocal<Arc<dyn Store>>,
}

impl Ticket {
    pub(super) fn new(ticket: cotensor_store::Ticket, store: Arc<dyn Store>) -> Self {
        Self { ticket: Mutex::new(Some(ProcessLocal::new(ticket))), store: ProcessLocal::new(store) }
    }

    fn take(&self, py: Python<'_>) -> PyResult<cotensor_store::Ticket> {
        let taken = lock(&self.ticket).take();
        let ours = taken.filter(ProcessLocal::is_ours).map(ProcessLocal::into_inner);
        ours.ok_or_else(|| raise(py, &Error::new(ErrorKind::Conflict, "this ticket was already used")))
    }
}

#[pymethods]
impl Ticket {
    /// Publishes the results for all waiting callers, and returns them in the order of the builders.
    fn publish(&self, py: Python<'_>, builders: Vec<Bound<'_, TensorBuilder>>) -> PyResult<Vec<Tensor>> {
        let ticket = self.take(py)?;
        let reservations =
            builders.iter().map(|builder| builder.get().take_reservation(py)).collect::<PyResult<Vec<_>>>()?;
        let leases = py.detach(|| ticket.publish(reservations)).or_raise(py)?;
        for (builder, lease) in builders.iter().zip(&leases) {
            builder.get().set_published(lease).or_raise(py)?;
        }
        Ok(leases.into_iter().map(|lease| Tensor::new(lease, Arc::clone(&self.store))).collect())
    }

    /// Ends the claim without a result: one of the waiting callers computes.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        let ticket = self.take(py)?;
        py.detach(|| ticket.abandon());
        Ok(())
    }

    fn __repr__(&self) -> &'static str {
        let open = lock(&self.ticket).is_some();
        if open { "<Ticket>" } else { "<Ticket, used>" }
    }
}
