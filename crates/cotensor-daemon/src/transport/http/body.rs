//! The bodies of requests, which have to come in time and in bounds.

use super::answer::Refusal;
use super::min_rate::time_for;
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use cotensor_core::{Error, ErrorKind};
use cotensor_memory::process::check_room_for_message;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// The memory for the bodies of requests that wait or run.
pub(super) struct BodyMemory(Arc<Semaphore>);

/// A body, and its part of the memory.
pub(super) struct ReadBody {
    pub(super) bytes: Vec<u8>,
    pub(super) memory: Option<OwnedSemaphorePermit>,
}

impl BodyMemory {
    /// Memory of `bytes` for all requests.
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))))
    }

    /// Reads all of a body. `timeout` is for the first bytes.
    ///
    /// # Errors
    /// 413 for more than `max` bytes; 503 when other bodies occupy the memory; 507 when the process may not have more; 408
    /// and 400.
    pub(super) async fn read(&self, mut body: Body, max: usize, timeout: Duration) -> Result<ReadBody, Refusal> {
        let too_large = || Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, format!("a request has at most {max} bytes"));
        if body.size_hint().lower() > max as u64 {
            return Err(too_large());
        }
        let (start, mut bytes, mut memory) = (Instant::now(), Vec::new(), None::<OwnedSemaphorePermit>);
        while let Some(part) = next(&mut body, start + timeout + time_for(bytes.len() as u64)).await? {
            if bytes.len() + part.len() > max {
                return Err(too_large());
            }
            let full = |_| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too many large requests wait; try again");
            let permits = u32::try_from(part.len()).map_err(|_| too_large())?;
            let permit = Arc::clone(&self.0).try_acquire_many_owned(permits).map_err(full)?;
            match &mut memory {
                Some(memory) => memory.merge(permit),
                None => memory = Some(permit),
            }
            if bytes.capacity() - bytes.len() < part.len() {
                // As a vector grows. An allocation that fails ends the process.
                let grown = bytes.len().max(part.len());
                check_room_for_message(grown)?;
                bytes.try_reserve(grown).map_err(|_| memory_full())?;
            }
            bytes.extend_from_slice(&part);
        }
        Ok(ReadBody { bytes, memory })
    }
}

fn memory_full() -> Refusal {
    Error::new(ErrorKind::OverBudget, "the system has no memory for this request").into()
}

/// The next piece of a body; none at its end.
pub(super) async fn next(body: &mut Body, until: Instant) -> Result<Option<Bytes>, Refusal> {
    loop {
        let frame = tokio::time::timeout_at(until, body.frame())
            .await
            .map_err(|_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the rest of the body did not come in time"))?;
        match frame {
            None => return Ok(None),
            Some(Err(_)) => return Err(Refusal::new(StatusCode::BAD_REQUEST, "the body ended before its length")),
            // Trailers say nothing here.
            Some(Ok(frame)) => match frame.into_data() {
                Ok(part) => return Ok(Some(part)),
                Err(_) => continue,
            },
        }
    }
}
