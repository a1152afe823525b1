//! Memory that processes share: sealed memfds, mapped files of Cotensor's own cache, and the cache itself.
//!
//! The only crate below the bindings that may use `unsafe`: mapping memory is unsafe by nature. Every block says
//! which guard, which bounds check and which keep-alive it relies on.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

mod cache;
mod map;
mod mapped_file;
mod memfd;
mod pack;
pub mod usage;

pub use cache::PackCache;
pub use mapped_file::{MappedFile, MappedFileMemory};
pub use memfd::{MemfdMemory, open_shared};
pub use pack::{Entry, parse_table};
