//! Claims of computations.

use super::backend::Backend;
use super::tensor::Tensor;
use super::ticket::Ticket;
use crate::errors::OrRaise;
use crate::interrupt::run_interruptible;
use cotensor::{Error, ErrorKind, Store};
use cotensor_core::ContentHash;
use cotensor_core::waiting::WaitClock;
use cotensor_store::{Claim, Holder, Key};
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The outcome of a claim: the results, or the ticket to compute them.
#[derive(IntoPyObject)]
pub(crate) enum Claimed {
    Ready(Vec<Tensor>),
    Compute(Ticket),
}

/// How long the claiming thread waits before it checks whether the caller still waits.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Claims a computation. Without a `timeout` it waits until the results are published or Ctrl-C interrupts it.
///
/// # Errors
/// `Invalid` for a key that is not a hash, `TimedOut` while another holder computes.
pub(crate) fn claim(
    py: Python<'_>,
    backend: &Backend,
    key: &str,
    holder: Holder,
    timeout: Option<Duration>,
) -> PyResult<Claimed> {
    let malformed = || Error::invalid("pass 64 hexadecimal digits").in_field("key");
    let key = Key(ContentHash::from_hex(key).ok_or_else(malformed).or_raise(py)?);
    let store = backend.store();
    // This thread leases results that are already published.
    if py.detach(|| store.is_computed(&key)) {
        return claimed(py, py.detach(|| store.claim(&key, &holder)), &store);
    }
    let (waiting, daemon) = (Arc::clone(&store), backend.client());
    // After an interrupt the result is dropped, which releases its leases.
    let found = run_interruptible(py, "cotensor-claim", move |is_wanted| {
        let (started, mut clock) = (Instant::now(), WaitClock::default());
        loop {
            // Without a daemon, another thread of this process computes.
            if let Some(daemon) = &daemon {
                clock.check(|| daemon.describe_claim(&key));
            }
            let left = timeout.map_or(CHECK_INTERVAL, |timeout| timeout.saturating_sub(started.elapsed()));
            match waiting.claim_within(&key, &holder, left.min(CHECK_INTERVAL)) {
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
        Claim::Compute(ticket) => Claimed::Compute(Ticket::new(ticket, Arc::clone(store))),
    })
}
