//! `Provider` and its builder: functions of this process that other processes call.

use super::call_thread;
use super::callers::Callers;
use super::functions::{Function, Handler};
use super::group::Group;
use super::registration::{self, Connector};
use super::state::ProviderState;
use crate::threads::spawn;
use crate::{Arguments, Context, Failure, Limits, Options, Value};
use cotensor_client::ClientStore;
use cotensor_client::protocol::{FunctionNameParams, UnregisterFunction};
use cotensor_core::{Error, Result};
use cotensor_store::{Clock, SystemClock};
use std::sync::Arc;
use std::time::Duration;

/// The interval at which expired tasks and results are removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Provides functions of this process until it is dropped.
///
/// Each caller has a connection of its own. All threads wait for messages on all connections; the thread that reads a
/// call runs the function, while another thread reads the next messages. At most [`Limits::workers`] functions run at a
/// time. A function that calls another function of the same provider and waits for it counts as two.
pub struct Provider {
    callers: Arc<Callers>,
}

/// Configures and starts a [`Provider`].
pub struct ProviderBuilder {
    store: Arc<ClientStore>,
    connector: Option<Connector>,
    functions: Vec<Arc<Function>>,
    limits: Limits,
    clock: Arc<dyn Clock>,
    group: Option<Arc<Group>>,
    is_standby: bool,
}

impl Provider {
    /// A provider whose arguments and results are in `store`.
    pub fn builder(store: Arc<ClientStore>) -> ProviderBuilder {
        let (limits, clock) = (Limits::default(), Arc::new(SystemClock::default()));
        ProviderBuilder { store, connector: None, functions: Vec::new(), limits, clock, group: None, is_standby: false }
    }

    /// Provides one more function.
    ///
    /// # Errors
    /// `Conflict` for a name that this or another provider has registered; `Invalid` for a name with other characters
    /// than letters, digits and `_ . : / -`.
    pub fn add(
        &self,
        name: &str,
        options: Options,
        handler: impl Fn(&Arguments, &Context) -> std::result::Result<Value, Failure> + Send + Sync + 'static,
    ) -> Result<()> {
        registration::add(&self.callers.state, &Function::new(name, options, Arc::new(handler)))
    }

    /// Replaces a function of this provider, for later calls. Running calls continue, and cached results are dropped.
    ///
    /// # Errors
    /// `NotFound` for a name that this provider has not registered.
    pub fn replace(
        &self,
        name: &str,
        options: Options,
        handler: impl Fn(&Arguments, &Context) -> std::result::Result<Value, Failure> + Send + Sync + 'static,
    ) -> Result<()> {
        registration::replace(&self.callers.state, &Function::new(name, options, Arc::new(handler)))
    }

    /// Withdraws a function. Running calls continue.
    ///
    /// # Errors
    /// `NotFound` for a name that is not registered.
    pub fn remove(&self, name: &str) -> Result<()> {
        let missing = || Error::not_found(format!("this provider has no function {name:?}")).in_field("name");
        self.callers.state.functions.remove(name).ok_or_else(missing)?;
        match self.callers.state.registration() {
            Some(connection) => {
                let params = FunctionNameParams { name: name.to_owned() };
                connection.call::<UnregisterFunction>(&params, Vec::new(), Some(registration::ANSWER_TIMEOUT))?;
                Ok(())
            }
            // No daemon runs. The next one gets the remaining functions.
            None => Ok(()),
        }
    }

    /// The provider's epoch: a new number each time a provider starts.
    pub fn epoch(&self) -> u64 {
        self.callers.state.epoch
    }

    /// The number of connected callers.
    pub fn callers(&self) -> usize {
        self.callers.count()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.callers.close();
    }
}

impl ProviderBuilder {
    /// Adds a function.
    #[must_use]
    pub fn function(
        mut self,
        name: &str,
        options: Options,
        handler: impl Fn(&Arguments, &Context) -> std::result::Result<Value, Failure> + Send + Sync + 'static,
    ) -> Self {
        let handler: Handler = Arc::new(handler);
        self.functions.push(Function::new(name, options, handler));
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the clock for the ages of tasks and cached results.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Makes the functions those of a standby: each is used only while no other session provides one of its name.
    #[must_use]
    pub fn standby(mut self, is_standby: bool) -> Self {
        self.is_standby = is_standby;
        self
    }

    /// Sets a function that connects to another daemon when none listens at the first one's socket. It may start a
    /// daemon in this process. Without it, the provider waits until a daemon listens there.
    #[must_use]
    pub fn connector(mut self, connector: impl Fn() -> Result<Arc<ClientStore>> + Send + Sync + 'static) -> Self {
        self.connector = Some(Box::new(connector));
        self
    }

    /// Lets the functions of this provider and of `other`, another provider of this process, accept each other's objects.
    #[must_use]
    pub fn beside(mut self, other: &Provider) -> Self {
        self.group = Some(Arc::clone(&other.callers.state.group));
        self
    }

    /// Starts the provider and registers the functions.
    ///
    /// # Errors
    /// As [`Provider::add`]; `Unreachable` when no daemon listens, `Io` when the system starts no more threads.
    pub fn start(self) -> Result<Provider> {
        let ProviderBuilder { store, connector, functions, limits, clock, group, is_standby } = self;
        let state = ProviderState::new(store, limits, clock, group, is_standby)?;
        let callers = Callers::new(Arc::clone(&state));
        let provider = Provider { callers: Arc::clone(&callers) };
        for function in &functions {
            state.functions.add(function)?;
        }
        let connection = registration::connect(&callers)?;
        call_thread::start(&callers)?;
        let (timer, weak) = (state.timer.clone(), Arc::downgrade(&callers));
        spawn("cotensor-timer", move || {
            timer.run(SWEEP_INTERVAL, || {
                if let Some(callers) = weak.upgrade() {
                    callers.sweep();
                }
            });
        })?;
        spawn("cotensor-provider", move || registration::keep(&callers, connection, connector))?;
        Ok(provider)
    }
}
