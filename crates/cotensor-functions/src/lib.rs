//! Functions across processes: a [`Provider`] registers functions by name, and [`Functions`] calls them.
//!
//! The daemon only looks providers up. Calls go from the caller to the provider, over a connection of their own.
//! Messages carry references to tensors; each side leases a tensor from the daemon before the other side releases it.
//! Small new tensors are passed in memory that both sides map, without a request to the daemon.
//!
//! A call passes `provider/call_thread.rs` (reads the message), `provider/methods.rs` and `provider/runs.rs` (runs the function). Only
//! functions that a provider registered can be called.

mod allocator;
mod arena;
mod call_limit;
mod caller;
mod codec;
mod context;
mod failure;
mod options;
mod provider;
mod scope;
mod sender;
mod threads;
mod value;

pub use allocator::TensorAllocator;
pub use caller::{Completion, CompletionQueue, Functions, Task};
pub use context::Context;
pub use cotensor_rpc::Deadline;
pub use failure::{CallError, Cause, Failure};
pub use options::{Cache, Concurrency, Execution, Limits, Options};
pub use provider::{Provider, ProviderBuilder};
pub use scope::Scope;
pub use value::{Arguments, Entries, Managed, Object, RemoteObject, Value};
