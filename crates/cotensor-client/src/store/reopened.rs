//! What each new session opens again, as other modules define it: channels.

use super::session::Session;
use cotensor_core::Result;
use cotensor_core::sync::lock;
use std::sync::{Arc, Mutex, Weak};

/// Something that the daemon has for one session only.
pub(crate) trait Reopened: Send + Sync {
    /// Whether no session needs it any more.
    fn is_closed(&self) -> bool;

    /// Opens it in a session.
    ///
    /// # Errors
    /// The daemon's; those of a session that ends meanwhile.
    fn open_in(&self, session: &Session) -> Result<()>;
}

/// All of a client.
#[derive(Default)]
pub(crate) struct Reopenings(Mutex<Vec<Weak<dyn Reopened>>>);

impl Reopenings {
    pub(crate) fn add(&self, opened: &Arc<impl Reopened + 'static>) {
        let mut all = lock(&self.0);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(opened) as Weak<dyn Reopened>);
    }

    /// Opens all in a new session. One that the daemon refuses goes on without the daemon.
    ///
    /// # Errors
    /// Those of a session that ends meanwhile.
    pub(super) fn reopen(&self, session: &Session) -> Result<()> {
        let all: Vec<Arc<dyn Reopened>> = lock(&self.0).iter().filter_map(Weak::upgrade).collect();
        for one in all.iter().filter(|one| !one.is_closed()) {
            if let Err(error) = one.open_in(session)
                && session.is_closed()
            {
                return Err(error);
            }
        }
        Ok(())
    }
}
