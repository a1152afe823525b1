//! `Provider` and its builder: functions of this process that other processes call.

use super::dispatch;
use super::functions::{Function, Handler};
use super::reader::UNREAD_MAX;
use super::registration::{self, Connector};
use super::shared::Shared;
use crate::threads::spawn;
use crate::{Arguments, Context, Failure, Limits, Options, Value};
use cotensor_client::ClientStore;
use cotensor_client::protocol::{FunctionNameParams, UnregisterFunction};
use cotensor_core::{Error, Result};
use cotensor_store::{Clock, SystemClock};
use std::sync::Arc;
use std::time::Duration;

/// How often what is too old is looked for.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);

/// Functions of this process, offered for as long as this lives.
///
/// Each caller has a socket to this process and a thread that reads it, and runs short functions where nothing else waits.
/// At most [`Limits::workers`] functions run at a time. A function that calls another of the same provider and waits for it
/// is one of two.
pub struct Provider {
    shared: Arc<Shared>,
}

/// What a provider is to offer, and how.
pub struct ProviderBuilder {
    store: Arc<ClientStore>,
    connector: Option<Connector>,
    functions: Vec<Arc<Function>>,
    limits: Limits,
    clock: Arc<dyn Clock>,
}

impl Provider {
    /// A provider whose arguments and results are in `store`.
    pub fn builder(store: Arc<ClientStore>) -> ProviderBuilder {
        let (limits, clock) = (Limits::default(), Arc::new(SystemClock::default()));
        ProviderBuilder { store, connector: None, functions: Vec::new(), limits, clock }
    }

    /// Offers one more function.
    ///
    /// # Errors
    /// `Conflict` for a name that is taken, here or by another provider; `Invalid` for an impossible name.
    pub fn add(
        &self,
        name: &str,
        options: Options,
        handler: impl Fn(&Arguments, &Context) -> std::result::Result<Value, Failure> + Send + Sync + 'static,
    ) -> Result<()> {
        registration::add(&self.shared, &Function::new(name, options, Arc::new(handler)))
    }

    /// Takes a function back. What runs runs on.
    ///
    /// # Errors
    /// `NotFound` for one that is not offered.
    pub fn remove(&self, name: &str) -> Result<()> {
        let missing = || Error::not_found(format!("this provider has no function {name:?}")).in_field("name");
        self.shared.functions.remove(name).ok_or_else(missing)?;
        match self.shared.registration() {
            Some(connection) => {
                let params = FunctionNameParams { name: name.to_owned() };
                connection.call::<UnregisterFunction>(&params, Vec::new(), Some(registration::ANSWER_TIMEOUT))?;
                Ok(())
            }
            // Between two daemons there is nothing to take back.
            None => Ok(()),
        }
    }

    /// Tells this life of the provider from others.
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// Callers that are connected now.
    pub fn callers(&self) -> usize {
        self.shared.callers()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl ProviderBuilder {
    /// Offers a function.
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

    /// How many, how long.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Where the ages of tasks and of kept results come from.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// How to get a store when no daemon listens any more where the first one did: by starting one in this process, for
    /// instance. Without it, the provider waits for the daemon to come back.
    #[must_use]
    pub fn connector(mut self, connector: impl Fn() -> Result<Arc<ClientStore>> + Send + Sync + 'static) -> Self {
        self.connector = Some(Box::new(connector));
        self
    }

    /// Offers the functions from now on.
    ///
    /// # Errors
    /// As [`Provider::add`]; `NotFound` when the daemon is gone, `Io` when threads cannot be started.
    pub fn start(self) -> Result<Provider> {
        let ProviderBuilder { store, connector, functions, limits, clock } = self;
        let shared = Shared::new(dispatch::methods(), store, limits, clock)?;
        let provider = Provider { shared: Arc::clone(&shared) };
        for function in &functions {
            shared.functions.add(function)?;
        }
        let connection = registration::connect(&shared)?;
        for worker in 0..shared.limits.workers.max(1) {
            let shared = Arc::clone(&shared);
            spawn(&format!("cotensor-call-{worker}"), move || shared.work())?;
        }
        let (timer, weak) = (shared.timer.clone(), Arc::downgrade(&shared));
        spawn("cotensor-timer", move || {
            timer.run(SWEEP_PERIOD, UNREAD_MAX, |often| match weak.upgrade() {
                Some(shared) if often => shared.relieve(),
                Some(shared) => shared.sweep(),
                None => {}
            });
        })?;
        spawn("cotensor-provider", move || registration::keep(&shared, connection, connector))?;
        Ok(provider)
    }
}
