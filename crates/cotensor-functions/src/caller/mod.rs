//! Calling what others provide.

mod late;
mod link;
mod object;
mod pending;
mod task;

use cotensor_rpc::Deadline;
pub use object::RemoteObject;
pub use pending::{Done, Pending};
pub use task::Task;

use super::{Arguments, CallError, Outlet, Value};
use cotensor_client::ClientStore;
use cotensor_client::protocol::provider as p;
use cotensor_client::protocol::{
    FoundFunction, FunctionInfo, ListFunctions, ListFunctionsParams, LookupFunction, LookupFunctionParams, ProviderInfo,
};
use cotensor_core::{Error, ErrorKind, Result};
use link::Link;
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The functions of all providers, as one process sees them. All methods may be called from any thread.
///
/// A function is looked up once; calls go to its provider directly from then on, over one socket for each provider.
pub struct Functions {
    store: Arc<ClientStore>,
    timeout: Option<Duration>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Who provides a function.
    found: HashMap<String, (FunctionInfo, Arc<Link>)>,
    /// By the providers' epochs.
    links: HashMap<u64, Arc<Link>>,
    /// What is waited for together, by the providers' epochs.
    pending: HashMap<u64, Arc<Pending>>,
}

impl Functions {
    /// The functions that the daemon of `store` knows. Arguments and results are in `store`.
    pub fn new(store: Arc<ClientStore>) -> Self {
        Self { store, timeout: None, state: Mutex::default() }
    }

    /// With a limit for calls that have none of their own, and for every other answer of a provider; without it, a call waits
    /// as long as its provider lives.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The functions whose names start with `prefix`, and who provides them.
    ///
    /// # Errors
    /// `Io` when the daemon is gone.
    pub fn list(&self, prefix: &str) -> Result<Vec<FoundFunction>> {
        let params = ListFunctionsParams { prefix: prefix.to_owned() };
        Ok(self.store.ask::<ListFunctions>(&params)?.functions)
    }

    /// What a function is.
    ///
    /// # Errors
    /// `NotFound` when nobody provides it.
    pub fn describe(&self, name: &str) -> Result<FunctionInfo> {
        Ok(self.find(name, &self.timeout.into())?.0)
    }

    /// Calls a function and waits for its result.
    ///
    /// # Errors
    /// [`CallError::Failed`] with the function's own failure; [`CallError::NotCalled`] when it could not be called, or when
    /// its provider ended meanwhile (`Io`).
    pub fn call(&self, name: &str, arguments: &Arguments) -> Result<Value, CallError> {
        self.call_within(name, arguments, self.timeout)
    }

    /// As [`call`](Self::call), for at most `timeout`, with looking the function up and sending the arguments: a run that nobody
    /// else waits for is asked to stop then.
    ///
    /// # Errors
    /// As [`call`](Self::call); an error of kind `TimedOut`, which names the provider, when the time is over.
    pub fn call_within(
        &self,
        name: &str,
        arguments: &Arguments,
        timeout: Option<Duration>,
    ) -> Result<Value, CallError> {
        let deadline = timeout.into();
        self.at_provider(name, &deadline, |link| link.call(name, arguments, &deadline, None))
    }

    /// As [`call_within`](Self::call_within), for as long as `wanted` says so, which is asked now and then and after signals:
    /// for programs whose users interrupt them. A run that nobody else waits for goes on.
    ///
    /// # Errors
    /// As [`call_within`](Self::call_within); `Conflict` once `wanted` said no.
    pub fn call_while(
        &self,
        name: &str,
        arguments: &Arguments,
        deadline: Deadline,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Value, CallError> {
        self.at_provider(name, &deadline, |link| link.call(name, arguments, &deadline, Some(wanted)))
    }

    /// Where to write tensors of a function's arguments.
    ///
    /// # Errors
    /// `NotFound` when nobody provides it; `TimedOut` when the daemon does not say so in time.
    pub fn outlet(&self, name: &str, deadline: &Deadline) -> Result<Outlet> {
        let link = match self.known(name) {
            Some(link) => link,
            None => self.find(name, deadline)?.1,
        };
        Ok(link.outlet())
    }

    /// Has a function called, and does not wait.
    ///
    /// # Errors
    /// As [`call`](Self::call), but for the function's own failure.
    pub fn submit(&self, name: &str, arguments: &Arguments) -> Result<Task, CallError> {
        self.submit_within(name, arguments, self.timeout)
    }

    /// As [`submit`](Self::submit); the task fails when it has not ended within `timeout`.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_within(
        &self,
        name: &str,
        arguments: &Arguments,
        timeout: Option<Duration>,
    ) -> Result<Task, CallError> {
        let deadline = timeout.into();
        self.at_provider(name, &deadline, |link| {
            let task = link.submit(name, arguments, &deadline)?;
            Ok(Task::new(Arc::clone(link), task))
        })
    }

    /// The tasks of every provider, each with its provider; the newest first. A provider that ends meanwhile is left out.
    ///
    /// # Errors
    /// `Io` when the daemon is gone.
    pub fn tasks(&self, state: Option<p::TaskState>) -> Result<Vec<(ProviderInfo, p::TaskInfo)>> {
        let mut all = Vec::new();
        let mut asked = Vec::new();
        for FoundFunction { function, provider } in self.list("")? {
            if asked.contains(&provider.epoch) {
                continue;
            }
            asked.push(provider.epoch);
            let Ok((_, link)) = self.find(&function.name, &self.timeout.into()) else { continue };
            if let Ok(list) = link.ask::<p::ListTasks>(&p::ListTasksParams { state, limit: 1000 }) {
                all.extend(list.tasks.into_iter().map(|task| (provider.clone(), task)));
            }
        }
        Ok(all)
    }

    /// A task that was submitted by anybody, of the provider of that epoch.
    ///
    /// # Errors
    /// `NotFound` when no such provider is there, or it has no such task.
    pub fn task(&self, epoch: u64, number: u64) -> Result<Task, CallError> {
        let link = lock(&self.state).links.get(&epoch).filter(|link| !link.is_closed()).cloned();
        let link = match link {
            Some(link) => link,
            None => {
                let all = self.list("")?;
                let found = all.into_iter().find(|found| found.provider.epoch == epoch);
                let missing = || Error::not_found("this provider is gone").in_field("epoch");
                self.find(&found.ok_or_else(missing)?.function.name, &self.timeout.into())?.1
            }
        };
        link.ask::<p::Status>(&p::TaskParams { task: number })?;
        Ok(Task::new(link, number))
    }

    /// Calls and tasks of the function's provider that one thread waits for: the same for all functions of a provider.
    ///
    /// # Errors
    /// `NotFound` when nobody provides it.
    pub fn pending(&self, name: &str) -> Result<Arc<Pending>> {
        let (_, link) = self.find(name, &self.timeout.into())?;
        Ok(self.pending_of(&link))
    }

    /// As [`pending`](Self::pending), of a task's provider.
    pub fn pending_with(&self, task: &Task) -> Arc<Pending> {
        self.pending_of(task.link())
    }

    fn pending_of(&self, link: &Arc<Link>) -> Arc<Pending> {
        let mut state = lock(&self.state);
        state.pending.retain(|_, pending| !pending.is_closed());
        let pending = state.pending.entry(link.epoch()).or_insert_with(|| Arc::new(Pending::new(Arc::clone(link))));
        Arc::clone(pending)
    }

    /// Does `call` with the provider of a function. One that has ended, or has taken the function back, is looked up anew:
    /// nothing was called then.
    fn at_provider<T>(
        &self,
        name: &str,
        deadline: &Deadline,
        call: impl Fn(&Arc<Link>) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        if let Some(link) = self.known(name) {
            match call(&link) {
                Err(CallError::NotCalled(error))
                    if error.kind() == ErrorKind::NotFound && error.field() == Some("function") => {}
                outcome => return outcome,
            }
        }
        lock(&self.state).found.remove(name);
        let (_, link) = self.find(name, deadline)?;
        call(&link)
    }

    /// The link to the provider of a function that was found before, while it lasts.
    fn known(&self, name: &str) -> Option<Arc<Link>> {
        let known = lock(&self.state).found.get(name).map(|(_, link)| Arc::clone(link));
        known.filter(|link| !link.is_closed())
    }

    /// A function and the link to its provider.
    fn find(&self, name: &str, deadline: &Deadline) -> Result<(FunctionInfo, Arc<Link>)> {
        let connected = {
            let mut state = lock(&self.state);
            state.links.retain(|_, link| !link.is_closed());
            state.found.retain(|_, (_, link)| !link.is_closed());
            if let Some((function, link)) = state.found.get(name) {
                return Ok((function.clone(), Arc::clone(link)));
            }
            state.links.keys().copied().collect()
        };
        let params = LookupFunctionParams { name: name.to_owned(), connected };
        let (FoundFunction { function, provider }, fds) = self.store.call_by::<LookupFunction>(&params, deadline)?;
        let mut state = lock(&self.state);
        let link = match fds.into_iter().next() {
            // Another thread may have been faster.
            Some(_) if state.links.get(&provider.epoch).is_some_and(|link| !link.is_closed()) => None,
            Some(fd) => Some(Link::new(UnixStream::from(fd), &provider, Arc::clone(&self.store), self.timeout)),
            None => None,
        };
        if let Some(link) = link {
            state.links.insert(provider.epoch, link);
        }
        let gone = || Error::new(ErrorKind::Io, format!("{} ended while {name} was looked up", provider.client));
        let link = state.links.get(&provider.epoch).cloned().ok_or_else(gone)?;
        state.found.insert(name.to_owned(), (function.clone(), Arc::clone(&link)));
        Ok((function, link))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
