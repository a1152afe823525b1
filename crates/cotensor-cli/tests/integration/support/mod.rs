//! Fixtures of the integration tests.

mod daemon;
mod workspace;

pub(crate) use daemon::{Daemon, until};
pub(crate) use workspace::{BERT, Workspace, copy, fixtures, without_network};
