//! The client of the daemon: the protocol's messages, and a [`Store`](cotensor_store::Store) over the protocol.

mod connect;
mod device_share;
mod health;
pub mod hex;
mod port;
mod private_folder;
pub mod protocol;
pub mod settings;
mod short_path;
mod socket_path;
mod start;
mod store;
pub mod token;

pub use connect::connect;
pub use cotensor_rpc::{Connection, OnNotification};
pub use device_share::{DeviceNeeds, DeviceShare};
pub use port::{PORT, default_port, port_of_rank};
pub use private_folder::{Others, private_folder};
pub use short_path::{SOCKET_PATH_BYTES_MAX, ShortPath, bind_unix, connect_unix};
pub use socket_path::{
    configured_socket, default_socket, make_socket_folder, own_socket, runtime_folder, socket_of_port,
};
pub use start::{DaemonProgram, autostart_allowed, log_path, serve_arguments};
pub use store::{ChangeQueue, ClientStore, ClientStoreBuilder};
