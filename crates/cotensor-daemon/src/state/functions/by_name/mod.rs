//! Calls of functions as JSON-RPC methods of their own names, for clients that have no memory in common with providers.

mod arguments;
mod call;
mod elements;
mod results;
mod rewriting;

pub(crate) use call::FunctionCall;
