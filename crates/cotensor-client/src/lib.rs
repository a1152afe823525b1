//! The client of the daemon: the protocol's messages, and a [`Store`](cotensor_store::Store) over the protocol.

mod connect;
mod device_share;
pub mod health;
pub mod hex;
mod private_folder;
pub mod protocol;
pub mod settings;
mod socket_path;
mod start;
mod store;
pub mod token;

pub use connect::connect;
pub use cotensor_rpc::{Connection, OnNotification};
pub use device_share::{DeviceNeeds, DeviceShare};
pub use private_folder::{Others, private_folder};
pub use socket_path::{configured_socket, default_socket, fallback_folder, make_socket_folder};
pub use start::{DaemonProgram, autostart_allowed, log_path};
pub use store::{ChangeQueue, ClientStore, ClientStoreBuilder};
