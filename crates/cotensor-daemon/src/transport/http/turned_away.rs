//! The answer to connections beyond the limits.

use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// When the client should try again, in seconds.
const RETRY_AFTER_S: u32 = 1;
const MESSAGE: &str = "the daemon has its most HTTP connections already; try again in a second\n";
/// The daemon learns a moment later than the client that an answer was received.
const ANSWERED_MIN: usize = 64;
/// How long the daemon waits for a client to send its request and receive the answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The most bytes of a request that are read. The kernel discards an answer if the request is not read.
const READ_BYTES_MAX: usize = 1 << 20;

/// Answers a bounded number of connections at a time; further ones are closed without an answer.
pub(super) struct TurnedAway(Arc<Semaphore>);

impl TurnedAway {
    /// As many connections at a time as are served, and at least [`ANSWERED_MIN`].
    pub(super) fn new(served: usize) -> Self {
        Self(Arc::new(Semaphore::new(served.max(ANSWERED_MIN))))
    }

    pub(super) fn answer(&self, stream: TcpStream) {
        let Ok(place) = Arc::clone(&self.0).try_acquire_owned() else { return };
        tokio::spawn(async move {
            // A client that is too slow gets no answer.
            let _ = tokio::time::timeout(TIMEOUT, answer(stream)).await;
            drop(place);
        });
    }
}

async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\nRetry-After: {RETRY_AFTER_S}\r\nConnection: close\r\n\
         Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n",
        MESSAGE.len()
    );
    stream.write_all(format!("{head}{MESSAGE}").as_bytes()).await?;
    stream.shutdown().await?;
    let (mut piece, mut read) = (vec![0; 16 << 10], 0);
    while read < READ_BYTES_MAX {
        match stream.read(&mut piece).await? {
            0 => break,
            more => read += more,
        }
    }
    Ok(())
}
