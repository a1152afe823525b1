//! A [`Store`](cotensor_store::Store) over a connection to the daemon.

mod blobs;
mod client_store;
mod connection;
mod copies;
mod lease_table;
mod publication;
mod reconnect;
mod session;
mod slabs;
mod tickets;

pub use client_store::ClientStore;
