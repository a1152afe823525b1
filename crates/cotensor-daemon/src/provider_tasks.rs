//! The tasks of providers, for lists and the dashboard. The daemon has no tasks. It requests them from each provider
//! over a connection that it keeps.

use crate::state::functions::FunctionProvider;
use cotensor_client::Connection;
use cotensor_client::protocol::provider::{ListTasks, ListTasksParams};
use cotensor_client::protocol::{CallerInfo, ProviderInfo, ProviderTasks};
use cotensor_core::sync::lock;
use cotensor_core::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The time for a provider's answer. It answers at once unless it is stopped.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// The time until the next request to a provider that did not answer: unread messages would accumulate.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Connections to providers, by their sessions.
#[derive(Default)]
pub(crate) struct TaskConnections(Mutex<HashMap<u64, ProviderConnection>>);

struct ProviderConnection {
    connection: Arc<Connection>,
    made: Instant,
}

impl TaskConnections {
    /// A provider's tasks, or an error. Blocks for three seconds at most.
    pub(crate) fn of(
        &self,
        provider: ProviderInfo,
        session: &dyn FunctionProvider,
        params: &ListTasksParams,
    ) -> ProviderTasks {
        let answer = self.connection(session).and_then(|connection| {
            let (list, _) = connection.call::<ListTasks>(params, Vec::new(), Some(ANSWER_TIMEOUT))?;
            Ok(list)
        });
        match answer {
            Ok(list) => ProviderTasks { provider, tasks: list.tasks, left_off: list.left_off, error: None },
            Err(error) => ProviderTasks { provider, tasks: Vec::new(), left_off: 0, error: Some(error.to_string()) },
        }
    }

    fn connection(&self, session: &dyn FunctionProvider) -> Result<Arc<Connection>> {
        let mut connections = lock(&self.0);
        // Entries of sessions that ended during a request.
        connections.retain(|_, entry| entry.made.elapsed() < RETRY_INTERVAL || !entry.connection.has_ended());
        if let Some(entry) = connections.get(&session.session()) {
            if !entry.connection.has_ended() {
                return Ok(Arc::clone(&entry.connection));
            }
            return Err(Error::new(ErrorKind::TimedOut, "the provider did not answer the last request"));
        }
        let (ours, theirs) = UnixStream::pair().map_err(|error| Error::io("connecting to a provider", &error))?;
        let caller = CallerInfo { client: format!("cotensor[{}]", std::process::id()) };
        if !session.connect(&caller, theirs.into()) {
            return Err(Error::new(ErrorKind::Conflict, "the provider does not read its connection"));
        }
        let connection = Arc::new(Connection::over(ours, Box::new(|_, _, _| {})));
        connections.insert(
            session.session(),
            ProviderConnection { connection: Arc::clone(&connection), made: Instant::now() },
        );
        Ok(connection)
    }

    /// Removes the connection of a session that has ended.
    pub(crate) fn remove_session(&self, session: u64) {
        let removed = lock(&self.0).remove(&session);
        drop(removed);
    }
}
