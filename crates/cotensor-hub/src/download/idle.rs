//! Limits of waits that the client does not have: its own limits are for whole answers, and the time of a large file is not
//! known. After a limit it also waits a second for each further read, which a server can repeat for ever.

use std::time::{Duration, Instant};
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};
use ureq::{Error, Timeout};

/// Limits the time of the headers of an answer, and each wait for bytes, of the connections of another connector.
#[derive(Debug)]
pub(super) struct IdleLimit(pub(super) Duration);

impl<In: Transport> Connector<In> for IdleLimit {
    type Out = Limited<In>;

    fn connect(&self, _: &ConnectionDetails<'_>, chained: Option<In>) -> Result<Option<Self::Out>, Error> {
        Ok(chained.map(|inner| Limited { inner, limit: self.0, waits_since: None }))
    }
}

/// A connection whose waits are limited.
#[derive(Debug)]
pub(super) struct Limited<T> {
    inner: T,
    limit: Duration,
    /// The first wait for the headers of the present answer.
    waits_since: Option<Instant>,
}

impl<T: Transport> Transport for Limited<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.waits_since = None;
        self.inner.transmit_output(amount, earlier(timeout, self.limit, Timeout::SendRequest)?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let (left, reason) = match timeout.reason {
            Timeout::RecvResponse => {
                let since = *self.waits_since.get_or_insert_with(Instant::now);
                (self.limit.saturating_sub(since.elapsed()), Timeout::RecvResponse)
            }
            _ => (self.limit, Timeout::RecvBody),
        };
        self.inner.await_input(earlier(timeout, left, reason)?)
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}

/// The earlier one of two limits.
///
/// # Errors
/// `Timeout` when it is over.
fn earlier(timeout: NextTimeout, left: Duration, reason: Timeout) -> Result<NextTimeout, Error> {
    let left = left.into();
    let next = if timeout.after <= left { timeout } else { NextTimeout { after: left, reason } };
    if next.after.is_zero() { Err(Error::Timeout(next.reason)) } else { Ok(next) }
}
