//! What all forwarded requests share.

use super::connections::Connections;
use crate::http::config::HttpConfig;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The connections to the model process, and the memory for requests.
pub(in crate::http) struct Forwarder {
    pub(super) connections: Connections,
    /// A permit for each byte of a request.
    pub(super) memory: Arc<Semaphore>,
}

impl Forwarder {
    pub(in crate::http) fn new(config: &HttpConfig) -> Self {
        let memory = Arc::new(Semaphore::new(config.v1_total_bytes_max.min(Semaphore::MAX_PERMITS)));
        Self { connections: Connections::default(), memory }
    }
}
