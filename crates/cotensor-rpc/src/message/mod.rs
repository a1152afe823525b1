//! JSON-RPC 2.0 messages, after their [specification](https://www.jsonrpc.org/specification).

mod call;
mod errors;
mod id;
mod incoming;
mod integers;
mod response;

pub use call::{BATCH_MAX, Call, Message, encode_call, is_batch, parse};
pub use errors::{TENSORS_INSTEAD, from_object, kind_name, kind_named, to_object};
pub use id::{ID_BYTES_MAX, Id};
pub use incoming::{Incoming, parse_incoming};
pub use integers::check_integers;
pub use response::Response;
