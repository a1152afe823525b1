//! When the daemon dies and another takes over: connecting anew, with all that this process holds.

use super::link::{Link, Live};
use super::{ClientStore, lock};
use crate::protocol::{self as p, Method};
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::Deadline;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often one thing is tried: a daemon that is killed again and again is outlived.
const ATTEMPTS_MAX: u32 = 10;
/// How long a daemon may be missing. With a supervisor the socket is always there, and hello waits for the next server.
const MISSING_MAX: Duration = Duration::from_secs(1);
const DELAY_MIN: Duration = Duration::from_millis(5);
const DELAY_MAX: Duration = Duration::from_millis(100);
/// How often an idle client looks for a daemon that is gone.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

impl ClientStore {
    /// Does what asks the daemon for something, again if the daemon was replaced meanwhile. So `op` has to be good for
    /// being done twice.
    pub(super) fn attempt<T>(&self, mut op: impl FnMut(&Arc<Live>) -> Result<T>) -> Result<T> {
        let mut attempts = 0;
        loop {
            let live = self.link.live();
            let lost = |live: &Live| live.connection.closed().is_some() || !self.is_live(live);
            if lost(&live) && !self.link.ended() {
                self.rejoin(&live)?;
                continue;
            }
            let error = match op(&live) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            attempts += 1;
            // What took too long once is not tried again; the next one finds a new connection.
            if attempts == ATTEMPTS_MAX || error.kind() == ErrorKind::TimedOut || self.link.ended() || !lost(&live) {
                return Err(error);
            }
        }
    }

    /// Calls a method that can be called twice.
    pub(crate) fn call<M: Method>(&self, params: &M::Params) -> Result<(M::Result, Vec<OwnedFd>)> {
        self.attempt(|live| live.call::<M>(params, Vec::new()))
    }

    /// As [`call`](Self::call), for answers that carry no lease: one that does not come in time is dropped when it comes.
    ///
    /// # Errors
    /// As [`call`](Self::call); `TimedOut` past the deadline.
    pub fn call_by<M: Method>(&self, params: &M::Params, deadline: &Deadline) -> Result<(M::Result, Vec<OwnedFd>)> {
        self.attempt(|live| live.call_by::<M>(params, deadline))
    }

    fn is_live(&self, live: &Live) -> bool {
        self.link.live().generation == live.generation
    }

    /// Replaces a connection that is lost.
    ///
    /// # Errors
    /// `Io` when no daemon came within a second, and what it answers; `Conflict` after the end.
    pub(super) fn rejoin(&self, lost: &Live) -> Result<()> {
        let _turn = lock(&self.link.turn);
        if !self.is_live(lost) {
            return Ok(());
        }
        lost.connection.close();
        self.opened.forget_names();
        let (start, mut delay) = (Instant::now(), DELAY_MIN);
        let mut generation = lost.generation;
        for _ in 0..ATTEMPTS_MAX {
            loop {
                if self.link.ended() {
                    return Err(Error::new(ErrorKind::Conflict, "this client has disconnected"));
                }
                generation += 1;
                match self.try_rejoin(lost, generation) {
                    Ok(()) => return Ok(()),
                    Err(error) if error.kind() == ErrorKind::Io => break,
                    Err(error) if error.kind() == ErrorKind::Unreachable && start.elapsed() < MISSING_MAX => {}
                    Err(error) => return Err(error),
                }
                std::thread::sleep(delay);
                delay = (delay * 2).min(DELAY_MAX);
            }
            std::thread::sleep(delay);
        }
        Err(Error::new(ErrorKind::Io, "no daemon lives long enough to say hello").in_file(&self.link.socket))
    }

    fn try_rejoin(&self, lost: &Live, generation: u64) -> Result<()> {
        let (mut held, mut claimed) = (Vec::new(), Vec::new());
        let resume = || {
            // From here on no answer of the former session counts.
            let (ids, leases) = self.opened.gather(generation);
            held = ids;
            claimed = self.tickets.gather(generation);
            self.slabs.leave(generation);
            let claims = claimed.iter().map(|key| key.0.to_string()).collect();
            Some(p::Resume { session: lost.session, token: lost.token.clone(), leases, claims })
        };
        let greeted = match self.link.greet_again(generation, resume) {
            // A daemon that knows nothing of the former one: without a supervisor, or after both died. All leases are lost.
            Err(error) if error.field() == Some(p::RESUME_TOKEN) => {
                self.slabs.retire();
                self.link.greet_again(generation, || None)?
            }
            greeted => greeted?,
        };
        let (resumed, tickets) = (greeted.hello.resumed.clone(), greeted.hello.tickets.clone());
        let live = Arc::new(greeted.live(generation));
        self.slabs.reopen(&live)?;
        let given_up = self.tickets.renew(&claimed, &tickets);
        self.opened.renew(&live, &held, &resumed);
        for ticket in given_up {
            live.tell::<p::Decline>(&p::TicketParams { ticket });
        }
        Ok(())
    }
}

/// Connects anew as soon as the connection ends, whether or not anybody asks for something: what this process leases
/// would not be waited for long. Ends with the store, which the daemon is told if it cannot know.
pub(super) fn watch(link: &Link, store: Weak<ClientStore>) -> Result<()> {
    let (socket, client) = (link.socket.clone(), link.client.clone());
    // Taken here: the store may be gone before the thread runs.
    let mut live = link.live();
    let watching = move || {
        loop {
            live.connection.wait_for_end();
            let store = store.upgrade().filter(|store| !store.link.ended());
            let Some(store) = store else {
                if live.was_lost() {
                    Link::farewell(&socket, &client, &live);
                }
                return;
            };
            let rejoined = store.rejoin(&live);
            live = store.link.live();
            drop(store);
            if rejoined.is_err() {
                std::thread::sleep(LOOK_AGAIN);
            }
        }
    };
    let thread = std::thread::Builder::new().name("cotensor rejoin".to_owned()).stack_size(256 << 10);
    drop(thread.spawn(watching).map_err(|error| Error::io("starting a thread", &error))?);
    Ok(())
}
