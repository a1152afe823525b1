//! Arguments and results of functions.

mod hash;
mod remote;
#[allow(clippy::module_inception, reason = "the type of the folder's concept")]
mod value;

pub(crate) use value::ObjectConnection;
pub use value::{Arguments, Entries, Managed, Object, RemoteObject, Value};
