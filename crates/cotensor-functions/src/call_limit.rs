//! How long a caller waits for a function.

use crate::failure::{CallError, Failure};
use crate::scope::Scope;
use cotensor_client::protocol::provider::RunRef;
use cotensor_rpc::{Deadline, cancelled_call};
use std::sync::Arc;

/// The limit of a call: its deadline, a condition of its caller, and the scope of the run that makes it.
pub(crate) struct CallLimit<'a> {
    pub(crate) deadline: Deadline,
    wanted: Option<&'a dyn Fn() -> bool>,
    /// Of the run that makes the call.
    pub(crate) scope: Option<Arc<Scope>>,
}

impl<'a> CallLimit<'a> {
    /// The limit of a call that the current function waits for. The time that is left to the function bounds `deadline`.
    ///
    /// # Errors
    /// `cancelled` or `timed_out` when the function itself was cancelled or its time is over.
    pub(crate) fn of_call(deadline: Deadline, wanted: Option<&'a dyn Fn() -> bool>) -> Result<Self, CallError> {
        let scope = Scope::current();
        if scope.as_ref().is_some_and(|scope| scope.is_cancelled()) {
            return Err(CallError::Failed(Failure::cancelled()));
        }
        let deadline = match scope.as_ref().and_then(|scope| scope.time_left()) {
            Some(left) if left.is_zero() => return Err(CallError::Failed(Failure::out_of_time())),
            Some(left) => deadline.at_most(left),
            None => deadline,
        };
        Ok(Self { deadline, wanted, scope })
    }

    /// The limit of a request that needs no function to run.
    pub(crate) fn of_request(deadline: Deadline) -> Self {
        Self { deadline, wanted: None, scope: None }
    }

    /// Whether [`goes_on`](Self::goes_on) may return false.
    pub(crate) fn has_condition(&self) -> bool {
        self.wanted.is_some() || self.scope.is_some()
    }

    /// Whether the caller still waits.
    pub(crate) fn goes_on(&self) -> bool {
        !self.is_cancelled() && self.wanted.is_none_or(|wanted| wanted())
    }

    /// Whether the run that makes the call was cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.scope.as_ref().is_some_and(|scope| scope.is_cancelled())
    }

    /// The error of a call whose caller stopped waiting; `field` names the method.
    pub(crate) fn stopped(&self, field: &str) -> CallError {
        if self.is_cancelled() {
            CallError::Failed(Failure::cancelled())
        } else {
            cancelled_call().in_field(field).into()
        }
    }

    /// The runs that wait for the call.
    pub(crate) fn waiting(&self) -> Vec<RunRef> {
        self.scope.as_ref().map(|scope| scope.chain()).unwrap_or_default()
    }
}
