//! Calls and tasks of one provider that one thread waits for, whichever is done first: thousands need no thread each.

use super::link::{Lent, Link};
use super::{Task, lock};
use crate::codec::Handed;
use crate::{Arguments, CallError, Outlet, Value};
use cotensor_client::protocol::Method;
use cotensor_client::protocol::provider as p;
use cotensor_core::{Error, Result};
use cotensor_rpc::Deadline;
use cotensor_rpc::{Group, Until};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Calls and tasks of one provider, each under a number of its caller's choice.
pub struct Pending {
    link: Arc<Link>,
    group: Arc<Group>,
    /// By the numbers of what was asked.
    asked: Mutex<HashMap<u64, Waiting>>,
}

/// What the caller waits for, under its number.
struct Waiting {
    number: u64,
    what: What,
    deadline: Deadline,
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
        let deadline = timeout.into();
        let (params, handed) = self.link.params(name, &arguments, &deadline)?;
        // Held until the number is entered: the answer may be there before.
        let mut asked = lock(&self.asked);
        let lent = Lent { handed: Some(&handed), returned: &params.returned };
        let id = self.link.ask_into::<p::Call>(&params, lent, &deadline, &self.group)?;
        let what = What::Call { _arguments: arguments, _handed: handed };
        asked.insert(id, Waiting { number, what, deadline });
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
        let deadline = Deadline::from(timeout).for_state();
        let params = p::WaitParams { task: task.number(), timeout_ms: deadline.left_ms() };
        let mut asked = lock(&self.asked);
        let id = self.link.ask_into::<p::Wait>(&params, Lent::default(), &deadline, &self.group)?;
        asked.insert(id, Waiting { number, what: What::Task, deadline });
        Ok(())
    }

    /// Waits until some are done or late, while `wanted` says so, which is asked now and then: those, by their numbers. Once
    /// the provider is gone, all that are left have failed.
    pub fn next(&self, wanted: &dyn Fn() -> bool) -> Vec<(u64, Done)> {
        let deadline = lock(&self.asked).values().filter_map(|waiting| waiting.deadline.until(None).deadline).min();
        let arrived = match self.link.wait_for(&self.group, &Until { deadline, wanted: Some(wanted) }) {
            Ok(arrived) => arrived,
            Err(error) => {
                let lost = std::mem::take(&mut *lock(&self.asked));
                return lost.into_values().map(|waiting| waiting.failed(error.clone())).collect();
            }
        };
        let mut done = Vec::with_capacity(arrived.len());
        for (id, answer) in arrived {
            let Some(Waiting { number, what, deadline }) = lock(&self.asked).remove(&id) else {
                // It came just after its time.
                self.link.let_go(answer);
                continue;
            };
            let explain = |error| super::link::explain(&deadline, error, self.link.client());
            done.push((
                number,
                match what {
                    What::Call { .. } => {
                        let result = Link::hear::<p::Call>(answer).map_err(explain);
                        Done::Call(result.and_then(|result| self.link.open(result)))
                    }
                    What::Task => Done::Task(Link::hear::<p::Wait>(answer).map_err(explain)),
                },
            ));
        }
        done.extend(self.late());
        done
    }

    /// Those whose time is over. Their answers are taken when they come.
    fn late(&self) -> Vec<(u64, Done)> {
        let mut asked = lock(&self.asked);
        let is_late = |waiting: &Waiting| waiting.deadline.until(None).has_passed();
        let late: Vec<u64> = asked.iter().filter(|(_, waiting)| is_late(waiting)).map(|(id, _)| *id).collect();
        let late: Vec<_> = late.into_iter().filter_map(|id| Some((id, asked.remove(&id)?))).collect();
        drop(asked);
        let mut done = Vec::with_capacity(late.len());
        for (id, waiting) in late {
            self.link.abandon(id, if matches!(waiting.what, What::Call { .. }) { Link::let_go } else { |_, _| {} });
            let error = waiting.deadline.missed(self.link.client(), p::Call::NAME);
            done.push(waiting.failed(error));
        }
        done
    }
}

impl Waiting {
    fn failed(self, error: Error) -> (u64, Done) {
        let error = CallError::NotCalled(error);
        let done = if matches!(self.what, What::Call { .. }) { Done::Call(Err(error)) } else { Done::Task(Err(error)) };
        (self.number, done)
    }
}
