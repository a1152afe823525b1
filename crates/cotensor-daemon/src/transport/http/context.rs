//! The state that all requests of one listener share.

use super::access::Access;
use super::body::BodyMemory;
use super::config::HttpConfig;
use super::dashboard::Dashboard;
use super::sessions::Sessions;
use crate::daemon::Daemon;
use crate::dispatch::Methods;
use std::sync::Arc;

/// The context of all requests.
pub(crate) struct Http {
    pub(super) daemon: Arc<Daemon>,
    pub(super) methods: Arc<Methods>,
    pub(super) config: HttpConfig,
    pub(super) access: Access,
    pub(super) dashboard: Arc<Dashboard>,
    pub(super) sessions: Sessions,
    /// The memory for calls.
    pub(super) calls: BodyMemory,
}
