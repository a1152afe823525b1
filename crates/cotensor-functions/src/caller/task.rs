//! `Task`: a call that a provider runs in the background.

use super::provider_connection::{MessageRanges, ProviderConnection};
use crate::call_limit::CallLimit;
use crate::failure::CallError;
use crate::value::Value;
use cotensor_client::protocol::provider as p;
use cotensor_rpc::Deadline;
use std::sync::Arc;
use std::time::Duration;

/// A handle of a task at its provider. Dropping the handle does not affect the task.
pub struct Task {
    connection: Arc<ProviderConnection>,
    number: u64,
}

impl Task {
    pub(super) fn new(connection: Arc<ProviderConnection>, number: u64) -> Self {
        Self { connection, number }
    }

    pub(super) fn connection(&self) -> &Arc<ProviderConnection> {
        &self.connection
    }

    /// The task's number, unique at its provider.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The epoch of the task's provider.
    pub fn epoch(&self) -> u64 {
        self.connection.epoch()
    }

    /// The task's state.
    ///
    /// # Errors
    /// `NotFound` when the provider no longer keeps the task, `Io` when the provider has ended.
    pub fn status(&self) -> Result<p::TaskInfo, CallError> {
        self.connection.request::<p::Status>(&p::TaskParams { task: self.number })
    }

    /// Waits until the task ends, for at most `timeout`. Returns its state.
    ///
    /// # Errors
    /// As [`status`](Self::status); `TimedOut` when the provider does not answer.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<p::TaskInfo, CallError> {
        self.wait_until(timeout, None)
    }

    /// As [`wait`](Self::wait), while `wanted` returns true. It is checked periodically and after signals.
    ///
    /// # Errors
    /// As [`status`](Self::status); `Conflict` once `wanted` returned false.
    pub fn wait_while(&self, timeout: Option<Duration>, wanted: &dyn Fn() -> bool) -> Result<p::TaskInfo, CallError> {
        self.wait_until(timeout, Some(wanted))
    }

    fn wait_until(
        &self,
        timeout: Option<Duration>,
        wanted: Option<&dyn Fn() -> bool>,
    ) -> Result<p::TaskInfo, CallError> {
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return self.status();
        }
        let limit = CallLimit::of_call(Deadline::from(timeout).for_state(), wanted)?;
        let params = p::WaitParams { task: self.number, timeout_ms: limit.deadline.left_ms() };
        let what = format_args!("to end the task {}", self.number);
        self.connection.request_until::<p::Wait>(&params, what, MessageRanges::default(), &limit, |_, _| {})
    }

    /// The task's result. Can be called repeatedly.
    ///
    /// # Errors
    /// The function's failure; `Conflict` before the task ends; else as [`status`](Self::status).
    pub fn result(&self) -> Result<Value, CallError> {
        let result = self.connection.request::<p::TaskResult>(&p::TaskParams { task: self.number })?;
        self.connection.open(result)
    }

    /// Cancels the task unless it has ended. A running function sees the cancellation in its
    /// [`Context`](crate::Context::is_cancelled).
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub fn cancel(&self) -> Result<p::TaskInfo, CallError> {
        self.connection.request::<p::Cancel>(&p::TaskParams { task: self.number })
    }
}
