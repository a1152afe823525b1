//! Objects that live with their provider.

use super::link::{Lent, Link};
use crate::codec::{self, Encoded, Handed};
use crate::{Arguments, CallError, Outlet, Value};
use cotensor_client::protocol::provider as p;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::Deadline;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A reference to an object that lives with its provider. As an argument to a function of that provider, it is the object
/// itself. Given back once: when dropped, or before that by [`release`](RemoteObject::release).
pub struct RemoteObject {
    link: Arc<Link>,
    reference: p::ObjectRef,
    released: AtomicBool,
}

impl RemoteObject {
    pub(super) fn new(link: Arc<Link>, reference: p::ObjectRef) -> Self {
        Self { link, reference, released: AtomicBool::new(false) }
    }

    /// The life of the provider that it belongs to.
    pub fn epoch(&self) -> u64 {
        self.reference.epoch
    }

    /// Its number among the references that this process has of that provider.
    pub fn number(&self) -> u64 {
        self.reference.id
    }

    /// Calls a method and waits for its result.
    ///
    /// # Errors
    /// As [`Functions::call`](super::Functions::call); `Conflict` when the object's provider has ended, `NotFound` when it
    /// was given back.
    pub fn call(&self, method: &str, arguments: &Arguments) -> Result<Value, CallError> {
        self.call_within(method, arguments, None)
    }

    /// As [`call`](Self::call), for at most `timeout`.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_within(
        &self,
        method: &str,
        arguments: &Arguments,
        timeout: Option<Duration>,
    ) -> Result<Value, CallError> {
        self.call_by(method, arguments, &timeout.into(), None)
    }

    /// Where to write tensors of arguments.
    pub fn outlet(&self) -> Outlet {
        self.link.outlet()
    }

    /// As [`call_within`](Self::call_within), for as long as `wanted` says so; see
    /// [`Functions::call_while`](super::Functions::call_while).
    ///
    /// # Errors
    /// As [`call`](Self::call); `Conflict` once `wanted` said no.
    pub fn call_while(
        &self,
        method: &str,
        arguments: &Arguments,
        deadline: Deadline,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Value, CallError> {
        self.call_by(method, arguments, &deadline, Some(wanted))
    }

    fn call_by(
        &self,
        method: &str,
        arguments: &Arguments,
        deadline: &Deadline,
        wanted: Option<&dyn Fn() -> bool>,
    ) -> Result<Value, CallError> {
        let (params, handed) = self.params(method, arguments, deadline)?;
        let lent = Lent { handed: Some(&handed), returned: &params.returned };
        self.link.open(self.link.ask_by::<p::CallObject>(&params, lent, deadline, wanted, Link::let_go)?)
    }

    fn params(
        &self,
        method: &str,
        arguments: &Arguments,
        deadline: &Deadline,
    ) -> Result<(p::CallObjectParams, Handed), CallError> {
        let object = self.check()?;
        let Encoded { args, kwargs, handed } = codec::encode_arguments(arguments, &self.link)?;
        let (timeout_ms, returned) = (deadline.left_ms(), self.link.returned());
        Ok((p::CallObjectParams { object, method: method.to_owned(), args, kwargs, timeout_ms, returned }, handed))
    }

    /// Gives the object back.
    ///
    /// # Errors
    /// `NotFound` when it was given back before, `Conflict` when its provider has ended.
    pub fn release(&self) -> Result<(), CallError> {
        let object = self.check()?;
        if self.released.swap(true, Ordering::SeqCst) {
            return Err(given_back().into());
        }
        self.link.ask::<p::ReleaseObject>(&p::ObjectParams { object }).map(drop)
    }

    /// Ends the connection to the object's provider, as the end of this process would: everything that came from it is
    /// given back.
    pub fn disconnect(&self) {
        self.link.disconnect();
    }

    /// The reference, for the provider at the end of `link`.
    pub(super) fn reference_for(&self, link: &Arc<Link>) -> Result<p::ObjectRef> {
        let object = self.check()?;
        if Arc::ptr_eq(&self.link, link) {
            return Ok(object);
        }
        let message = match self.link.epoch() == link.epoch() {
            true => "this object came over another connection: references belong to the one they came over".to_owned(),
            false => {
                format!("this object lives with {}: only functions of that provider can have it", self.link.client())
            }
        };
        Err(Error::new(ErrorKind::Conflict, message))
    }

    fn check(&self) -> Result<p::ObjectRef> {
        if self.released.load(Ordering::SeqCst) {
            return Err(given_back());
        }
        if self.link.is_closed() {
            let message = "this object is gone: its provider has ended or restarted since";
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        Ok(self.reference)
    }
}

fn given_back() -> Error {
    Error::not_found("this object was given back already")
}

impl Drop for RemoteObject {
    fn drop(&mut self) {
        if !*self.released.get_mut() {
            self.link.tell::<p::ReleaseObject>(&p::ObjectParams { object: self.reference });
        }
    }
}

impl fmt::Debug for RemoteObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteObject({} of {})", self.reference.id, self.reference.epoch)
    }
}
