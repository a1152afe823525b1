//! The driver of one process.

mod addresses;
mod captures;
mod contexts;
mod driver;
mod events;
mod streams;

pub(crate) use addresses::Access;
pub(crate) use captures::exchange_mode;
pub(crate) use driver::{Process, enter, initialize};
pub(crate) use streams::Work;
