//! Fixtures of the integration tests.

mod daemon;
mod models;

pub(crate) use daemon::Daemon;
pub(crate) use models::{BERT, Place, copy, fixtures};
