//! Calls of functions as JSON-RPC methods of their own names, for clients that have no memory in common with providers.
//!
//! `dispatch.rs` of the daemon finds the provider. `call.rs` connects with it and writes the arguments, `results.rs` reads the results.

mod arguments;
mod call;
mod elements;
mod results;
mod rewriting;

pub(crate) use call::FunctionCall;
