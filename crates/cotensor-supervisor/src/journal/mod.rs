//! The journal: the state that the next server needs. The supervisor and the server each have one.

mod block;
mod event;
mod packed;
mod replay;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use block::BLOCK_VERSION;
pub use event::{Entry, Event, SessionClient, SpillFile};
pub use table::{Journal, Segment};
#[cfg(test)]
pub(crate) use tests::published;
