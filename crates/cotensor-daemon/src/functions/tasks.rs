//! The tasks of providers, for lists and the dashboard. The daemon has no tasks: it asks each provider over a connection of its
//! own, which it keeps for the next time.

use super::provider::FunctionProvider;
use cotensor_client::Connection;
use cotensor_client::protocol::provider::{ListTasks, ListTasksParams};
use cotensor_client::protocol::{CallerInfo, ProviderInfo, ProviderTasks};
use cotensor_core::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time for a provider's answer. It answers at once unless it is stopped.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// The time until the next question to a provider that did not answer: unread messages would accumulate.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Connections to providers, by their sessions.
#[derive(Default)]
pub(crate) struct TaskConnections(Mutex<HashMap<u64, Link>>);

struct Link {
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
        let asked = self.link(session).and_then(|connection| {
            let (list, _) = connection.call::<ListTasks>(params, Vec::new(), Some(ANSWER_TIMEOUT))?;
            Ok(list)
        });
        match asked {
            Ok(list) => ProviderTasks { provider, tasks: list.tasks, left_off: list.left_off, error: None },
            Err(error) => ProviderTasks { provider, tasks: Vec::new(), left_off: 0, error: Some(error.to_string()) },
        }
    }

    fn link(&self, session: &dyn FunctionProvider) -> Result<Arc<Connection>> {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Sessions that ended during a question.
        links.retain(|_, link| link.made.elapsed() < RETRY_INTERVAL || !link.connection.has_ended());
        if let Some(link) = links.get(&session.session()) {
            if !link.connection.has_ended() {
                return Ok(Arc::clone(&link.connection));
            }
            return Err(Error::new(ErrorKind::TimedOut, "it did not answer a moment ago"));
        }
        let (ours, theirs) = UnixStream::pair().map_err(|error| Error::io("connecting to a provider", &error))?;
        let who = CallerInfo { client: format!("cotensor[{}]", std::process::id()) };
        if !session.connect(&who, theirs.into()) {
            return Err(Error::new(ErrorKind::Conflict, "it does not read what it is told"));
        }
        let connection = Arc::new(Connection::over(ours, Box::new(|_, _, _| {})));
        links.insert(session.session(), Link { connection: Arc::clone(&connection), made: Instant::now() });
        Ok(connection)
    }

    /// Removes the connection of a session that has ended.
    pub(crate) fn forget(&self, session: u64) {
        let gone = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&session);
        drop(gone);
    }
}
