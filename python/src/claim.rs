//! Computing once.

use crate::arrays::shown_by;
use crate::draft::Draft;
use crate::errors::{OrRaise, raise};
use crate::interrupt::patiently;
use crate::process::Own;
use crate::source::Source;
use crate::tensor::Tensor;
use cotensor::{Error, ErrorKind, Store};
use cotensor_core::{ContentHash, Hasher};
use cotensor_store::{Claim, Holder, Key};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The right and the duty to compute what was claimed: ``publish`` the results, or ``decline``. Dropped, it is declined, and
/// one of those who wait computes.
#[pyclass(frozen, module = "cotensor")]
pub(crate) struct Ticket {
    ticket: Mutex<Option<Own<cotensor_store::Ticket>>>,
    store: Own<Arc<dyn Store>>,
}

impl Ticket {
    fn take(&self, py: Python<'_>) -> PyResult<cotensor_store::Ticket> {
        let taken = self.ticket.lock().unwrap_or_else(PoisonError::into_inner).take();
        let ours = taken.filter(Own::is_ours).map(Own::into_inner);
        ours.ok_or_else(|| raise(py, &Error::new(ErrorKind::Conflict, "this ticket was used already")))
    }
}

#[pymethods]
impl Ticket {
    /// Publishes the results, which whoever waits gets: tensors in the drafts' order.
    fn publish(&self, py: Python<'_>, drafts: Vec<Bound<'_, Draft>>) -> PyResult<Vec<Tensor>> {
        let ticket = self.take(py)?;
        let open = drafts.iter().map(|draft| draft.get().open(py)).collect::<PyResult<Vec<_>>>()?;
        let leases = py.detach(|| ticket.publish(open)).or_raise(py)?;
        for (draft, lease) in drafts.iter().zip(&leases) {
            draft.get().keep(lease).or_raise(py)?;
        }
        Ok(leases.into_iter().map(|lease| Tensor::new(lease, Arc::clone(&self.store))).collect())
    }

    /// Gives the claim up: the result stays the caller's own.
    fn decline(&self, py: Python<'_>) -> PyResult<()> {
        let ticket = self.take(py)?;
        py.detach(|| ticket.decline());
        Ok(())
    }

    fn __repr__(&self) -> &'static str {
        let open = self.ticket.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if open { "<Ticket>" } else { "<Ticket, used>" }
    }
}

/// What a claim gave: results, or the ticket to compute them.
#[derive(IntoPyObject)]
pub(crate) enum Claimed {
    Ready(Vec<Tensor>),
    Compute(Ticket),
}

/// One wait of a thread that claims. Between two of them the thread looks whether the caller still waits.
const WAIT: Duration = Duration::from_secs(1);

/// Claims a computation. Without a `timeout`, waits until the results are there or Ctrl-C ends it.
pub(crate) fn claim(
    py: Python<'_>,
    store: Arc<dyn Store>,
    key: &str,
    holder: Holder,
    timeout: Option<Duration>,
) -> PyResult<Claimed> {
    let wrong = || Error::invalid("64 hexadecimal digits are expected").in_field("key");
    let key = Key(ContentHash::from_hex(key).ok_or_else(wrong).or_raise(py)?);
    // What is there is had at once, by this thread.
    if py.detach(|| store.is_computed(&key)) {
        return claimed(py, py.detach(|| store.claim(&key, &holder)), &store);
    }
    let waiting = Arc::clone(&store);
    // A result that comes when nobody waits is dropped, and so given back.
    let found = patiently(py, "cotensor-claim", move |is_wanted| {
        let started = Instant::now();
        loop {
            let left = timeout.map_or(WAIT, |timeout| timeout.saturating_sub(started.elapsed()));
            match waiting.claim_within(&key, &holder, left.min(WAIT)) {
                Err(error) if error.kind() == ErrorKind::TimedOut && left > Duration::ZERO && is_wanted() => {}
                found => return found,
            }
        }
    })?;
    claimed(py, found, &store)
}

fn claimed(py: Python<'_>, found: Result<Claim, Error>, store: &Arc<dyn Store>) -> PyResult<Claimed> {
    Ok(match found.or_raise(py)? {
        Claim::Ready(leases) => {
            Claimed::Ready(leases.into_iter().map(|lease| Tensor::new(lease, Arc::clone(store))).collect())
        }
        Claim::Compute(ticket) => {
            let ticket = Mutex::new(Some(Own::new(ticket)));
            Claimed::Compute(Ticket { ticket, store: Own::new(Arc::clone(store)) })
        }
    })
}

/// The BLAKE3 hash, in 64 hexadecimal digits, of arrays and texts in order, with their dtypes and shapes: equal hashes are
/// equal values. For keys of computations.
#[pyfunction]
#[pyo3(signature = (*parts))]
pub(crate) fn content_hash(py: Python<'_>, parts: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<String> {
    let mut hasher = Hasher::new("cotensor python key v1");
    for part in parts {
        if let Ok(text) = part.extract::<String>() {
            hasher.field(b"text").field(text.as_bytes());
            continue;
        }
        // What is in the store already is hashed once for each version, not for each call.
        let identity = match shown_by(py, &part)? {
            Some(held) => py.detach(|| held.lease().identity()),
            None => Source::of(&part, &"part")?.identity(py)?,
        };
        hasher.field(b"array").field(identity.as_bytes());
    }
    Ok(hasher.finish().to_string())
}
