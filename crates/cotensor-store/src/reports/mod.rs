//! Counters and reports.

mod collect;
mod copies;

pub use collect::LISTED;
pub(crate) use collect::{diagnostics, optimize, recommendations, stats};
pub(crate) use copies::CopyLog;
