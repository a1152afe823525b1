//! The roles of the daemon's processes.

use cotensor_core::{Error, Result};
use std::str::FromStr;

/// The role of a process of the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// The supervisor that a user or the system started. It runs servers until a signal stops it.
    #[default]
    Foreground,
    /// A server, started by a supervisor.
    Server,
    /// A replacement supervisor, started by a server.
    Supervisor,
}

impl Role {
    /// The argument that names the role: [`run`](super::run) starts this program again with the same arguments, and
    /// this one with its value at their end.
    pub const FLAG: &'static str = "--role";

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Foreground => "foreground",
            Self::Server => "server",
            Self::Supervisor => "supervisor",
        }
    }
}

impl FromStr for Role {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let roles = [Self::Foreground, Self::Server, Self::Supervisor];
        let unknown = || Error::invalid(format!("{name:?} is no role: this argument is for the daemon itself"));
        roles.into_iter().find(|role| role.name() == name).ok_or_else(unknown)
    }
}
