//! The driver of one process.

mod addresses;
mod contexts;
mod driver;
mod streams;

pub(crate) use addresses::Access;
pub(crate) use driver::{Process, enter, initialize};
pub(crate) use streams::Work;
