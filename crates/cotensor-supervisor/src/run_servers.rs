//! The supervisor's loop: runs one server after another.

use crate::channel::Receiver;
use crate::follow::End;
use crate::launch::{Image, Launch};
use crate::process::{STABLE_UPTIME, Server};
use crate::signals::StopSignals;
use crate::state::Supervisor;
use crate::successor::SuccessorSocket;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_memory::process::raise_fd_limit;
use std::time::{Duration, Instant};

/// A supervisor without tensors gives up after this time without a server that served.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);
/// The delay after a server that failed to start. It doubles with each attempt.
const RESTART_DELAY_MIN: Duration = Duration::from_millis(20);
const RESTART_DELAY_MAX: Duration = Duration::from_millis(500);
/// The first time to report that no server starts. It doubles with each report.
const REPORT_AFTER: Duration = Duration::from_secs(1);

/// Whether the supervisor ends after `waited` without a server that served. Its end would lose the tensors.
fn gives_up(waited: Duration, tensors: usize) -> bool {
    tensors == 0 && waited > RESTART_TIMEOUT
}

impl Supervisor {
    /// Runs servers until a signal stops this process or the server. Calls `ready` for each server that serves, with its epoch and its
    /// process.
    ///
    /// # Errors
    /// `Io` when the first server cannot be started, or when no server has started for a minute and there are no tensors.
    pub fn run(self, launch: &Launch, ready: impl FnMut(u64, Option<u32>)) -> Result<()> {
        self.run_servers(launch, None, None, ready)
    }

    /// As [`run`](Self::run), beginning with `first` if it is running already, until a signal stops this process or the server,
    /// or a successor takes over.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(crate) fn run_servers(
        mut self,
        launch: &Launch,
        first: Option<(Server, Receiver)>,
        mut successors: Option<SuccessorSocket>,
        mut ready: impl FnMut(u64, Option<u32>),
    ) -> Result<()> {
        raise_fd_limit();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::io("starting the supervisor", &error))?;
        let mut serving = first.is_some();
        // When a server last served. A daemon that has no state yet may fail at once.
        let mut served = (serving || self.tensors() > 0).then(Instant::now);
        let (mut next, mut delay, mut image) = (first, RESTART_DELAY_MIN, Image::default());
        let mut report_after = REPORT_AFTER;
        runtime.block_on(async {
            let mut stop = StopSignals::new()?;
            loop {
                let began = Instant::now();
                let mut on_ready = |epoch, pid| {
                    serving = true;
                    ready(epoch, pid);
                };
                let outcome = match next.take().map_or_else(|| self.start_server(launch, image), Ok) {
                    Ok((server, receiver)) => {
                        self.supervise(server, receiver, &mut stop, successors.as_mut(), &mut on_ready).await
                    }
                    Err(error) => Err(error),
                };
                if std::mem::take(&mut serving) {
                    (served, report_after) = (Some(Instant::now()), REPORT_AFTER);
                }
                match outcome {
                    Ok(End::Stopped) => {
                        self.report_stop();
                        return Ok(());
                    }
                    Ok(End::Succeeded(successor)) => match self.hand_to_successor(successor) {
                        Ok(()) => return Ok(()),
                        Err(error) => tracing::error!("the handover to the successor failed: {error}"),
                    },
                    Ok(End::Died) if served.is_none() => {
                        return Err(Error::new(ErrorKind::Io, "the server ended before it was ready"));
                    }
                    Ok(End::Died) => {
                        tracing::warn!("the server died; the next one gets its {} tensors", self.tensors());
                    }
                    Err(error) if served.is_none() => return Err(error),
                    Err(error) => tracing::error!("the server failed: {error}"),
                }
                let waited = served.map_or(Duration::ZERO, |served| served.elapsed());
                if gives_up(waited, self.tensors()) {
                    return Err(Error::new(ErrorKind::Io, "no server can be started"));
                }
                if waited > report_after {
                    let (seconds, tensors) = (waited.as_secs(), self.tensors());
                    tracing::error!(
                        "no server could be started for {seconds} s: {tensors} tensors are kept, trying again"
                    );
                    report_after *= 2;
                }
                let was_stable = began.elapsed() >= STABLE_UPTIME;
                image = image.next(was_stable);
                delay = if was_stable { RESTART_DELAY_MIN } else { (delay * 2).min(RESTART_DELAY_MAX) };
                tokio::select! {
                    () = tokio::time::sleep(if was_stable { Duration::ZERO } else { delay / 2 }) => {}
                    _ = stop.received() => {
                        self.report_stop();
                        return Ok(());
                    }
                }
            }
        })
    }

    /// Follows a server and ends its process.
    async fn supervise(
        &mut self,
        mut server: Server,
        receiver: Receiver,
        stop: &mut StopSignals,
        successors: Option<&mut SuccessorSocket>,
        ready: &mut impl FnMut(u64, Option<u32>),
    ) -> Result<End> {
        let end = self.follow(&server, receiver, stop, successors, ready).await;
        // Before the next server serves: clients must not use the index of this server.
        if let Some(index) = self.index.take() {
            index.invalidate();
        }
        match end {
            // No server follows, so the supervisor does not wait for system calls of this one.
            Ok(End::Stopped) => server.end_without_wait(),
            Ok(_) => server.end(),
            Err(_) => {
                server.kill();
                server.end();
            }
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supervisor_with_tensors_never_gives_up() {
        assert!(gives_up(RESTART_TIMEOUT * 2, 0) && !gives_up(RESTART_TIMEOUT, 0));
        assert!(!gives_up(Duration::MAX, 1));
    }
}
