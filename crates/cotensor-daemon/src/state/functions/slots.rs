//! Bounds of the calls over HTTP: of one provider, so that a stopped one delays no other, and of all.

use cotensor_core::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// The calls of one provider that run at a time.
const OF_PROVIDER_MAX: usize = 32;
/// The calls of all providers that run at a time. Each occupies a thread of the runtime, which has 512.
const OF_ALL_MAX: usize = 256;
/// The longest wait of a call for its turn.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// The calls that may run at a time.
#[derive(Clone)]
pub(crate) struct Slots {
    free: Arc<Semaphore>,
    max: usize,
}

/// The slots of a running call.
pub(super) struct Running {
    _of_provider: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Slots {
    /// The slots of one provider.
    pub(crate) fn of_provider() -> Self {
        Self::new(OF_PROVIDER_MAX)
    }

    /// The slots of a daemon.
    pub(crate) fn of_all() -> Self {
        Self::new(OF_ALL_MAX)
    }

    fn new(max: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(max)), max }
    }

    async fn take(&self, until: Instant, whose: &str) -> Result<OwnedSemaphorePermit> {
        let taken = timeout_at(until, Arc::clone(&self.free).acquire_owned()).await;
        taken.ok().and_then(std::result::Result::ok).ok_or_else(|| {
            let message = format!(
                "{} calls over HTTP of {whose} have run for {} s; the function was not called: try again later",
                self.max,
                WAIT_MAX.as_secs()
            );
            Error::new(ErrorKind::Conflict, message)
        })
    }
}

/// Waits for the turn of a call. The provider's slot comes first: calls that wait for it have none of all.
///
/// # Errors
/// `Conflict` when the wait is too long.
pub(super) async fn take(of_provider: &Slots, of_all: &Slots, provider: &str) -> Result<Running> {
    let until = Instant::now() + WAIT_MAX;
    let of_provider = of_provider.take(until, &format!("the provider {provider}")).await?;
    let of_all = of_all.take(until, "all providers").await?;
    Ok(Running { _of_provider: of_provider, _of_all: of_all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn busy_provider_delays_no_other_and_long_waits_are_errors() {
        let (first, second, all) = (Slots::new(2), Slots::new(2), Slots::new(3));
        let (one, _two) = (take(&first, &all, "first").await.unwrap(), take(&first, &all, "first").await.unwrap());
        let busy = take(&first, &all, "first").await.err().unwrap();
        assert!(
            busy.kind() == ErrorKind::Conflict && busy.message().contains("2 calls over HTTP of the provider first")
        );
        let _three = take(&second, &all, "second").await.unwrap();
        let full = take(&second, &all, "second").await.err().unwrap();
        assert!(full.kind() == ErrorKind::Conflict && full.message().contains("3 calls over HTTP of all providers"));
        let next = tokio::spawn({
            let (first, all) = (first.clone(), all.clone());
            async move { take(&first, &all, "first").await }
        });
        tokio::task::yield_now().await;
        drop(one);
        next.await.unwrap().unwrap();
    }
}
