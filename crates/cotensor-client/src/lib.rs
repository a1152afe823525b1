//! The client of the daemon: the protocol's messages, and a [`Store`](cotensor_store::Store) over the protocol.

mod connect;
pub mod health;
pub mod hex;
pub mod protocol;
mod socket_path;
mod store;
pub mod token;

pub use connect::connect;
pub use cotensor_rpc::{Connection, OnNotification};
pub use socket_path::{default_socket, fallback_folder};
pub use store::{ClientStore, ClientStoreBuilder};
