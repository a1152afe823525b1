//! Calls and releases of objects that stay with their provider.

use super::value::{Arguments, ObjectConnection, RemoteObject, Value};
use crate::call_limit::CallLimit;
use crate::{CallError, TensorAllocator};
use cotensor_client::protocol::provider::ObjectRef;
use cotensor_core::{Error, ErrorKind, Result};
use cotensor_rpc::Deadline;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

impl RemoteObject {
    pub(crate) fn new(connection: Arc<dyn ObjectConnection>, reference: ObjectRef) -> Self {
        Self { connection, reference, released: AtomicBool::new(false) }
    }

    /// The epoch of the object's provider: a new one each time the provider starts.
    pub fn epoch(&self) -> u64 {
        self.reference.epoch
    }

    /// The reference's number, unique among this process's references to objects of the provider.
    pub fn number(&self) -> u64 {
        self.reference.id
    }

    /// Calls a method and waits for its result.
    ///
    /// # Errors
    /// As [`Functions::call`](crate::Functions::call); `Conflict` when the object's provider has ended, `NotFound` when
    /// the reference was released.
    pub fn call(&self, method: &str, arguments: &Arguments) -> Result<Value, CallError> {
        self.call_within(method, arguments, None)
    }

    /// As [`call`](Self::call), for at most `timeout`.
    ///
    /// # Errors
    /// As [`call`](Self::call); an error of kind `TimedOut` after `timeout`.
    pub fn call_within(
        &self,
        method: &str,
        arguments: &Arguments,
        timeout: Option<Duration>,
    ) -> Result<Value, CallError> {
        self.call_until(method, arguments, &CallLimit::of_call(timeout.into(), None)?)
    }

    /// Allocates tensors of arguments.
    pub fn allocator(&self) -> TensorAllocator {
        self.connection.allocator()
    }

    /// As [`call_within`](Self::call_within), while `wanted` returns true; see
    /// [`Functions::call_while`](crate::Functions::call_while).
    ///
    /// # Errors
    /// As [`call_within`](Self::call_within); `Conflict` once `wanted` returned false.
    pub fn call_while(
        &self,
        method: &str,
        arguments: &Arguments,
        deadline: Deadline,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Value, CallError> {
        self.call_until(method, arguments, &CallLimit::of_call(deadline, Some(wanted))?)
    }

    fn call_until(&self, method: &str, arguments: &Arguments, limit: &CallLimit<'_>) -> Result<Value, CallError> {
        let object = self.check()?;
        Arc::clone(&self.connection).call_object(object, method, arguments, limit)
    }

    /// Releases the reference.
    ///
    /// # Errors
    /// `NotFound` when it was released before, `Conflict` when its provider has ended.
    pub fn release(&self) -> Result<(), CallError> {
        let object = self.check()?;
        if self.released.swap(true, Ordering::SeqCst) {
            return Err(already_released().into());
        }
        Arc::clone(&self.connection).release_object(object)
    }

    /// Closes the connection to the object's provider. The provider releases everything that this process holds of it,
    /// as at the end of the process.
    pub fn disconnect(&self) {
        self.connection.close();
    }

    /// The reference, for a message over `connection`.
    pub(crate) fn reference_for<C: ObjectConnection>(&self, connection: &Arc<C>) -> Result<ObjectRef> {
        let object = self.check()?;
        let is_same_provider = self.connection.epoch() == connection.epoch();
        let is_same_group = self.connection.group().is_some() && self.connection.group() == connection.group();
        if std::ptr::addr_eq(Arc::as_ptr(&self.connection), Arc::as_ptr(connection))
            || is_same_group && !is_same_provider
        {
            return Ok(object);
        }
        let message = if is_same_provider {
            "this object belongs to another connection; pass it over the connection that it came over".to_owned()
        } else {
            format!("this object belongs to {}; pass it to functions of that provider only", self.connection.client())
        };
        Err(Error::new(ErrorKind::Conflict, message))
    }

    fn check(&self) -> Result<ObjectRef> {
        if self.released.load(Ordering::SeqCst) {
            return Err(already_released());
        }
        if self.connection.is_closed() {
            let message = "this object's provider has ended or restarted; create the object again";
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        Ok(self.reference)
    }
}

fn already_released() -> Error {
    Error::not_found("this object was released")
}

impl Drop for RemoteObject {
    fn drop(&mut self) {
        if !*self.released.get_mut() {
            self.connection.notify_release(self.reference);
        }
    }
}

impl fmt::Debug for RemoteObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteObject({} of {})", self.reference.id, self.reference.epoch)
    }
}
