//! Functions across processes: a [`Provider`] offers some by name, and [`Functions`] calls them.
//!
//! The daemon introduces the two and is not asked again: calls go from the caller to the provider, over a socket of their
//! own. Tensors among arguments and results stay where they are; their handles cross, and each side leases them from the
//! daemon before the other lets go. Small new ones are lent from one side to the other without asking the daemon.

mod caller;
mod codec;
mod context;
mod failure;
mod lending;
mod options;
mod provider;
mod value;

pub use caller::{Done, Functions, Pending, RemoteObject, Task};
pub use context::Context;
pub use cotensor_rpc::Deadline;
pub use failure::{CallError, Cause, Failure};
pub use lending::Outlet;
pub use options::{Cache, Concurrency, Execution, Limits, Options};
pub use provider::{Provider, ProviderBuilder};
pub use value::{Arguments, Entries, Managed, Object, Value};
