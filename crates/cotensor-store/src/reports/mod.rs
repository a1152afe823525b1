//! Counters and reports.

mod collect;
mod copies;
mod counters;

pub use collect::LISTED;
pub(crate) use collect::{Figures, Freed};
use copies::CopyLog;
pub(crate) use counters::Counters;
