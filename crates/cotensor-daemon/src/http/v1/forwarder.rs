//! What all forwarded requests share.

use super::connections::Connections;
use crate::http::body::BodyMemory;
use crate::http::config::HttpConfig;

/// The connections to the model process, and the memory for requests.
pub(in crate::http) struct Forwarder {
    pub(super) connections: Connections,
    /// The memory for requests.
    pub(super) memory: BodyMemory,
}

impl Forwarder {
    pub(in crate::http) fn new(config: &HttpConfig) -> Self {
        Self { connections: Connections::default(), memory: BodyMemory::new(config.v1_total_bytes_max) }
    }
}
