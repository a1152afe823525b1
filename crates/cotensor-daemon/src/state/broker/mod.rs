//! The broker: programs that compute on one device divide its memory, and idle programs give way to busy ones.
//!
//! A program's share ends with its session, which may go on over another connection. A smaller share is given to others only after its program has acknowledged it.

mod devices;
mod shares;

pub(crate) use devices::{Broker, DEVICES_MAX, DeviceProgram, Share};
