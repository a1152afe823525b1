//! How processes talk to the daemon that keeps one copy of every tensor: the protocol's messages, and a
//! [`Store`](cotensor_store::Store) that speaks it.

mod connect;
pub mod health;
pub mod hex;
mod place;
pub mod protocol;
mod store;
pub mod token;

pub use connect::connect;
pub use cotensor_rpc::{Connection, OnNotification};
pub use place::{default_socket, fallback_folder};
pub use store::{ClientStore, ClientStoreBuilder};
