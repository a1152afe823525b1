//! What a daemon needs to go on where another ended. The supervisor holds it and, should the supervisor die, the server.

mod event;
mod packed;
mod replay;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use event::{Entry, Event, Member};
pub(crate) use packed::BLOCK;
pub(crate) use table::{Journal, Segment};
