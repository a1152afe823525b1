//! Channels: frames that one process writes again and again into the same memory, one file for each class.

pub(crate) mod frame;
pub(crate) mod loan;
pub(crate) mod producer;
pub(crate) mod reader;
