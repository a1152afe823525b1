//! Tasks that a provider has taken on.

use super::link::{Lent, Link};
use crate::{CallError, Value};
use cotensor_client::protocol::provider as p;
use cotensor_rpc::Deadline;
use std::sync::Arc;
use std::time::Duration;

/// A task of a provider's. Dropping this changes nothing about it.
pub struct Task {
    link: Arc<Link>,
    number: u64,
}

impl Task {
    pub(super) fn new(link: Arc<Link>, number: u64) -> Self {
        Self { link, number }
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Its number with its provider.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The life of the provider that it belongs to.
    pub fn epoch(&self) -> u64 {
        self.link.epoch()
    }

    /// How far it is.
    ///
    /// # Errors
    /// `NotFound` when its time to live is over, `Io` when its provider has ended.
    pub fn status(&self) -> Result<p::TaskInfo, CallError> {
        self.link.ask::<p::Status>(&p::TaskParams { task: self.number })
    }

    /// Waits until it has ended, for at most `timeout`; how far it is then.
    ///
    /// # Errors
    /// As [`status`](Self::status); `TimedOut` when its provider does not answer.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<p::TaskInfo, CallError> {
        self.wait_by(timeout, None)
    }

    /// As [`wait`](Self::wait), for as long as `wanted` says so, which is asked now and then and after signals.
    ///
    /// # Errors
    /// As [`status`](Self::status); `Conflict` once `wanted` said no.
    pub fn wait_while(&self, timeout: Option<Duration>, wanted: &dyn Fn() -> bool) -> Result<p::TaskInfo, CallError> {
        self.wait_by(timeout, Some(wanted))
    }

    fn wait_by(&self, timeout: Option<Duration>, wanted: Option<&dyn Fn() -> bool>) -> Result<p::TaskInfo, CallError> {
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return self.status();
        }
        let deadline = Deadline::from(timeout).for_state();
        let params = p::WaitParams { task: self.number, timeout_ms: deadline.left_ms() };
        self.link.ask_by::<p::Wait>(&params, Lent::default(), &deadline, wanted, |_, _| {})
    }

    /// Its result, as often as it is asked for.
    ///
    /// # Errors
    /// The function's own failure; `Conflict` while it has not ended; else as [`status`](Self::status).
    pub fn result(&self) -> Result<Value, CallError> {
        let result = self.link.ask::<p::TaskResult>(&p::TaskParams { task: self.number })?;
        self.link.open(result)
    }

    /// Cancels it, unless it has ended. A function that runs is asked to stop.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub fn cancel(&self) -> Result<p::TaskInfo, CallError> {
        self.link.ask::<p::Cancel>(&p::TaskParams { task: self.number })
    }
}
