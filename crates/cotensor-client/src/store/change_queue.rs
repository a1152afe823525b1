//! `ChangeQueue`: one thread waits for the changes of many callers.

use super::client_store::ClientStore;
use super::names::{changes_of, changes_params, versions_params};
use super::session::Session;
use crate::protocol::{self as p, Method};
use cotensor_core::sync::lock;
use cotensor_core::{ErrorKind, Result};
use cotensor_rpc::{CallGroup, WaitLimit};
use cotensor_store::{ChangePosition, EveryVersion, NameChanges, NameFilter};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The longest wait of one call. The daemon's limit is longer.
const CALL_WAIT_MAX: Duration = Duration::from_secs(20);

/// Waits for changes of names. The user chooses a number for each.
pub struct ChangeQueue {
    store: Arc<ClientStore>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the user's number.
    waits: HashMap<u64, Wait>,
    /// The numbers of the waits by the calls of `generation`.
    calls: HashMap<u64, u64>,
    /// The session of the calls.
    generation: u64,
    group: Arc<CallGroup>,
}

/// What a wait is for.
#[derive(Clone, Debug)]
pub enum Watched {
    /// The newest versions of these names.
    Newest(NameFilter),
    /// Every version, by a queue that is open.
    Every(EveryVersion),
}

struct Wait {
    watched: Watched,
    since: ChangePosition,
    end: Option<Instant>,
}

impl ChangeQueue {
    /// A queue without waits.
    pub fn new(store: Arc<ClientStore>) -> Self {
        Self { store, state: Mutex::default() }
    }

    /// The number of waits that [`wait`](Self::wait) has not returned.
    pub fn count(&self) -> usize {
        lock(&self.state).waits.len()
    }

    /// Waits for changes that are `watched` after `since`, at most `wait`.
    pub fn add(&self, number: u64, watched: Watched, since: ChangePosition, wait: Duration) {
        let mut state = lock(&self.state);
        // Under the lock: `renew` for a newer session sends this wait, too.
        let session = self.store.session();
        state.waits.insert(number, Wait { watched, since, end: Instant::now().checked_add(wait) });
        state.send(&session, number);
    }

    /// Ends a wait. [`wait`](Self::wait) does not return it.
    pub fn remove(&self, number: u64) {
        // The daemon's answer, at the latest after its limit of time, is dropped.
        lock(&self.state).waits.remove(&number);
    }

    /// Waits until one of the waits has changes or has ended, at most until `end`. A wait that ended has no changes.
    pub fn wait(&self, end: Instant) -> Vec<(u64, Result<NameChanges>)> {
        let limit = WaitLimit { deadline: Some(end), ..WaitLimit::default() };
        loop {
            let session = self.store.session();
            let group = lock(&self.state).renew(&session);
            let answers = match session.connection.wait_for(&group, &limit) {
                Ok(answers) => answers,
                Err(_) => match self.store.renew_session(&session) {
                    Ok(()) => continue,
                    Err(error) => {
                        let waits = std::mem::take(&mut lock(&self.state).waits);
                        return waits.into_keys().map(|number| (number, Err(error.clone()))).collect();
                    }
                },
            };
            let mut state = lock(&self.state);
            let mut done = Vec::new();
            for (call, answer) in answers {
                let Some(number) = state.calls.remove(&call) else { continue };
                let Some(wait) = state.waits.get_mut(&number) else { continue };
                match changes_of(wait.watched.method(), answer.response) {
                    Ok(changes) if changes.changes.is_empty() && !changes.incomplete && !wait.has_ended() => {
                        wait.since = changes.position;
                        state.send(&session, number);
                    }
                    outcome => {
                        state.waits.remove(&number);
                        done.push((number, outcome));
                    }
                }
            }
            drop(state);
            if !done.is_empty() || limit.has_passed() {
                return done;
            }
        }
    }
}

impl Watched {
    fn method(&self) -> &'static str {
        match self {
            Watched::Newest(_) => p::AwaitChanges::NAME,
            Watched::Every(_) => p::AwaitVersions::NAME,
        }
    }
}

impl Wait {
    fn has_ended(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }
}

impl State {
    /// Sends the call of a wait, unless the session is replaced. The next [`renew`](Self::renew) sends it then.
    fn send(&mut self, session: &Session, number: u64) {
        if self.generation != session.generation {
            return;
        }
        let Some(wait) = self.waits.get(&number) else { return };
        let left = wait.end.map_or(CALL_WAIT_MAX, |end| end.saturating_duration_since(Instant::now()));
        let (since, left) = (Some(wait.since), left.min(CALL_WAIT_MAX));
        // A connection that has ended is replaced by the thread in `wait`.
        let (connection, limit) = (&session.connection, WaitLimit::default());
        let sent = match &wait.watched {
            Watched::Newest(filter) => {
                connection.send_grouped::<p::AwaitChanges>(&changes_params(filter, since, left), &self.group, &limit)
            }
            Watched::Every(every) => {
                connection.send_grouped::<p::AwaitVersions>(&versions_params(every, since, left), &self.group, &limit)
            }
        };
        if let Ok(call) = sent {
            self.calls.insert(call, number);
        }
    }

    /// Sends all waits again if the session is a new one. Returns the group of the calls.
    fn renew(&mut self, session: &Session) -> Arc<CallGroup> {
        if self.generation != session.generation {
            self.generation = session.generation;
            self.calls.clear();
            self.group = Arc::default();
            let numbers: Vec<u64> = self.waits.keys().copied().collect();
            numbers.into_iter().for_each(|number| self.send(session, number));
        }
        Arc::clone(&self.group)
    }
}

impl ClientStore {
    /// Replaces a lost session.
    ///
    /// # Errors
    /// As for any call when no daemon answers.
    fn renew_session(&self, lost: &Session) -> Result<()> {
        if self.daemon.connection.is_closed() {
            Err(cotensor_core::Error::new(ErrorKind::Conflict, "this client has disconnected"))
        } else {
            self.daemon.reconnect(lost)
        }
    }
}
