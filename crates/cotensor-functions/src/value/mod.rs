//! Arguments and results of functions.

mod remote;
#[allow(clippy::module_inception, reason = "the type of the folder's concept")]
mod value;

pub(crate) use remote::ObjectConnection;
pub use remote::RemoteObject;
pub use value::{Arguments, Entries, Managed, Object, Value};
