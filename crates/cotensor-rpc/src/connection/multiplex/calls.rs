//! Calls that wait for their answers.

use super::{Answer, Connection, PendingCall, WaitLimit, Waited};
use crate::frame::Frame;
use crate::message::{Response, encode_call};
use crate::method::Method;
use cotensor_core::sync::lock;
use cotensor_core::waiting::{WaitReport, Waiting};
use cotensor_core::{Error, ErrorKind, Result};
use serde::Serialize;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Connection {
    /// Calls a method with descriptors. Returns its result and descriptors.
    ///
    /// # Errors
    /// The server's error; `Io` when the connection ends; `TimedOut` after `timeout`, which ends the connection: a late
    /// answer could carry a lease.
    pub fn call<M: Method>(
        &self,
        params: &M::Params,
        fds: Vec<OwnedFd>,
        timeout: Option<Duration>,
    ) -> Result<(M::Result, Vec<OwnedFd>)> {
        let (response, fds) = self.request::<M>(params, fds, timeout)?;
        Ok((result_of::<M>(response)?, fds))
    }

    /// As [`call`](Self::call) without descriptors. None if the connection ended before all of the request was sent: the server has not
    /// seen the request.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_if_open<M: Method>(
        &self,
        params: &M::Params,
        timeout: Duration,
    ) -> Result<Option<(M::Result, Vec<OwnedFd>)>> {
        let describe = || self.describe(M::NAME);
        let waiting = Waiting::new(&describe);
        let limit = WaitLimit::after(Some(timeout)).reported(&waiting);
        let call = match self.send_call::<M>(params, Vec::new(), &limit) {
            Err(error) if error.kind() == ErrorKind::Io => return Ok(None),
            call => call?,
        };
        let Answer { response, fds, .. } = self.answer_to(call, &limit)?;
        Ok(Some((result_of::<M>(response)?, fds)))
    }

    /// As [`call`](Self::call), for an answer that carries no lease: an answer after `timeout` is dropped, and the
    /// connection stays open.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_or_forget<M: Method>(
        &self,
        params: &M::Params,
        timeout: Duration,
    ) -> Result<(M::Result, Vec<OwnedFd>)> {
        let describe = || self.describe(M::NAME);
        let waiting = Waiting::new(&describe);
        let limit = WaitLimit::after(Some(timeout)).reported(&waiting);
        match self.send_call::<M>(params, Vec::new(), &limit)?.wait(&limit)? {
            Waited::Answer(Answer { response, fds, .. }) => Ok((result_of::<M>(response)?, fds)),
            Waited::LimitPassed(id) => {
                drop(lock(&self.inbox).calls.remove(&id));
                Err(self.timeout_error())
            }
        }
    }

    /// As [`call`](Self::call), with the unchanged answer: for methods whose errors have data of their own.
    ///
    /// # Errors
    /// As [`call`](Self::call), without the server's error.
    pub fn request<M: Method>(
        &self,
        params: &M::Params,
        fds: Vec<OwnedFd>,
        timeout: Option<Duration>,
    ) -> Result<(Response, Vec<OwnedFd>)> {
        self.request_reported::<M>(params, fds, timeout, &|| self.describe(M::NAME))
    }

    /// As [`call`](Self::call) without descriptors, with another report of a long wait.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_reported<M: Method>(
        &self,
        params: &M::Params,
        timeout: Duration,
        describe: &dyn Fn() -> WaitReport,
    ) -> Result<(M::Result, Vec<OwnedFd>)> {
        let (response, fds) = self.request_reported::<M>(params, Vec::new(), Some(timeout), describe)?;
        Ok((result_of::<M>(response)?, fds))
    }

    fn request_reported<M: Method>(
        &self,
        params: &M::Params,
        fds: Vec<OwnedFd>,
        timeout: Option<Duration>,
        describe: &dyn Fn() -> WaitReport,
    ) -> Result<(Response, Vec<OwnedFd>)> {
        let waiting = Waiting::new(describe);
        let limit = WaitLimit::after(timeout).reported(&waiting);
        let Answer { response, fds, .. } = self.answer_to(self.send_call::<M>(params, fds, &limit)?, &limit)?;
        Ok((response, fds))
    }

    /// Waits for an answer. A late one could carry a lease, so the limit ends the connection.
    pub(super) fn answer_to(&self, call: PendingCall<'_>, limit: &WaitLimit<'_>) -> Result<Answer> {
        match call.wait(limit)? {
            Waited::Answer(answer) => Ok(answer),
            Waited::LimitPassed(_) => {
                let error = self.timeout_error();
                self.end(error.clone());
                Err(error)
            }
        }
    }

    /// As [`request`](Self::request), for parameters in another form than the method's type. They are dropped when they are
    /// encoded, and the message when it is sent: neither occupies memory during the wait.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub fn request_raw(
        &self,
        method: &str,
        params: impl Serialize,
        timeout: Duration,
    ) -> Result<(Response, Vec<OwnedFd>)> {
        let limit = WaitLimit::after(Some(timeout));
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let body = encode_call(Some(id), method, &params)?;
        drop(params);
        self.send_encoded(id, Frame { body, fds: Vec::new() }, None, &limit)?;
        let Answer { response, fds, .. } = self.answer_to(PendingCall { connection: self, id }, &limit)?;
        Ok((response, fds))
    }
}

pub(super) fn result_of<M: Method>(response: Response) -> Result<M::Result> {
    let value = response.outcome()?;
    serde_json::from_str(value.get()).map_err(|error| Error::corrupt(format!("the answer to {}: {error}", M::NAME)))
}
