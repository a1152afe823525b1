//! A provider: functions of this process that callers reach through the daemon's lookup.

mod builder;
mod cache;
mod dispatch;
mod flight;
mod functions;
mod peer;
mod pool;
mod reader;
mod registration;
mod shared;
mod tasks;
mod timer;

pub use builder::{Provider, ProviderBuilder};
