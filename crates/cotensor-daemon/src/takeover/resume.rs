//! A client resumes its session after the server was replaced.

use super::restore::claim;
use crate::daemon::Daemon;
use crate::state::broker::{DEVICES_MAX, DeviceProgram};
use crate::state::session::{HANDLES_MAX, Session};
use crate::state::{EndedWait, claim_key};
use cotensor_client::protocol::{DeviceShareParams, Id, JoinDeviceParams, RESUME_TOKEN, Resume};
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::server::Outbox;
use cotensor_store::{Lease, TensorId, TensorStore};
use cotensor_supervisor::{Event, SessionClient};
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// The most leases that one session can resume.
const RESUMED_MAX: usize = 100_000;

/// The result of a resume.
#[derive(Default)]
pub(crate) struct Resumed {
    /// For each lease, the tensor.
    pub(crate) leases: Vec<Option<Id>>,
    /// For each claim, the ticket.
    pub(crate) tickets: Vec<Option<u64>>,
    /// For each device, the share.
    pub(crate) shares: Vec<DeviceShareParams>,
}

impl Daemon {
    /// Gives a session the leases, the claims and the shares of devices of its former session. [`end_wait`](Self::end_wait)
    /// follows when the supervisor has the new session.
    ///
    /// # Errors
    /// `Refused` for a token that no server of this supervisor issued, `Invalid` for too many leases.
    pub(crate) fn resume(&self, session: &Arc<Session>, resume: Resume) -> Result<Resumed> {
        let token = self.token(resume.session);
        if !bool::from(token.as_bytes().ct_eq(resume.token.as_bytes())) {
            return Err(Error::new(ErrorKind::Refused, "the token is not that of the session").in_field(RESUME_TOKEN));
        }
        if resume.leases.len() > RESUMED_MAX || resume.claims.len() > HANDLES_MAX {
            return Err(Error::invalid(format!("more than {RESUMED_MAX} leases")).in_field("resume.leases"));
        }
        if resume.devices.len() > DEVICES_MAX {
            return Err(Error::invalid(format!("more than {DEVICES_MAX} devices")).in_field("resume.devices"));
        }
        self.end_connections(session, resume.session);
        let mut leases = Vec::with_capacity(resume.leases.len());
        for resumed in &resume.leases {
            let holder = session.holder(&resumed.holder)?;
            let lease = self.store.lease_version(&resumed.name, resumed.version, &holder);
            leases.push(lease.ok().map(|lease| session.resume_lease(lease, &holder)).transpose()?);
        }
        let holder = session.holder("")?;
        let resume_claim = |key: &String| {
            let key = claim_key(key).ok()?;
            let waiting = self.orphans().tickets.remove(&key);
            let ticket = waiting.or_else(|| claim(&self.store, &key, &holder))?;
            session.lock().tickets.add(ticket).ok()
        };
        let tickets = resume.claims.iter().map(resume_claim).collect();
        let shares = self.resume_shares(session, resume.session, resume.devices)?;
        Ok(Resumed { leases, tickets, shares })
    }

    /// Gives a session the shares of devices of its former session, `was`. No other program gets the memory in between.
    fn resume_shares(
        &self,
        session: &Arc<Session>,
        was: u64,
        devices: Vec<JoinDeviceParams>,
    ) -> Result<Vec<DeviceShareParams>> {
        let mut former = self.disconnected().take_shares(|number, client| self.locks.is_former(was, number, client));
        let program = Arc::clone(session) as Arc<dyn DeviceProgram>;
        let mut answers = Vec::with_capacity(devices.len());
        for device in devices {
            let of_device = former.extract_if(.., |share| share.device() == device.device).collect();
            let (share, answer) = self.broker.join_again(&program, device, of_device)?;
            session.lock().shares.push(share);
            answers.push(answer);
        }
        Ok(answers)
    }

    /// Ends those former sessions of the client that still have a connection. It opens their slabs again next.
    fn end_connections(&self, next: &Session, session: u64) {
        let others: Vec<_> = self.lock().values().filter(|other| other.id != next.id).cloned().collect();
        let is_former = |other: &&Arc<Session>| {
            other.resumable().is_some_and(|client| self.locks.is_former(session, other.id, client))
        };
        for former in others.iter().filter(is_former) {
            former.outbox().into_iter().for_each(Outbox::end);
            // Until the end of the resume, which may fail.
            if let Some(left) = self.end_session(former) {
                self.keep_left(left);
            }
        }
    }

    /// Ends the wait for the former session of a client, by the number that the client knows.
    pub(crate) fn end_wait(&self, session: u64) {
        let is_former = |number, client: &SessionClient| self.locks.is_former(session, number, client);
        let over = self.disconnected().take(is_former);
        over.into_iter().for_each(|left| self.release_left(left));
        let ended = self.orphans().end_waits(is_former);
        self.release_ended(ended);
    }

    /// Ends the waits for sessions of the former server that are due for a check and over.
    pub(crate) fn check_orphans(&self) {
        let now = self.clock.now();
        let checked = self.orphans().check(now, |session, client| self.locks.is_open(session, client));
        if checked.settled {
            self.broker.end_settling();
        }
        if checked.ended.iter().any(|(_, leases)| leases.is_none()) {
            // The session may have leased any of these tensors until now, so the time of each begins with the end of its lease.
            let orphans = self.orphans();
            let timed =
                orphans.leases.iter().chain(&checked.given_up.leases).filter(|lease| lease.keep_for().is_some());
            let timed: Vec<TensorId> = timed.map(Lease::id).collect();
            drop(orphans);
            let holder = self.store.holder("taken over");
            timed.into_iter().for_each(|id| drop(self.store.lease(id, &holder)));
        }
        drop(checked.given_up);
        self.release_ended(checked.ended);
    }

    fn release_ended(&self, ended: Vec<EndedWait>) {
        for (session, leases) in ended {
            drop(leases);
            self.events.record(Event::SessionEnded(session));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::session::LeftSession;
    use crate::testing::{Running, put};
    use std::os::unix::net::UnixStream;

    #[test]
    fn late_lease_of_a_replaced_session_leaves_those_that_are_kept() {
        let running = Running::start(|_| {});
        let producer = running.connect("producer");
        let _published = ["kept", "late"].map(|name| put(&*producer, name, &[1; 1 << 20]));
        let (daemon, pid) = (&running.daemon, i32::try_from(std::process::id()).ok());
        let (socket, _client) = UnixStream::pair().unwrap();
        let former = daemon.begin_session(pid, Some(Outbox::new(Arc::new(socket))));
        let _lock = daemon.locks.lock(former.id).unwrap().unwrap();
        daemon.record_session(&former, None, true);
        let grant = |name: &str| {
            let holder = former.holder("").unwrap();
            former.grant(daemon.store.get(name, &holder).unwrap(), &holder, &mut Vec::new()).unwrap().id
        };
        let kept = grant("kept");
        daemon.end_connections(&daemon.begin_session(pid, None), former.id);
        // A call that still runs in the thread of the former connection, which then ends the session, too.
        grant("late");
        if let Some(left) = daemon.end_session(&former) {
            daemon.keep_left(left);
        }
        let left = daemon.disconnected().take(|session, _| session == former.id);
        assert_eq!(left.iter().flat_map(LeftSession::tensors).collect::<Vec<_>>(), [kept]);
    }
}
