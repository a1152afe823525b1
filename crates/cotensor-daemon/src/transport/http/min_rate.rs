//! A minimum transfer rate for slow clients.

use std::future::Future;
use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// The minimum rate after the initial timeout.
pub(crate) const BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// The time limit for `bytes`.
pub(crate) fn time_for(bytes: u64) -> Duration {
    Duration::from_micros(bytes.saturating_mul(1_000_000) / BYTES_PER_SECOND_MIN)
}

/// A connection that fails when the other end receives too slowly.
pub(crate) struct MinRateStream<S> {
    inner: S,
    timeout: Duration,
    /// The remaining time to wait. Received bytes add to it, up to `timeout`.
    credit: Duration,
    /// The beginning and the end of the current wait.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<S> MinRateStream<S> {
    pub(crate) fn new(inner: S, timeout: Duration) -> Self {
        Self { inner, timeout, credit: timeout, waiting: None }
    }

    /// Updates the time after an attempt to send.
    fn pace(&mut self, context: &mut Context<'_>, attempt: Poll<Result<usize>>) -> Poll<Result<usize>> {
        match attempt {
            Poll::Pending => {
                let (now, credit) = (Instant::now(), self.credit);
                let until = || (now, Box::pin(tokio::time::sleep_until(now + credit)));
                let (_, sleep) = self.waiting.get_or_insert_with(until);
                ready!(sleep.as_mut().poll(context));
                Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client does not receive the answer")))
            }
            Poll::Ready(sent) => {
                if let Some((since, _)) = self.waiting.take() {
                    self.credit = self.credit.saturating_sub(since.elapsed());
                }
                let sent = sent?;
                self.credit = (self.credit + time_for(sent as u64)).min(self.timeout);
                Poll::Ready(Ok(sent))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MinRateStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, target: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, target)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MinRateStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, source: &[u8]) -> Poll<Result<usize>> {
        let attempt = Pin::new(&mut self.inner).poll_write(context, source);
        self.pace(context, attempt)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        sources: &[std::io::IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let attempt = Pin::new(&mut self.inner).poll_write_vectored(context, sources);
        self.pace(context, attempt)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// Sends a megabyte through a pipe of 4 KiB whose reader takes `step` bytes every `pause`.
    async fn transfer(step: usize, pause: Duration) -> Result<()> {
        let (near, mut far) = tokio::io::duplex(4096);
        let reader = tokio::spawn(async move {
            let mut taken = vec![0; step];
            loop {
                tokio::time::sleep(pause).await;
                match far.read(&mut taken).await {
                    Ok(0) | Err(_) => break,
                    Ok(_) => {}
                }
            }
        });
        let sent = MinRateStream::new(near, TIMEOUT).write_all(&[0; 1 << 20]).await;
        reader.abort();
        sent
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_is_accepted_and_too_slow_reader_times_out() {
        transfer(4096, Duration::from_millis(50)).await.unwrap();
        // Each pause is shorter than the timeout; their sum is longer.
        for (step, pause) in [(1, Duration::from_secs(9)), (64, Duration::from_millis(100)), (1, TIMEOUT * 2)] {
            assert_eq!(transfer(step, pause).await.unwrap_err().kind(), ErrorKind::TimedOut, "{step}");
        }
    }
}
