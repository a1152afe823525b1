//! The threads that read callers' messages and run functions.
//!
//! All threads wait for the same poller. The thread that receives a socket's event reads the socket. Before it runs a
//! function, it arms the socket again, so that another thread reads messages that arrive during the run. After the run
//! it takes the reader back, unless another thread has it, and busy-polls. Sequential short calls of one caller thus
//! wake no thread.

use super::callers::Callers;
use super::peer::Peer;
use super::poller::Ready;
use super::run::Run;
use super::state::ProviderState;
use crate::threads::spawn;
use cotensor_core::Result;
use cotensor_rpc::server::{Polled, Reader};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Starts a call thread.
///
/// # Errors
/// `Io` when the system starts no more threads.
pub(super) fn start(callers: &Arc<Callers>) -> Result<()> {
    callers.state.waiting_threads.fetch_add(1, Ordering::SeqCst);
    let thread = Arc::clone(callers);
    spawn("cotensor-call", move || wait_for_work(&thread)).inspect_err(|_| {
        callers.state.waiting_threads.fetch_sub(1, Ordering::SeqCst);
    })
}

/// A call thread. It counts as waiting when it starts.
fn wait_for_work(callers: &Arc<Callers>) {
    let state = &callers.state;
    loop {
        let ready = state.poller.wait();
        if state.is_closed() {
            return;
        }
        // One thread always waits, so that no caller depends on the end of another caller's run.
        if state.waiting_threads.fetch_sub(1, Ordering::SeqCst) == 1 {
            // Without a further thread, sockets wait until this one is free.
            let _ = start(callers);
        }
        match ready {
            Ready::Socket(number) => {
                if let Some(peer) = callers.get(number)
                    && let Some(reader) = peer.take_reader()
                {
                    serve(callers, &peer, reader);
                }
            }
            Ready::Wake => {
                if let Some(run) = take_run(state) {
                    execute_all(state, run);
                }
            }
        }
        // More threads than can run functions are left over from a burst.
        if state.waiting_threads.fetch_add(1, Ordering::SeqCst) > state.limits.workers {
            state.waiting_threads.fetch_sub(1, Ordering::SeqCst);
            return;
        }
    }
}

/// Reads a caller's messages, and runs functions, until the caller sends nothing more or another thread reads.
fn serve(callers: &Callers, peer: &Arc<Peer>, mut reader: Reader) {
    let state = &callers.state;
    let mut after_run = false;
    loop {
        match reader.poll_next(peer.socket(), std::mem::take(&mut after_run)) {
            Ok(Polled::Message(frame)) => callers.methods.handle(peer, frame, None),
            Ok(Polled::Nothing) => return peer.return_reader(reader),
            Ok(Polled::End) | Err(_) => return callers.remove(peer),
        }
        if reader.is_midway() {
            // The next message is in the reader's buffer, where the poller does not see it. Another thread runs the
            // function.
            if state.runs.queue.has_ready() {
                state.poller.wake();
            }
            continue;
        }
        let Some(run) = take_run(state) else { continue };
        peer.return_reader(reader);
        execute_all(state, run);
        match peer.take_reader() {
            Some(taken) => reader = taken,
            None => return,
        }
        peer.disarm();
        after_run = true;
    }
}

/// Takes a run. Wakes a thread for the next one.
fn take_run(state: &ProviderState) -> Option<Arc<Run>> {
    let (run, more) = state.runs.queue.take()?;
    if more {
        state.poller.wake();
    }
    Some(run)
}

/// Executes a run, and then other runs that are ready.
fn execute_all(state: &ProviderState, first: Arc<Run>) {
    let mut next = Some(first);
    while let Some(run) = next {
        state.runs.execute(&run);
        state.runs.queue.finish(&run);
        drop(run);
        next = take_run(state);
    }
}
