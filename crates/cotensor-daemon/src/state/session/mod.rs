//! Sessions: one for each client. A session owns its leases, reservations, tickets and slabs. They end with it.

mod disconnected;
mod free_ranges;
mod granted;
mod handles;
mod leases;
mod locks;
mod queues;
mod resources;
mod segments;
#[allow(clippy::module_inception, reason = "the file of the type that the folder is about")]
mod session;

pub(crate) use disconnected::{Disconnected, LeftSession};
pub(crate) use granted::Granted;
pub(crate) use handles::HANDLES_MAX;
pub(crate) use locks::SessionLocks;
pub(crate) use resources::{Reserved, SlabEntry};
pub(crate) use session::{Ended, Session};
