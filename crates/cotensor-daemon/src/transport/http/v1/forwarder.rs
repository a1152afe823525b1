//! What all forwarded requests share.

use super::connections::Connections;
use crate::models::Models;
use crate::transport::http::body::BodyMemory;
use crate::transport::http::config::HttpConfig;
use std::sync::Arc;
use std::time::Duration;

/// The model process, the connections to it, and the limits of requests.
pub(in crate::transport::http) struct Forwarder {
    pub(super) models: Arc<Models>,
    pub(super) connections: Connections,
    /// The memory for requests.
    pub(super) memory: BodyMemory,
    pub(super) bytes_max: usize,
    pub(super) message_timeout: Duration,
    pub(super) request_time_max: Duration,
}

impl Forwarder {
    pub(in crate::transport::http) fn new(models: Arc<Models>, config: &HttpConfig) -> Arc<Self> {
        Arc::new(Self {
            models,
            connections: Connections::default(),
            memory: BodyMemory::new(config.v1_total_bytes_max),
            bytes_max: config.v1_bytes_max,
            message_timeout: config.message_timeout,
            request_time_max: config.request_time_max,
        })
    }
}
