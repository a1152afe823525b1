//! Sessions over HTTP. They have no connection, so they end after a time without calls.

use super::answer::Refusal;
use crate::daemon::Daemon;
use crate::state::session::Session;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use cotensor_core::ContentHash;
use cotensor_core::sync::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The header that carries a session's token.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("cotensor-session");

/// The sessions that were opened over HTTP, by the hashes of their tokens, so that the time of a lookup reveals no
/// token.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<ContentHash, Entry>>);

struct Entry {
    session: Arc<Session>,
    /// The number of running calls.
    calls: usize,
    used: Instant,
}

/// The session of a call.
pub(crate) struct Call<'a> {
    pub(crate) session: Arc<Session>,
    daemon: &'a Daemon,
    sessions: &'a Sessions,
    /// The hash of the session's token; none for a session of this call alone.
    key: Option<ContentHash>,
}

impl Sessions {
    /// The session that a request names, or a new one for this call alone.
    ///
    /// # Errors
    /// 404 for an unknown session.
    pub(crate) fn call<'a>(&'a self, daemon: &'a Arc<Daemon>, headers: &HeaderMap) -> Result<Call<'a>, Refusal> {
        let Some(token) = headers.get(HEADER) else {
            return Ok(Call { session: daemon.begin_session(None, None), daemon, sessions: self, key: None });
        };
        let key = ContentHash::of(token.as_bytes());
        let mut entries = self.lock();
        let entry = entries.get_mut(&key).ok_or_else(|| {
            Refusal::new(StatusCode::NOT_FOUND, "the session has ended: open another by session.hello")
        })?;
        entry.calls += 1;
        Ok(Call { session: Arc::clone(&entry.session), daemon, sessions: self, key: Some(key) })
    }

    /// Ends sessions without calls for `ttl`.
    pub(crate) fn expire(&self, daemon: &Daemon, ttl: Duration) {
        let mut ended = Vec::new();
        self.lock().retain(|_, entry| {
            let keep = entry.calls > 0 || entry.used.elapsed() < ttl;
            if !keep {
                ended.push(Arc::clone(&entry.session));
            }
            keep
        });
        ended.iter().for_each(|session| drop(daemon.end_session(session)));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ContentHash, Entry>> {
        lock(&self.0)
    }
}

impl Call<'_> {
    /// Whether the session outlives the call.
    pub(crate) fn is_kept(&self) -> bool {
        self.key.is_some()
    }

    /// Keeps the session for later calls if this call was a hello.
    ///
    /// # Errors
    /// 503 when `max` sessions exist.
    pub(crate) fn keep_after_hello(&mut self, max: usize) -> Result<(), Refusal> {
        if self.is_kept() || !self.session.is_named() {
            return Ok(());
        }
        let mut entries = self.sessions.lock();
        if entries.len() >= max {
            return Err(Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{max} HTTP sessions are open: end one by DELETE /session"),
            ));
        }
        let key = ContentHash::of(self.daemon.token(self.session.id).as_bytes());
        entries.insert(key, Entry { session: Arc::clone(&self.session), calls: 1, used: Instant::now() });
        self.key = Some(key);
        Ok(())
    }

    /// Ends the session now.
    pub(crate) fn end(self) {
        if let Some(key) = self.key {
            self.sessions.lock().remove(&key);
        }
        drop(self.daemon.end_session(&self.session));
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        match self.key {
            // This also releases the leases of a call whose client closed the connection.
            None => drop(self.daemon.end_session(&self.session)),
            Some(key) => {
                if let Some(entry) = self.sessions.lock().get_mut(&key) {
                    entry.calls -= 1;
                    entry.used = Instant::now();
                }
            }
        }
    }
}
