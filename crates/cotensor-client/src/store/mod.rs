//! A [`Store`](cotensor_store::Store) over a connection to the daemon.
//!
//! A publication makes memory, then calls `tensor.publish` over cotensor-rpc. A repeated lookup needs no request: the lease table compares
//! the words of the shared index with those of its leases. After the end of a server, `reconnect.rs` resumes the session.

mod blobs;
mod builder;
mod change_queue;
mod client_store;
mod connection;
mod copies;
mod freed_ranges;
mod kept_memory;
mod lease_table;
mod memories;
mod names;
mod next_block;
mod port_health;
mod publication;
mod ready;
mod reconnect;
mod reopened;
mod session;
mod slabs;
mod tensors;
mod tickets;

pub use builder::ClientStoreBuilder;
pub use change_queue::{ChangeQueue, Watched};
pub use client_store::ClientStore;
pub use ready::KeepsMemory;
pub(crate) use reopened::Reopened;
pub(crate) use session::Session;
