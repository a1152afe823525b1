//! Answers to calls that were abandoned. The answers may carry leases, which must be released.

use cotensor_core::sync::lock;
use cotensor_rpc::{Answer, CallGroup, Connection, WaitLimit};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Disposes of the answer to an abandoned call.
pub(super) type Dispose = Box<dyn FnOnce(Answer) + Send>;

/// The abandoned calls of one connection. While there are any, one thread receives their answers.
pub(super) struct AbandonedCalls {
    connection: Arc<Connection>,
    group: Arc<CallGroup>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By call number.
    calls: HashMap<u64, Dispose>,
    /// Whether a thread receives answers.
    running: bool,
}

impl AbandonedCalls {
    pub(super) fn new(connection: Arc<Connection>) -> Arc<Self> {
        Arc::new(Self { connection, group: Arc::default(), state: Mutex::default() })
    }

    /// Abandons the call `id`. `dispose` receives its answer.
    pub(super) fn add(self: &Arc<Self>, id: u64, dispose: Dispose) {
        let mut state = lock(&self.state);
        if !self.connection.abandon(id, &self.group) {
            return;
        }
        state.calls.insert(id, dispose);
        if state.running {
            return;
        }
        let calls = Arc::clone(self);
        let thread = std::thread::Builder::new().name("cotensor-late".to_owned());
        // If the thread cannot be started, the next abandoned call tries again.
        state.running = thread.spawn(move || calls.receive()).is_ok();
    }

    fn receive(&self) {
        loop {
            let answers = self.connection.wait_for(&self.group, &WaitLimit::default());
            let mut state = lock(&self.state);
            let Ok(answers) = answers else {
                // The connection has ended, and all leases in its answers with it.
                *state = State::default();
                return;
            };
            let received: Vec<_> = answers.into_iter().map(|(id, answer)| (state.calls.remove(&id), answer)).collect();
            drop(state);
            for (dispose, answer) in received {
                if let Some(dispose) = dispose {
                    dispose(answer);
                }
            }
            let mut state = lock(&self.state);
            if state.calls.is_empty() {
                state.running = false;
                return;
            }
        }
    }
}
