//! Calls and tasks of one provider that one thread waits for, whichever is done first: thousands need no thread each.

use super::link::{Link, millis};
use super::{Task, lock};
use crate::connection::Group;
use crate::functions::codec::Handed;
use crate::functions::{Arguments, CallError, Outlet, Value};
use crate::protocol::provider as p;
use cotensor_core::Result;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Calls and tasks of one provider, each under a number of its caller's choice.
pub struct Pending {
    link: Arc<Link>,
    group: Arc<Group>,
    /// By the numbers of what was asked.
    asked: Mutex<HashMap<u64, (u64, What)>>,
}

enum What {
    /// The arguments' tensors are leased until the answer is there: the provider may take them any time before.
    Call {
        _arguments: Arguments,
        _handed: Handed,
    },
    Task,
}

/// What came of one of them.
pub enum Done {
    /// A call's result.
    Call(Result<Value, CallError>),
    /// How far a task is that has ended.
    Task(Result<p::TaskInfo, CallError>),
}

impl Pending {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self { link, group: Arc::default(), asked: Mutex::default() }
    }

    /// The provider's life that all this belongs to.
    pub fn epoch(&self) -> u64 {
        self.link.epoch()
    }

    /// How many have not come back from [`next`](Self::next).
    pub fn count(&self) -> usize {
        lock(&self.asked).len()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.link.is_closed()
    }

    /// Calls a function, as [`Functions::call_within`](super::Functions::call_within), and does not wait: what comes of it
    /// is had from [`next`](Self::next), under `number`.
    ///
    /// # Errors
    /// What keeps the call from being sent.
    pub fn call(
        &self,
        number: u64,
        name: &str,
        arguments: Arguments,
        timeout: Option<Duration>,
    ) -> Result<(), CallError> {
        let (params, handed) = self.link.params(name, &arguments, timeout)?;
        // Held until the number is entered: the answer may be there before.
        let mut asked = lock(&self.asked);
        let id = self.link.ask_into::<p::Call>(&params, &self.group)?;
        asked.insert(id, (number, What::Call { _arguments: arguments, _handed: handed }));
        Ok(())
    }

    /// Where to write tensors of arguments.
    pub fn outlet(&self) -> Outlet {
        self.link.outlet()
    }

    /// Has [`next`](Self::next) tell, under `number`, when a task of this provider has ended, or `timeout` is over.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn wait_for(&self, number: u64, task: &Task, timeout: Option<Duration>) -> Result<(), CallError> {
        let params = p::WaitParams { task: task.number(), timeout_ms: timeout.map(millis) };
        let mut asked = lock(&self.asked);
        let id = self.link.ask_into::<p::Wait>(&params, &self.group)?;
        asked.insert(id, (number, What::Task));
        Ok(())
    }

    /// Waits until some are done, while `wanted` says so, which is asked now and then: those, by their numbers. Once the
    /// provider is gone, all that are left have failed.
    pub fn next(&self, wanted: &dyn Fn() -> bool) -> Vec<(u64, Done)> {
        let arrived = match self.link.wait_for(&self.group, wanted) {
            Ok(arrived) => arrived,
            Err(error) => {
                let lost = std::mem::take(&mut *lock(&self.asked));
                let failed = |(_, (number, what))| {
                    let error = CallError::NotCalled(error.clone());
                    (
                        number,
                        if matches!(what, What::Call { .. }) { Done::Call(Err(error)) } else { Done::Task(Err(error)) },
                    )
                };
                return lost.into_iter().map(failed).collect();
            }
        };
        let mut done = Vec::with_capacity(arrived.len());
        for (id, answer) in arrived {
            let Some((number, what)) = lock(&self.asked).remove(&id) else { continue };
            done.push((
                number,
                match what {
                    What::Call { .. } => {
                        let result = Link::hear::<p::Call>(answer);
                        Done::Call(result.and_then(|result| self.link.open(result)))
                    }
                    What::Task => Done::Task(Link::hear::<p::Wait>(answer)),
                },
            ));
        }
        done
    }
}
