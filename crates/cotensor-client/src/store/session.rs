//! A session on one connection to the daemon.

use crate::OpenSession;
use crate::protocol::{self as p, Method};
use cotensor_core::waiting::WaitReport;
use cotensor_core::{ContentHash, Device, Error, ErrorKind, Result};
use cotensor_memory::SharedIndexReader;
use cotensor_memory::process::{client_process, wait_report};
use cotensor_rpc::{CallsMax, Connection, Deadline, FRAME_FDS_MAX};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// The time limit of methods that the daemon answers at once.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of methods that wait for other sessions or for a disk. The daemon has shorter limits.
pub(super) const WORK_TIMEOUT: Duration = Duration::from_secs(3600);
/// Publications, whose answers carry no descriptor. The daemon lets twice as many calls wait for one connection, which several threads may use.
pub(super) const PUBLICATIONS: CallsMax = CallsMax { in_message: 512, unanswered: 512 };
/// Lookups, whose answers carry one descriptor at most. The daemon keeps twice as many descriptors for a client that does not read, if its limit
/// is 16,384 or more.
pub(super) const LOOKUPS: CallsMax = CallsMax { in_message: FRAME_FDS_MAX, unanswered: 512 };
/// Claims, whose answers can carry several descriptors.
pub(super) const CLAIMS: CallsMax = CallsMax { in_message: 1, unanswered: 128 };

/// The time limit of questions about a wait.
const HOLDER_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection and its session.
pub(crate) struct Session {
    pub(super) connection: Connection,
    /// Counts the connections of this client. A session's numbers (of segments, slabs, tickets, reservations) are
    /// invalid in the next one.
    pub(super) generation: u64,
    pub(super) open: OpenSession,
    /// The daemon's epoch.
    pub(super) epoch: u64,
    pub(super) index: Option<Arc<SharedIndexReader>>,
}

/// A connection whose `session.hello` is answered.
pub(super) struct Greeted {
    pub(super) connection: Connection,
    pub(super) open: OpenSession,
    pub(super) hello: p::HelloResult,
    pub(super) index: Option<Arc<SharedIndexReader>>,
}

impl Greeted {
    pub(super) fn into_session(self, generation: u64) -> Session {
        let Self { connection, open, hello, index } = self;
        Session { connection, generation, open, epoch: hello.epoch, index }
    }
}

impl Session {
    /// Whether the connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.connection.closed().is_some()
    }

    /// Calls a method once.
    pub(super) fn call<M: Method>(&self, params: &M::Params, fds: Vec<OwnedFd>) -> Result<(M::Result, Vec<OwnedFd>)> {
        self.connection.call::<M>(params, fds, Some(ANSWER_TIMEOUT))
    }

    /// As [`call`](Self::call). None if the session ended before the daemon has seen the request.
    pub(super) fn call_if_open<M: Method>(&self, params: &M::Params) -> Result<Option<(M::Result, Vec<OwnedFd>)>> {
        self.connection.call_if_open::<M>(params, ANSWER_TIMEOUT)
    }

    /// As [`call`](Self::call), within the deadline too, for answers without a lease: a late one does not end the
    /// connection.
    pub(super) fn call_by<M: Method>(
        &self,
        params: &M::Params,
        deadline: &Deadline,
    ) -> Result<(M::Result, Vec<OwnedFd>)> {
        let timeout = deadline.left().map_or(ANSWER_TIMEOUT, |left| left.min(ANSWER_TIMEOUT));
        self.connection.call_or_forget::<M>(params, timeout)
    }

    /// As [`call`](Self::call), for methods that may wait for tensors on their way to or from a disk.
    pub(crate) fn call_long<M: Method>(
        &self,
        params: &M::Params,
        fds: Vec<OwnedFd>,
    ) -> Result<(M::Result, Vec<OwnedFd>)> {
        self.connection.call::<M>(params, fds, Some(WORK_TIMEOUT))
    }

    /// As [`call_long`](Self::call_long), with each of `params`. See [`Connection::call_each`].
    pub(super) fn call_each<M: Method>(
        &self,
        params: &[M::Params],
        max: CallsMax,
        fds_of: impl Fn(&M::Result) -> usize,
    ) -> Vec<Result<(M::Result, Vec<OwnedFd>)>> {
        self.connection.call_each::<M>(params, max, fds_of, WORK_TIMEOUT)
    }

    /// As [`call_long`](Self::call_long), for methods that wait for the work of another session. `describe` reports the wait.
    pub(super) fn call_work<M: Method>(
        &self,
        params: &M::Params,
        describe: &dyn Fn() -> WaitReport,
    ) -> Result<(M::Result, Vec<OwnedFd>)> {
        self.connection.call_reported::<M>(params, WORK_TIMEOUT, describe)
    }

    /// A report of a wait for the result of a computation.
    pub(super) fn describe_claim(&self, key: &ContentHash) -> WaitReport {
        let params = p::ClaimHolderParams { key: key.to_string(), is_blob: false, device: Device::Cpu };
        self.describe_work(&params, "which computes", p::Claim::NAME)
    }

    /// A report of a wait for a blob that another session uploads.
    pub(super) fn describe_upload(&self, hash: &ContentHash, device: Device) -> WaitReport {
        let params = p::ClaimHolderParams { key: hash.to_string(), is_blob: true, device };
        self.describe_work(&params, "which uploads weights such as", p::PlanUpload::NAME)
    }

    /// The process of a client, by its name for display. Empty in another container.
    pub(super) fn processes_of(&self, client: &str) -> Vec<u32> {
        client_process(client).filter(|_| self.open.shares_pids()).into_iter().collect()
    }

    /// The daemon names the session that works.
    fn describe_work(&self, params: &p::ClaimHolderParams, works: &str, method: &str) -> WaitReport {
        match self.connection.call_or_forget::<p::FindClaimHolder>(params, HOLDER_TIMEOUT) {
            Ok((p::ClaimHolder { holder: Some(holder) }, _)) => {
                let pids = self.processes_of(&holder);
                let key: String = params.key.chars().take(12).collect();
                wait_report(&pids, "a process", &format!(", {holder}, {works} {key}"), false)
            }
            // The daemon does not answer, or the awaited answer is on its way.
            _ => self.connection.describe(method),
        }
    }

    /// Sends a notification and ignores failures: the end of a connection releases everything.
    pub(crate) fn notify<M: Method>(&self, params: &M::Params) {
        let _ = self.connection.notify::<M>(params);
    }

    /// The error for an answer that arrives after the session was replaced. The caller retries then.
    pub(super) fn replaced(&self) -> Error {
        Error::new(ErrorKind::Io, "the daemon was replaced meanwhile")
    }
}
