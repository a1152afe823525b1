//! The broker: programs that compute on one device divide its memory, and idle programs give way to busy ones.
//!
//! A program's share ends with its session. A smaller share is given to others only after its program has acknowledged it.

mod devices;
mod shares;

pub(crate) use devices::{Broker, DeviceProgram};
