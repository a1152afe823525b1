//! Fixtures of the integration tests.

mod daemon;
mod workspace;

pub(crate) use cotensor_core::testing::until;
pub(crate) use daemon::Daemon;
pub(crate) use workspace::{BERT, Workspace, copy, fixtures, without_network};
