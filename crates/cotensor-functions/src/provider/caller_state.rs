//! The state that a provider keeps for one caller: references to objects, results that the caller has not leased, and
//! calls.

use super::run::Run;
use super::timer::TimeLimit;
use crate::codec::SentTensors;
use crate::{Object, Value};
use cotensor_client::protocol::provider::ObjectRef;
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The most results whose tensors the caller has not leased.
const UNTAKEN_RESULTS_MAX: usize = 16 << 10;

#[derive(Default)]
pub(super) struct CallerState(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    /// The last number of a result or a call.
    last: u64,
    objects: HashMap<u64, Object>,
    /// Results whose tensors stay leased until the caller has leased them.
    untaken: HashMap<u64, (Arc<Value>, SentTensors)>,
    calls: HashMap<u64, WaitingCall>,
    /// By the ids of the requests.
    cancels: HashMap<u64, Cancel>,
    ended: bool,
}

impl Tables {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// Cancels a request that has no answer.
pub(super) type Cancel = Box<dyn FnOnce() + Send>;

/// A call that waits for the outcome of a run.
struct WaitingCall {
    run: Arc<Run>,
    watcher: u64,
    limit: Option<TimeLimit>,
    /// The id of the request, if it can be cancelled.
    id: Option<u64>,
}

impl CallerState {
    /// Releases objects and results, and leaves the runs of all calls.
    pub(super) fn end(&self) {
        let tables = std::mem::replace(&mut *lock(&self.0), Tables { ended: true, ..Tables::default() });
        for call in tables.calls.values() {
            call.run.leave(call.watcher);
        }
    }

    /// Lets the caller cancel the request `id`, until [`remove_cancel`](Self::remove_cancel).
    pub(super) fn add_cancel(&self, id: u64, cancel: Cancel) {
        let replaced = lock(&self.0).cancels.insert(id, cancel);
        drop(replaced);
    }

    pub(super) fn remove_cancel(&self, id: u64) {
        let removed = lock(&self.0).cancels.remove(&id);
        drop(removed);
    }

    /// Cancels the request `id`, unless it has an answer.
    pub(super) fn cancel(&self, id: u64) {
        let cancel = lock(&self.0).cancels.remove(&id);
        if let Some(cancel) = cancel {
            cancel();
        }
    }

    /// A number for a new call.
    pub(super) fn next_call(&self) -> u64 {
        lock(&self.0).next()
    }

    /// Records that a call waits for a run.
    pub(super) fn add_call(&self, call: u64, run: &Arc<Run>, watcher: u64) {
        let mut tables = lock(&self.0);
        let ended = tables.ended;
        tables.calls.insert(call, WaitingCall { run: Arc::clone(run), watcher, limit: None, id: None });
        drop(tables);
        // The run may have ended before the entry existed.
        if ended || run.is_over() {
            self.remove_call(call);
        }
    }

    /// Removes a call that was answered. A run without callers is cancelled.
    pub(super) fn remove_call(&self, call: u64) {
        let mut tables = lock(&self.0);
        let call = tables.calls.remove(&call);
        let cancel = call.as_ref().and_then(|call| tables.cancels.remove(&call.id?));
        drop(tables);
        drop(cancel);
        if let Some(WaitingCall { run, watcher, .. }) = call {
            run.leave(watcher);
        }
    }

    /// Lets the caller cancel a call by the id of its request, until the call is removed.
    pub(super) fn set_cancel(&self, call: u64, id: u64, cancel: Cancel) {
        let mut tables = lock(&self.0);
        let unused = match tables.calls.get_mut(&call) {
            Some(call) => {
                call.id = Some(id);
                tables.cancels.insert(id, cancel)
            }
            None => Some(cancel),
        };
        drop(tables);
        drop(unused);
    }

    /// Sets the time limit of a call. It is cancelled when the call is removed.
    pub(super) fn set_limit(&self, call: u64, limit: TimeLimit) {
        let mut tables = lock(&self.0);
        let unused = match tables.calls.get_mut(&call) {
            Some(call) => call.limit.replace(limit),
            None => Some(limit),
        };
        drop(tables);
        drop(unused);
    }

    /// Keeps the leases of a result until [`take_result`](Self::take_result) with the returned number.
    ///
    /// # Errors
    /// `Conflict` when the caller has not taken too many results; returns the sent tensors as well.
    pub(super) fn add_result(&self, value: &Arc<Value>, sent: SentTensors) -> Result<u64, (Error, SentTensors)> {
        let mut tables = lock(&self.0);
        if tables.untaken.len() >= UNTAKEN_RESULTS_MAX {
            let message = format!("the caller has not taken {UNTAKEN_RESULTS_MAX} results; send `result.taken`");
            return Err((Error::new(ErrorKind::Conflict, message), sent));
        }
        let number = tables.next();
        tables.untaken.insert(number, (Arc::clone(value), sent));
        Ok(number)
    }

    /// Releases the leases of a result.
    pub(super) fn take_result(&self, number: u64) {
        let taken = lock(&self.0).untaken.remove(&number);
        drop(taken);
    }

    /// Adds the reference `id` to an object.
    ///
    /// # Errors
    /// `Conflict` when the caller has `max` references.
    pub(super) fn add_object(&self, id: u64, object: &Object, max: usize) -> Result<()> {
        let mut tables = lock(&self.0);
        if tables.objects.len() >= max {
            let message = format!("the caller has references to {max} objects; release some");
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        tables.objects.insert(id, object.clone());
        Ok(())
    }

    /// The object of a reference.
    ///
    /// # Errors
    /// `NotFound` for a released reference.
    pub(super) fn object(&self, object: ObjectRef) -> Result<Object> {
        lock(&self.0).objects.get(&object.id).cloned().ok_or_else(|| released(object))
    }

    /// Releases a reference.
    ///
    /// # Errors
    /// As [`object`](Self::object).
    pub(super) fn release(&self, object: ObjectRef) -> Result<()> {
        let removed = lock(&self.0).objects.remove(&object.id);
        removed.map(drop).ok_or_else(|| released(object))
    }
}

pub(super) fn released(object: ObjectRef) -> Error {
    Error::not_found(format!("object {} was released", object.id)).in_field("object")
}
