//! `Functions`: looks functions up and calls them.

use super::completion_queue::CompletionQueue;
use super::provider_connection::ProviderConnection;
use super::task::Task;
use crate::allocator::TensorAllocator;
use crate::arena::IDLE_MAX;
use crate::call_limit::CallLimit;
use crate::failure::CallError;
use crate::value::{Arguments, Value};
use cotensor_client::ClientStore;
use cotensor_client::protocol::provider as p;
use cotensor_client::protocol::{
    FoundFunction, FunctionInfo, ListFunctions, ListFunctionsParams, LookupFunction, LookupFunctionParams, ProviderInfo,
};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::Deadline;
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The functions of all providers that one daemon knows. All methods may be called from any thread.
///
/// The first call of a function looks up its provider. Calls go to the provider directly, over one connection per
/// provider.
pub struct Functions {
    store: Arc<ClientStore>,
    timeout: Option<Duration>,
    memory_idle: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Functions that were looked up, by name.
    found: HashMap<String, (FunctionInfo, Arc<ProviderConnection>)>,
    /// By the providers' epochs.
    connections: HashMap<u64, Arc<ProviderConnection>>,
    /// By the providers' epochs.
    queues: HashMap<u64, Arc<CompletionQueue>>,
}

impl Functions {
    /// The functions that the daemon of `store` knows. Tensors of arguments and results are in `store`.
    pub fn new(store: Arc<ClientStore>) -> Self {
        Self { store, timeout: None, memory_idle: IDLE_MAX, state: Mutex::default() }
    }

    /// Sets the time limit of calls without their own limit, and of all other requests to providers. Without it, a call
    /// waits until its provider answers or ends.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets how long memory for large arguments is kept while it is not used.
    #[must_use]
    pub fn with_memory_idle(mut self, idle: Duration) -> Self {
        self.memory_idle = idle;
        self
    }

    /// The functions whose names start with `prefix`, with their providers.
    ///
    /// # Errors
    /// `Io` when the daemon has ended.
    pub fn list(&self, prefix: &str) -> Result<Vec<FoundFunction>> {
        let params = ListFunctionsParams { prefix: prefix.to_owned() };
        Ok(self.store.request::<ListFunctions>(&params)?.functions)
    }

    /// A function's description.
    ///
    /// # Errors
    /// `NotFound` when no provider has the function.
    pub fn describe(&self, name: &str) -> Result<FunctionInfo> {
        Ok(self.find(name, &self.timeout.into())?.0)
    }

    /// Calls a function and waits for its result.
    ///
    /// # Errors
    /// [`CallError::Failed`] with the function's failure; [`CallError::NotCalled`] when the call could not be sent, or
    /// the provider ended before the answer (`Io`).
    pub fn call(&self, name: &str, arguments: &Arguments) -> Result<Value, CallError> {
        self.call_within(name, arguments, self.timeout)
    }

    /// As [`call`](Self::call), for at most `timeout`, which includes the lookup and sending the arguments. On timeout
    /// the run is cancelled unless other callers wait for it. In a function of a provider, the [`Scope`](crate::Scope) of its
    /// run bounds the call as well.
    ///
    /// # Errors
    /// As [`call`](Self::call); an error of kind `TimedOut`, which names the provider, after `timeout`.
    pub fn call_within(
        &self,
        name: &str,
        arguments: &Arguments,
        timeout: Option<Duration>,
    ) -> Result<Value, CallError> {
        self.call_until(name, arguments, &CallLimit::of_call(timeout.into(), None)?)
    }

    /// Calls a function that has no effect but its result. If no process offers it, or its provider ends before the answer, calls
    /// `start`, which starts a provider, and then the function once more.
    ///
    /// # Errors
    /// As [`call`](Self::call); those of `start`.
    pub fn call_starting(
        &self,
        name: &str,
        arguments: &Arguments,
        start: &dyn Fn() -> Result<()>,
    ) -> Result<Value, CallError> {
        match self.call(name, arguments) {
            Err(CallError::NotCalled(error)) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Io) => {
                start()?;
                self.call(name, arguments)
            }
            outcome => outcome,
        }
    }

    /// As [`call_within`](Self::call_within), while `wanted` returns true. It is checked periodically and after
    /// signals, so that users can interrupt the wait. The run is then cancelled, unless other callers wait for it.
    ///
    /// # Errors
    /// As [`call_within`](Self::call_within); `Conflict` once `wanted` returned false.
    pub fn call_while(
        &self,
        name: &str,
        arguments: &Arguments,
        deadline: Deadline,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Value, CallError> {
        self.call_until(name, arguments, &CallLimit::of_call(deadline, Some(wanted))?)
    }

    fn call_until(&self, name: &str, arguments: &Arguments, limit: &CallLimit<'_>) -> Result<Value, CallError> {
        self.at_provider(name, &limit.deadline, |connection| connection.call(name, arguments, limit))
    }

    /// Allocates tensors of a function's arguments.
    ///
    /// # Errors
    /// `NotFound` when no provider has the function; `TimedOut` when the daemon does not answer within `deadline`; those of
    /// [`Scope`](crate::Scope) in a function of a provider.
    pub fn allocator(&self, name: &str, deadline: &Deadline) -> Result<TensorAllocator, CallError> {
        let limit = CallLimit::of_call(*deadline, None)?;
        let connection = match self.known(name) {
            Some(connection) => connection,
            None => self.find(name, &limit.deadline)?.1,
        };
        Ok(connection.allocator())
    }

    /// Submits a call as a task, without waiting for its result.
    ///
    /// # Errors
    /// As [`call`](Self::call), except the function's failure.
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
        self.at_provider(name, &deadline, |connection| {
            let task = connection.submit(name, arguments, &deadline)?;
            Ok(Task::new(Arc::clone(connection), task))
        })
    }

    /// The tasks of every provider, newest first per provider. Omits providers that end during the call.
    ///
    /// # Errors
    /// `Io` when the daemon has ended.
    pub fn tasks(&self, state: Option<p::TaskState>) -> Result<Vec<(ProviderInfo, p::TaskInfo)>> {
        let mut all = Vec::new();
        let mut queried = Vec::new();
        for FoundFunction { function, provider } in self.list("")? {
            if queried.contains(&provider.epoch) {
                continue;
            }
            queried.push(provider.epoch);
            let Ok((_, connection)) = self.find(&function.name, &self.timeout.into()) else { continue };
            if let Ok(list) = connection.request::<p::ListTasks>(&p::ListTasksParams { state, limit: 1000 }) {
                all.extend(list.tasks.into_iter().map(|task| (provider.clone(), task)));
            }
        }
        Ok(all)
    }

    /// A task of the provider with this epoch, whichever process submitted it.
    ///
    /// # Errors
    /// `NotFound` when there is no such provider or no such task.
    pub fn task(&self, epoch: u64, number: u64) -> Result<Task, CallError> {
        let known = lock(&self.state).connections.get(&epoch).filter(|connection| !connection.is_closed()).cloned();
        let connection = match known {
            Some(connection) => connection,
            None => {
                let all = self.list("")?;
                let found = all.into_iter().find(|found| found.provider.epoch == epoch);
                let missing = || Error::not_found("its provider has ended").in_field("epoch");
                self.find(&found.ok_or_else(missing)?.function.name, &self.timeout.into())?.1
            }
        };
        connection.request::<p::Status>(&p::TaskParams { task: number })?;
        Ok(Task::new(connection, number))
    }

    /// The completion queue of the function's provider. All functions of a provider share one.
    ///
    /// # Errors
    /// `NotFound` when no provider has the function.
    pub fn completion_queue(&self, name: &str) -> Result<Arc<CompletionQueue>> {
        let (_, connection) = self.find(name, &self.timeout.into())?;
        Ok(self.queue_of(&connection))
    }

    /// The completion queue of a task's provider.
    pub fn completion_queue_of(&self, task: &Task) -> Arc<CompletionQueue> {
        self.queue_of(task.connection())
    }

    fn queue_of(&self, connection: &Arc<ProviderConnection>) -> Arc<CompletionQueue> {
        let mut state = lock(&self.state);
        state.queues.retain(|_, queue| !queue.is_closed());
        let new = || Arc::new(CompletionQueue::new(Arc::clone(connection)));
        Arc::clone(state.queues.entry(connection.epoch()).or_insert_with(new))
    }

    /// Runs `call` with the connection to a function's provider. Looks the function up again when the provider has
    /// ended or removed the function: no call has run then.
    fn at_provider<T>(
        &self,
        name: &str,
        deadline: &Deadline,
        call: impl Fn(&Arc<ProviderConnection>) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        if let Some(connection) = self.known(name) {
            match call(&connection) {
                Err(CallError::NotCalled(error))
                    if error.kind() == ErrorKind::NotFound && error.field() == Some("function") => {}
                outcome => return outcome,
            }
        }
        lock(&self.state).found.remove(name);
        let (_, connection) = self.find(name, deadline)?;
        call(&connection)
    }

    /// The open connection to the provider of a function that was looked up before.
    fn known(&self, name: &str) -> Option<Arc<ProviderConnection>> {
        let known = lock(&self.state).found.get(name).map(|(_, connection)| Arc::clone(connection));
        known.filter(|connection| !connection.is_closed())
    }

    /// A function and the connection to its provider.
    fn find(&self, name: &str, deadline: &Deadline) -> Result<(FunctionInfo, Arc<ProviderConnection>)> {
        let connected = {
            let mut state = lock(&self.state);
            state.connections.retain(|_, connection| !connection.is_closed());
            state.found.retain(|_, (_, connection)| !connection.is_closed());
            if let Some((function, connection)) = state.found.get(name) {
                return Ok((function.clone(), Arc::clone(connection)));
            }
            state.connections.keys().copied().collect()
        };
        let params = LookupFunctionParams { name: name.to_owned(), connected };
        let (FoundFunction { function, provider }, fds) = self.store.call_by::<LookupFunction>(&params, deadline)?;
        let mut state = lock(&self.state);
        // Another thread may have connected meanwhile.
        let is_open = state.connections.get(&provider.epoch).is_some_and(|connection| !connection.is_closed());
        if let Some(fd) = fds.into_iter().next().filter(|_| !is_open) {
            let socket = UnixStream::from(fd);
            let store = Arc::clone(&self.store);
            let connection = ProviderConnection::new(socket, &provider, store, self.timeout, self.memory_idle);
            state.connections.insert(provider.epoch, connection);
        }
        let ended = || Error::new(ErrorKind::Io, format!("{} ended during the lookup of {name}", provider.client));
        let connection = state.connections.get(&provider.epoch).cloned().ok_or_else(ended)?;
        state.found.insert(name.to_owned(), (function.clone(), Arc::clone(&connection)));
        Ok((function, connection))
    }
}
