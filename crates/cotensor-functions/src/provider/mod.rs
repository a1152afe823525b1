//! A provider: functions of this process that callers find through the daemon.

mod builder;
mod call_thread;
mod caller_state;
mod callers;
mod functions;
mod group;
mod methods;
mod peer;
mod poller;
mod registration;
mod result_cache;
mod run;
mod run_queue;
mod runs;
mod state;
mod task_methods;
mod tasks;
mod timer;

pub use builder::{Provider, ProviderBuilder};
