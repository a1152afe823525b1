//! The tasks of providers, for people who look at the daemon. Providers have them, not the daemon: it asks as any caller
//! does, over a socket of its own to each provider that it keeps for the next time.

use super::provider::FunctionProvider;
use cotensor_client::Connection;
use cotensor_client::protocol::provider::{ListTasks, ListTasksParams};
use cotensor_client::protocol::{CallerInfo, ProviderInfo, ProviderTasks};
use cotensor_core::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a provider may take to tell its tasks. It answers at once unless it is stopped or broken.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// How long one that did not answer is left alone: what it does not read would pile up.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Sockets to providers, by the numbers of their sessions.
#[derive(Default)]
pub(crate) struct TaskConnections(Mutex<HashMap<u64, Link>>);

struct Link {
    connection: Arc<Connection>,
    made: Instant,
}

impl TaskConnections {
    /// A provider's tasks, or why they are not known. Takes three seconds at most, on the calling thread.
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
        // Of sessions that ended just when they were asked.
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

    /// A session has ended.
    pub(crate) fn forget(&self, session: u64) {
        let gone = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&session);
        drop(gone);
    }
}
