//! Answers to calls whose callers gave them up: they may carry leases, and are taken for that alone.

use super::link::Link;
use super::lock;
use cotensor_rpc::{Answer, Group, Until};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// What becomes of an answer that nobody waits for.
pub(super) type TakeLate = fn(&Arc<Link>, Answer);

#[derive(Default)]
pub(super) struct Late {
    group: Arc<Group>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: HashMap<u64, TakeLate>,
    /// Whether a thread waits for them.
    running: bool,
}

impl Link {
    /// Has the answer to a call taken when it comes. One thread does so for all such calls of a connection.
    pub(super) fn abandon(self: &Arc<Self>, id: u64, take: TakeLate) {
        let mut state = lock(&self.late.state);
        if !self.connection.abandon(id, &self.late.group) {
            return;
        }
        state.calls.insert(id, take);
        if state.running {
            return;
        }
        let link = Arc::clone(self);
        let run = move || link.take_late_answers();
        // Without a thread, the next call that is given up starts one.
        state.running = std::thread::Builder::new().name("cotensor-late".to_owned()).spawn(run).is_ok();
    }

    fn take_late_answers(self: &Arc<Self>) {
        loop {
            let arrived = self.connection.wait_for(&self.late.group, &Until::default());
            let mut state = lock(&self.late.state);
            let Ok(arrived) = arrived else {
                // The connection has ended, and with it all leases of its answers.
                *state = State::default();
                return;
            };
            let taken: Vec<_> = arrived.into_iter().map(|(id, answer)| (state.calls.remove(&id), answer)).collect();
            drop(state);
            for (take, answer) in taken {
                if let Some(take) = take {
                    take(self, answer);
                }
            }
            let mut state = lock(&self.late.state);
            if state.calls.is_empty() {
                state.running = false;
                return;
            }
        }
    }
}
