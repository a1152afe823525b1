//! The client of the daemon: the protocol's messages, and a [`Store`](cotensor_store::Store) over the protocol.

mod channel;
mod connect;
mod daemon_process;
mod device_share;
pub mod hex;
mod open_session;
mod openai;
mod port;
mod port_owner;
mod private_folder;
pub mod protocol;
mod rank;
mod regular_file;
pub mod settings;
mod short_path;
mod socket_path;
mod start;
mod state_folder;
mod store;
pub mod token;

pub use channel::{Channel, ChannelPolicy, ChannelReader, ChannelSpec, Frame, FrameLoan};
pub use connect::connect;
pub use cotensor_rpc::{Connection, OnNotification};
pub use daemon_process::DaemonLock;
pub use device_share::{DeviceNeeds, DeviceShare};
pub use open_session::OpenSession;
pub use openai::OpenAiError;
pub use port::{PORT, default_port, port_of_rank};
pub use port_owner::port_owner;
pub use private_folder::{Others, private_folder};
pub use rank::{device_of_rank, devices_of_daemon};
pub use regular_file::{open_regular, open_regular_or_link};
pub use short_path::{SOCKET_PATH_BYTES_MAX, ShortPath, bind_unix, connect_unix};
pub use socket_path::{
    configured_socket, default_socket, make_socket_folder, own_socket, runtime_folder, socket_of_port,
};
pub use start::{DaemonProgram, autostart_allowed, log_path, serve_arguments};
pub use state_folder::{kept_path, make_kept_folder, path_beside, state_folder};
pub use store::{ChangeQueue, ClientStore, ClientStoreBuilder, KeepsMemory, Watched};
