//! For tests of other crates: limits that sandboxes set.

mod sandbox;

pub use sandbox::refuse_executable_memfds;
